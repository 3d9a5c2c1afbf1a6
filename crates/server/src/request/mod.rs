//! Conversion of a client's request, over HTTP or gRPC, to the engine's request.

mod parse;
mod sampling;
mod spec;

pub use parse::{
    breakpoints, chat_messages, check_stop_strings, continuation_tokens, edit_text, edits, part,
    positions, prompt_tokens, seconds,
};
pub use sampling::SamplingSpec;
pub use spec::{EDITS_MAX, LOGPROBS_MAX, MAX_TOKENS_DEFAULT, STOP_STRINGS_MAX, SessionSpec};
