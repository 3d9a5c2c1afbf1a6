//! Mixtral: Mistral with a mixture of experts for an MLP.

use djinn_types::DType;

use super::gated::{Defaults, Gated, sliding_window};
use crate::config::limits;
use crate::program::Program;
use crate::{ModelError, RawConfig};

const DEFAULTS: Defaults = Defaults {
    vocab: 32000,
    d_mlp: 14336,
    kv_heads: Some(8),
    d_head: None,
    context: 4096 * 32,
    eps: 1e-5,
    theta: 1e6,
};

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let mut model = Gated::read("mixtral", config, &DEFAULTS)?;
    model.window(sliding_window(config, None)?);
    let key = config.spelling(&["num_local_experts", "num_experts"]);
    let experts = config.size(key, 1..=limits::EXPERTS)?.unwrap_or(8);
    if experts * model.dims.blocks > limits::EXPERTS_ALL {
        return Err(config.error(
            key,
            format!(
                "{experts} experts in each of {} blocks are too many",
                model.dims.blocks
            ),
        ));
    }
    model.dims.experts = experts;
    model.chosen = config
        .size("num_experts_per_tok", 1..=experts)?
        .unwrap_or(2.min(experts));
    Ok(model.build(dtype))
}
