//! Rules that several families share.

use crate::config::limits;
use crate::{ModelError, RawConfig};

/// Returns attention's usual scale, rounded to f32 once, as transformers does.
pub(super) fn scale_of(d_head: usize) -> f32 {
    (d_head as f64).powf(-0.5) as f32
}

/// Returns the default number of elements in a head: an even share of the model's width.
pub(super) fn even_heads(
    config: &RawConfig,
    d_model: usize,
    heads: usize,
    heads_key: &str,
) -> Result<usize, ModelError> {
    if d_model.is_multiple_of(heads) {
        Ok(d_model / heads)
    } else {
        Err(config.inconsistent(
            heads_key,
            format!("{heads} heads do not divide the width of the model, {d_model}"),
        ))
    }
}

/// Checks that attention is not wider than the limit.
pub(super) fn check_attention(
    config: &RawConfig,
    heads: usize,
    d_head: usize,
    key: &str,
) -> Result<(), ModelError> {
    if heads * d_head <= limits::ATTENTION {
        Ok(())
    } else {
        Err(config.inconsistent(
            key,
            format!(
                "{heads} heads of {d_head} elements exceed the limit of {} elements",
                limits::ATTENTION
            ),
        ))
    }
}
