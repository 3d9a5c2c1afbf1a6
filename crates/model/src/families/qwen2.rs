//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.

use djinn_types::DType;

use super::gated::{GatedDefaults, GatedModel, qwen_windows};
use crate::program::Program;
use crate::{ModelError, RawConfig};

const DEFAULTS: GatedDefaults = GatedDefaults {
    vocab: 151_936,
    d_mlp: 22016,
    kv_heads: Some(32),
    d_head: None,
    context: 32768,
    eps: 1e-6,
    theta: 10000.0,
};

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let mut model = GatedModel::read("qwen2", config, &DEFAULTS)?;
    model.qkv_bias = true;
    model.windows = qwen_windows(config, &model.dims)?;
    Ok(model.build(dtype))
}
