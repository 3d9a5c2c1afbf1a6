//! Llama 1, 2 and 3, and models with the same architecture.

use djinn_types::DType;

use super::gated::{GatedDefaults, GatedModel};
use crate::program::Program;
use crate::{ModelError, RawConfig};

const DEFAULTS: GatedDefaults = GatedDefaults {
    vocab: 32000,
    d_mlp: 11008,
    kv_heads: None,
    d_head: None,
    context: 2048,
    eps: 1e-6,
    theta: 10000.0,
};

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let mut model = GatedModel::read("llama", config, &DEFAULTS)?;
    model.qkv_bias = config.flag("attention_bias")?.unwrap_or(false);
    model.o_bias = model.qkv_bias;
    model.mlp_bias = config.flag("mlp_bias")?.unwrap_or(false);
    Ok(model.build(dtype))
}
