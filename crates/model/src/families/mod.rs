//! Families: from a configuration to a [`Program`], one file each.

mod falcon;
mod gated;
mod gpt2;
mod gptj;
mod llama;
mod mistral;
mod mixtral;
mod qwen2;
mod qwen3;

use djinn_types::DType;

use crate::config::limits;
use crate::program::Program;
use crate::{ModelError, RawConfig};

/// Builds a family's program; tensors are declared with the dtype given.
type Build = fn(&RawConfig, DType) -> Result<Program, ModelError>;

/// A family: `model_type`, the class in `architectures`, and how it is built.
const FAMILIES: [(&str, &str, Build); 8] = [
    ("falcon", "FalconForCausalLM", falcon::build),
    ("gpt2", "GPT2LMHeadModel", gpt2::build),
    ("gptj", "GPTJForCausalLM", gptj::build),
    ("llama", "LlamaForCausalLM", llama::build),
    ("mistral", "MistralForCausalLM", mistral::build),
    ("mixtral", "MixtralForCausalLM", mixtral::build),
    ("qwen2", "Qwen2ForCausalLM", qwen2::build),
    ("qwen3", "Qwen3ForCausalLM", qwen3::build),
];

/// Builds the program of the family that `config` names.
pub fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let quantized = config.section("quantization_config")?;
    if !quantized.is_empty() {
        let method = quantized.text("quant_method")?.unwrap_or("unnamed");
        return Err(config.error(
            "quantization_config",
            format!("quantized weights ({method}) are not computed, only F32, F16 and BF16"),
        ));
    }
    let model_type = config.text("model_type")?;
    let architectures = config.texts("architectures")?.unwrap_or_default();
    let architecture = architectures.first().copied();
    let found = FAMILIES
        .iter()
        .find(|(name, _, _)| model_type == Some(name))
        .or_else(|| {
            FAMILIES
                .iter()
                .find(|(_, class, _)| architecture == Some(class))
        });
    match found {
        Some((_, _, build)) => build(config, dtype),
        None => Err(unknown(config, model_type, architecture)),
    }
}

fn unknown(config: &RawConfig, model_type: Option<&str>, class: Option<&str>) -> ModelError {
    let known: Vec<&str> = FAMILIES.iter().map(|(name, _, _)| *name).collect();
    let found = match (model_type, class) {
        (Some(name), _) => format!("family '{name}' is not known"),
        (None, Some(class)) => format!("missing, and architecture '{class}' is not known"),
        (None, None) => "missing".to_owned(),
    };
    config.error(
        "model_type",
        format!("{found}; known: {}", known.join(", ")),
    )
}

/// Other names under which checkpoints have a tensor that families call `name`:
/// without the base model's prefix, or with it, and Mixtral's newer spelling.
pub(crate) fn aliases(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    for prefix in ["model.", "transformer."] {
        names.extend(name.strip_prefix(prefix).map(str::to_owned));
        names.push(format!("{prefix}{name}"));
    }
    for i in 0..names.len() {
        if names[i].contains(".block_sparse_moe.") {
            names.push(names[i].replace(".block_sparse_moe.", ".mlp."));
        }
    }
    names
}

/// Attention's usual scale, rounded once, as transformers does.
pub(crate) fn scale_of(d_head: usize) -> f32 {
    (d_head as f64).powf(-0.5) as f32
}

/// Elements of a head when the configuration does not say: an even share.
pub(crate) fn even_heads(
    config: &RawConfig,
    d_model: usize,
    heads: usize,
    heads_key: &str,
) -> Result<usize, ModelError> {
    if d_model.is_multiple_of(heads) {
        Ok(d_model / heads)
    } else {
        Err(config.error(
            heads_key,
            format!("{heads} heads do not divide the model's width, {d_model}"),
        ))
    }
}

/// Refuses attention that is wider than any computed.
pub(crate) fn check_attention(
    config: &RawConfig,
    heads: usize,
    d_head: usize,
    key: &str,
) -> Result<(), ModelError> {
    if heads * d_head <= limits::ATTENTION {
        Ok(())
    } else {
        Err(config.error(
            key,
            format!(
                "{heads} heads of {d_head} are more than {} elements",
                limits::ATTENTION
            ),
        ))
    }
}
