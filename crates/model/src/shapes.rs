//! Shapes: well-known models with their public configuration and synthetic weights.

use std::path::Path;

use djinn_types::DType;
use serde_json::Value;

use crate::config::{RawConfig, dtype_named, limits};
use crate::error::ModelError;
use crate::families;
use crate::program::Program;
use crate::weights::SyntheticWeights;

/// Prefix of references to shapes.
pub const PREFIX: &str = "shape:";

macro_rules! shapes {
    ($($name:literal),* $(,)?) => {
        /// Name and configuration of every shape.
        const SHAPES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("shapes/", $name, ".json")))),*
        ];
    };
}

shapes![
    "gpt2",
    "gpt-j-6b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "mistral-7b",
    "mixtral-8x7b",
    "falcon-7b",
    "falcon-180b",
    "tinyllama-1.1b",
    "smollm2-135m",
];

/// Returns the names of all shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(name, _)| *name)
}

/// A shape with its options.
#[derive(Debug)]
pub struct Shape {
    /// Name of the shape.
    pub name: &'static str,
    /// Configuration, as in `config.json`.
    pub config: RawConfig,
    /// Element type of the weights.
    pub dtype: DType,
    /// Seed of the weights.
    pub seed: u64,
}

impl Shape {
    /// Parses `NAME[?layers=N&context=N&dtype=f16&seed=1]`, the part of a reference after [`PREFIX`].
    pub fn parse(reference: &str) -> Result<Self, ModelError> {
        let (name, options) = reference.split_once('?').unwrap_or((reference, ""));
        let mut shape = Self::named(name)?;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            shape.set(option)?;
        }
        Ok(shape)
    }

    fn named(name: &str) -> Result<Self, ModelError> {
        let found = SHAPES.iter().find(|(known, _)| *known == name);
        let &(name, text) = found.ok_or_else(|| ModelError::UnknownShape {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        })?;
        let path = format!("{PREFIX}{name}");
        let config = RawConfig::parse(Path::new(&path), text.as_bytes())?;
        let dtype = config.dtype()?.unwrap_or(DType::F16);
        Ok(Shape {
            name,
            config,
            dtype,
            seed: 0,
        })
    }

    /// Applies an option `key=value`.
    fn set(&mut self, option: &str) -> Result<(), ModelError> {
        let bad = |expected: String| ModelError::ShapeOption {
            option: option.to_owned(),
            expected,
        };
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "layers" => {
                let layers = value
                    .parse()
                    .ok()
                    .filter(|layers| (1..=limits::BLOCKS).contains(layers))
                    .ok_or_else(|| bad(format!("1 to {}", limits::BLOCKS)))?;
                let key = self.config.spelling(&["num_hidden_layers", "n_layer"]);
                self.config.set(key, layers);
            }
            "context" => {
                let context = value
                    .parse()
                    .ok()
                    .filter(|context| (1..=limits::CONTEXT).contains(context))
                    .ok_or_else(|| bad(format!("1 to {}", limits::CONTEXT)))?;
                let keys = ["max_position_embeddings", "n_positions"];
                let key = self.config.spelling(&keys);
                self.config.set(key, context);
            }
            "dtype" => {
                self.dtype =
                    dtype_named(value).ok_or_else(|| bad("f32, f16 or bf16".to_owned()))?;
            }
            "seed" => {
                self.seed = value
                    .parse()
                    .map_err(|_| bad("a whole number of at least 0".to_owned()))?;
            }
            _ => {
                return Err(bad(
                    "one of the options layers, context, dtype or seed".to_owned()
                ));
            }
        }
        Ok(())
    }

    /// Returns the `config.json` of a checkpoint of this shape.
    pub fn config_json(&self) -> Value {
        let mut config = self.config.clone();
        let dtype = match self.dtype {
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
            DType::F32 | DType::I32 => "float32",
        };
        config.set("torch_dtype", dtype);
        config.to_json()
    }

    /// Builds the program and its synthetic weights.
    pub fn build(&self) -> Result<(Program, SyntheticWeights), ModelError> {
        let program = families::build(&self.config, self.dtype)?;
        let weights = SyntheticWeights::new(&program, self.seed);
        Ok((program, weights))
    }
}

#[cfg(test)]
mod tests {
    use djinn_types::DType;

    use super::{ModelError, Shape, names};

    #[test]
    fn sizes_match_the_published_models() {
        let check = |name: &str, parameters: u64, dtype: DType| {
            let shape = Shape::parse(name).unwrap();
            let (program, _) = shape.build().unwrap();
            assert_eq!(program.parameters(), parameters, "{name}");
            assert_eq!(shape.dtype, dtype, "{name}");
            let bytes = parameters * dtype.bytes() as u64;
            assert_eq!(program.weight_bytes(), bytes, "{name}");
        };
        check("gpt2", 124_439_808, DType::F32);
        check("gpt-j-6b", 6_050_882_784, DType::F16);
        check("llama-2-7b", 6_738_415_616, DType::F16);
        check("llama-2-13b", 13_015_864_320, DType::F16);
        check("llama-2-70b", 68_976_648_192, DType::F16);
        check("llama-3-8b", 8_030_261_248, DType::Bf16);
        check("llama-3-70b", 70_553_706_496, DType::Bf16);
        check("mistral-7b", 7_241_732_096, DType::Bf16);
        check("mixtral-8x7b", 46_702_792_704, DType::Bf16);
        check("falcon-7b", 6_921_720_704, DType::Bf16);
        check("falcon-180b", 178_557_088_768, DType::Bf16);
        check("tinyllama-1.1b", 1_100_048_384, DType::Bf16);
        check("smollm2-135m", 134_515_008, DType::Bf16);
        assert_eq!(names().count(), 13);
    }

    #[test]
    fn options_change_the_shape() {
        let shape = Shape::parse("llama-2-7b?layers=2&dtype=f32&seed=7").unwrap();
        let (program, _) = shape.build().unwrap();
        assert_eq!(program.dims.blocks, 2);
        assert_eq!(program.tensors[0].dtype, DType::F32);
        assert_eq!(shape.seed, 7);
        let (program, _) = Shape::parse("gpt2?layers=3").unwrap().build().unwrap();
        assert_eq!(program.dims.blocks, 3);
        for name in ["gpt2", "llama-2-13b", "llama-3-8b", "falcon-7b"] {
            let shape = Shape::parse(&format!("{name}?layers=1&context=65536")).unwrap();
            let (program, _) = shape.build().unwrap();
            assert_eq!(program.dims.context, 65536, "{name}");
        }
    }

    #[test]
    fn invalid_references_are_refused() {
        let unknown = Shape::parse("llama-9");
        assert!(matches!(unknown, Err(ModelError::UnknownShape { name, .. }) if name == "llama-9"));
        for invalid in [
            "layers=0",
            "layers=x",
            "context=0",
            "dtype=i8",
            "seed=-1",
            "depth=3",
        ] {
            let error = Shape::parse(&format!("gpt2?{invalid}"));
            assert!(
                matches!(&error, Err(ModelError::ShapeOption { option, .. }) if option == invalid),
                "{invalid}: {error:?}"
            );
        }
    }
}
