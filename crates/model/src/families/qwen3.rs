//! Qwen3: Llama with a norm on every head's queries and keys.

use djinn_types::DType;

use super::gated::{GatedDefaults, GatedModel, qwen_windows};
use crate::program::Program;
use crate::{ModelError, RawConfig};

const DEFAULTS: GatedDefaults = GatedDefaults {
    vocab: 151_936,
    d_mlp: 22016,
    kv_heads: Some(32),
    d_head: Some(128),
    context: 32768,
    eps: 1e-6,
    theta: 10000.0,
};

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let mut model = GatedModel::read("qwen3", config, &DEFAULTS)?;
    model.qk_norm = true;
    model.qkv_bias = config.flag("attention_bias")?.unwrap_or(false);
    model.o_bias = model.qkv_bias;
    model.windows = qwen_windows(config, &model.dims)?;
    Ok(model.build(dtype))
}
