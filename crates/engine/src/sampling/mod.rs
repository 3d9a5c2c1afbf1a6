//! Sampling: from logits to tokens, and from tokens to text.

pub(crate) mod sample_outputs;
pub(crate) mod sampler;
pub(crate) mod stop_strings;
