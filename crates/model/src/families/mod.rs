//! Model families: each builds a [`Program`] from a configuration, in one file.

mod common;
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

use crate::program::Program;
use crate::{ModelError, RawConfig};

/// Function that builds the program of a family, with tensors of the given dtype.
type BuildProgram = fn(&RawConfig, DType) -> Result<Program, ModelError>;

/// Families: `model_type`, the class in `architectures`, and the function that builds the
/// program.
const FAMILIES: [(&str, &str, BuildProgram); 8] = [
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
        return Err(config.unsupported(
            "quantization_config",
            format!("quantized weights ({method}) are not supported; use F32, F16 or BF16 weights"),
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
        (Some(name), _) => format!("family '{name}' is not supported"),
        (None, Some(class)) => {
            format!("the key is missing, and architecture '{class}' is not supported")
        }
        (None, None) => "missing".to_owned(),
    };
    config.unsupported(
        "model_type",
        format!("{found}; supported families: {}", known.join(", ")),
    )
}
