//! Admission of a client's request, over HTTP or gRPC: its parts are bounded, parsed and bound to the model,
//! away from the engine thread. The result is the engine's request.

mod limits;
mod parse;
mod sampling;
mod spec;

pub use limits::{
    EDITS_MAX, admit_saved, check_detokenize, check_sampling, check_stop, check_tokenize,
};
pub use parse::{
    breakpoints, chat_messages, continuation_tokens, edit_text, edits, hook_name, part, positions,
    prompt_tokens, seconds,
};
pub use sampling::SamplingSpec;
pub use spec::{SessionSpec, admit, admit_turn_tokens};
