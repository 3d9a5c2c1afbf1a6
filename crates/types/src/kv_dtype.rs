//! Element type of the KV cache, as a user chooses it.

use std::{fmt, str::FromStr};

use crate::DType;

/// Choice of the element type of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// The 16-bit type nearest to the type of the weights.
    #[default]
    Auto,
    /// IEEE 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit float.
    F32,
}

impl KvDtype {
    /// Element type of keys and values for weights of the type `weights`.
    pub const fn resolve(self, weights: DType) -> DType {
        match (self, weights) {
            (KvDtype::Auto, DType::Bf16) | (KvDtype::Bf16, _) => DType::Bf16,
            (KvDtype::Auto, _) | (KvDtype::F16, _) => DType::F16,
            (KvDtype::F32, _) => DType::F32,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvDtype::Auto => "auto",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
            KvDtype::F32 => "f32",
        })
    }
}

/// Error of a text that names no type of keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseKvDtypeError(String);

impl fmt::Display for ParseKvDtypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not auto, f16, bf16 or f32", self.0)
    }
}

impl std::error::Error for ParseKvDtypeError {}

impl FromStr for KvDtype {
    type Err = ParseKvDtypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(KvDtype::Auto),
            "f16" => Ok(KvDtype::F16),
            "bf16" => Ok(KvDtype::Bf16),
            "f32" => Ok(KvDtype::F32),
            _ => Err(ParseKvDtypeError(crate::text::shown(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KvDtype::{self, Auto, Bf16, F16, F32};
    use crate::DType;

    #[test]
    fn auto_is_the_nearest_16_bit_type() {
        for (weights, expect) in [
            (DType::Bf16, DType::Bf16),
            (DType::F16, DType::F16),
            (DType::F32, DType::F16),
        ] {
            assert_eq!(Auto.resolve(weights), expect);
            for (choice, dtype) in [(F16, DType::F16), (Bf16, DType::Bf16), (F32, DType::F32)] {
                assert_eq!(choice.resolve(weights), dtype);
            }
        }
    }

    #[test]
    fn the_text_form_is_read_back() {
        for choice in [Auto, F16, Bf16, F32] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for wrong in ["", "F16", "i32", "fp16", "f16 "] {
            assert!(wrong.parse::<KvDtype>().is_err(), "{wrong}");
        }
    }
}
