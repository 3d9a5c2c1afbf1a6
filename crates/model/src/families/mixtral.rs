//! Mixtral: Mistral with a mixture of experts as its MLP.

use djinn_types::DType;

use super::gated::{GatedDefaults, GatedModel, sliding_window};
use crate::config::limits;
use crate::program::Program;
use crate::{ModelError, RawConfig};

const DEFAULTS: GatedDefaults = GatedDefaults {
    vocab: 32000,
    d_mlp: 14336,
    kv_heads: Some(8),
    d_head: None,
    context: 4096 * 32,
    eps: 1e-5,
    theta: 1e6,
};

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let mut model = GatedModel::read("mixtral", config, &DEFAULTS)?;
    model.window(sliding_window(config, None)?);
    let key = config.spelling(&["num_local_experts", "num_experts"]);
    let experts = config.size(key, 1..=limits::EXPERTS)?.unwrap_or(8);
    if experts * model.dims.blocks > limits::EXPERTS_ALL {
        return Err(config.inconsistent(
            key,
            format!(
                "{experts} experts in each of {} blocks exceed the limit of {} experts",
                model.dims.blocks,
                limits::EXPERTS_ALL
            ),
        ));
    }
    model.dims.experts = experts;
    model.chosen = config
        .size("num_experts_per_tok", 1..=experts)?
        .unwrap_or(2.min(experts));
    Ok(model.build(dtype))
}
