//! Mistral: Llama with a sliding window.

use djinn_types::DType;

use super::gated::{GatedDefaults, GatedModel, sliding_window};
use crate::program::Program;
use crate::{ModelError, RawConfig};

const DEFAULTS: GatedDefaults = GatedDefaults {
    vocab: 32000,
    d_mlp: 14336,
    kv_heads: Some(8),
    d_head: None,
    context: 4096 * 32,
    eps: 1e-6,
    theta: 10000.0,
};

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let mut model = GatedModel::read("mistral", config, &DEFAULTS)?;
    model.window(sliding_window(config, Some(4096))?);
    Ok(model.build(dtype))
}
