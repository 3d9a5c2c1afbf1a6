//! Configuration files such as `config.json`: typed getters with errors that name file and key.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use djinn_types::{Activation, DType};
use serde_json::{Map, Value};

use crate::error::{KeyProblem, ModelError};

/// Largest JSON file that Djinn reads, in bytes; real configurations are far smaller.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// A JSON object, and the file it was read from. `null` counts as a missing key.
#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    path: PathBuf,
    /// Prefix of keys in errors, such as `rope_parameters.`.
    prefix: String,
    map: Map<String, Value>,
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<Value, ModelError> {
    let io = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut text = Vec::new();
    file.take(JSON_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(io)?;
    parse_json(path, &text)
}

fn parse_json(path: &Path, text: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(text).map_err(|source| ModelError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Formats a value for an error: on one line, and shortened.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl RawConfig {
    /// Reads a file that holds one JSON object.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        Self::from_value(path, read_json(path)?)
    }

    /// Parses the text of a file that holds one JSON object. Errors name `path`.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, ModelError> {
        Self::from_value(path, parse_json(path, text)?)
    }

    fn from_value(path: &Path, value: Value) -> Result<Self, ModelError> {
        match value {
            Value::Object(map) => Ok(RawConfig {
                path: path.to_owned(),
                prefix: String::new(),
                map,
            }),
            other => Err(ModelError::NotAnObject {
                path: path.to_owned(),
                found: shorten(&other),
            }),
        }
    }

    /// Returns the path of the file that the object was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an error about the value of a key.
    pub fn error(&self, key: &str, problem: KeyProblem) -> ModelError {
        ModelError::Key {
            path: self.path.clone(),
            key: format!("{}{key}", self.prefix),
            problem,
        }
    }

    /// Returns an error about a value of the wrong type or out of range.
    pub fn unexpected(
        &self,
        key: &str,
        expected: impl Into<String>,
        found: impl fmt::Display,
    ) -> ModelError {
        let (expected, found) = (expected.into(), found.to_string());
        self.error(key, KeyProblem::Unexpected { expected, found })
    }

    /// Returns an error about a value that asks for an unsupported feature.
    pub fn unsupported(&self, key: &str, problem: impl Into<String>) -> ModelError {
        self.error(key, KeyProblem::Unsupported(problem.into()))
    }

    /// Returns an error about a value that contradicts other values.
    pub fn inconsistent(&self, key: &str, problem: impl Into<String>) -> ModelError {
        self.error(key, KeyProblem::Inconsistent(problem.into()))
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> ModelError {
        self.unexpected(key, expected, shorten(found))
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.map.insert(key.to_owned(), value.into());
    }

    /// Returns the object as a JSON value.
    pub fn to_json(&self) -> Value {
        Value::Object(self.map.clone())
    }

    /// Returns the value of a key, unless it is missing or `null`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns whether the key is present, even as `null`. Some defaults differ between a
    /// missing key and `null`.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Returns whether the object is empty.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the first of several names of one setting that the file uses, or the first
    /// name if the file uses none.
    pub fn spelling<'k>(&self, keys: &[&'k str]) -> &'k str {
        keys.iter()
            .find(|key| self.value(key).is_some())
            .unwrap_or(&keys[0])
    }

    /// Reads a whole number.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.value(key)
            .map(|value| {
                // Some configurations write 4096.0.
                let whole = value
                    .as_f64()
                    .filter(|f| f.fract() == 0.0 && (0.0..1e15).contains(f));
                value
                    .as_u64()
                    .or(whole.map(|f| f as u64))
                    .ok_or_else(|| self.wrong(key, "a whole number of at least 0", value))
            })
            .transpose()
    }

    /// Reads a whole number within a range.
    pub fn size(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ModelError> {
        let Some(found) = self.integer(key)? else {
            return Ok(None);
        };
        match usize::try_from(found) {
            Ok(size) if range.contains(&size) => Ok(Some(size)),
            _ => {
                let expected = format!("{} to {}", range.start(), range.end());
                Err(self.unexpected(key, expected, found))
            }
        }
    }

    /// Reads a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.value(key)
            .map(|value| {
                value
                    .as_f64()
                    .filter(|f| f.is_finite())
                    .ok_or_else(|| self.wrong(key, "a number", value))
            })
            .transpose()
    }

    /// Reads a number above zero.
    pub fn positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.number(key)? {
            Some(found) if found <= 0.0 => Err(self.unexpected(key, "a number above 0", found)),
            found => Ok(found),
        }
    }

    /// Reads the epsilon of a norm, with a default for a missing key.
    pub fn epsilon(&self, key: &str, default: f64) -> Result<f32, ModelError> {
        let eps = self.number(key)?.unwrap_or(default);
        if (0.0..1.0).contains(&eps) {
            Ok(eps as f32)
        } else {
            Err(self.unexpected(key, "0 to 1", eps))
        }
    }

    /// Reads a boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.value(key)
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| self.wrong(key, "true or false", value))
            })
            .transpose()
    }

    /// Reads a string.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.value(key)
            .map(|value| {
                value
                    .as_str()
                    .ok_or_else(|| self.wrong(key, "a string", value))
            })
            .transpose()
    }

    /// Reads a list of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_str).collect())
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a list of strings", value))
    }

    /// Reads one token id, or a list of token ids.
    pub fn ids(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(items) => items.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.map(Some)
            .ok_or_else(|| self.wrong(key, "a token id or a list of token ids", value))
    }

    /// Reads a nested object; a missing key gives an empty object.
    pub fn section(&self, key: &str) -> Result<RawConfig, ModelError> {
        let map = match self.value(key) {
            None => Map::new(),
            Some(Value::Object(map)) => map.clone(),
            Some(other) => return Err(self.wrong(key, "an object", other)),
        };
        Ok(RawConfig {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            map,
        })
    }

    /// Reads an activation function, by its name in transformers.
    pub fn activation(&self, key: &str, default: &str) -> Result<Activation, ModelError> {
        match self.text(key)?.unwrap_or(default) {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" | "gelu_python" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh"
            | "gelu_accurate" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            other => Err(self.unsupported(
                key,
                format!(
                    "activation '{other}' is not supported; supported activations: silu, swish, gelu, \
                     gelu_new, gelu_fast, gelu_pytorch_tanh, relu"
                ),
            )),
        }
    }

    /// Reads the dtype of the weights. Only synthetic models use this key: in a checkpoint every
    /// tensor has a dtype of its own.
    pub fn dtype(&self) -> Result<Option<DType>, ModelError> {
        let key = self.spelling(&["dtype", "torch_dtype"]);
        Ok(self.text(key)?.and_then(dtype_named))
    }
}

/// Returns the dtype with the given name.
pub(crate) fn dtype_named(name: &str) -> Option<DType> {
    match name {
        "f32" | "float32" | "F32" => Some(DType::F32),
        "f16" | "float16" | "F16" => Some(DType::F16),
        "bf16" | "bfloat16" | "BF16" => Some(DType::Bf16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::path::Path;

    use djinn_types::{Activation, DType};

    use super::RawConfig;
    use crate::error::{KeyProblem, ModelError};

    fn config(text: &str) -> RawConfig {
        RawConfig::parse(Path::new("config.json"), text.as_bytes()).unwrap()
    }

    fn problem<T: Debug>(result: Result<T, ModelError>) -> (String, KeyProblem) {
        match result.unwrap_err() {
            ModelError::Key { key, problem, .. } => (key, problem),
            other => panic!("{other}"),
        }
    }

    fn is_unexpected(problem: &KeyProblem) -> bool {
        matches!(problem, KeyProblem::Unexpected { .. })
    }

    #[test]
    fn null_equals_missing() {
        let c = config(r#"{"a": null, "n": 3, "f": 4096.0}"#);
        assert_eq!(c.integer("a").unwrap(), None);
        assert_eq!(c.integer("b").unwrap(), None);
        assert!(c.has("a") && !c.has("b"));
        assert_eq!(c.integer("n").unwrap(), Some(3));
        assert_eq!(c.integer("f").unwrap(), Some(4096));
        assert_eq!(c.spelling(&["a", "n"]), "n");
        assert_eq!(c.spelling(&["a", "b"]), "a");
    }

    #[test]
    fn errors_name_the_key() {
        let c = config(r#"{"a": "x", "n": -1, "big": 99, "s": {"k": [1]}, "list": [1]}"#);
        let check = |(key, problem): (String, KeyProblem), expect: &str| {
            assert_eq!(key, expect);
            assert!(is_unexpected(&problem), "{problem:?}");
        };
        check(problem(c.integer("a")), "a");
        check(problem(c.size("n", 1..=9)), "n");
        check(problem(c.size("big", 1..=9)), "big");
        check(problem(c.section("s").unwrap().text("k")), "s.k");
        check(problem(c.section("a")), "a");
        check(problem(c.texts("list")), "list");
        check(problem(c.ids("s")), "s");
        check(problem(c.flag("a")), "a");
    }

    #[test]
    fn long_values_are_shortened_in_errors() {
        let c = config(&format!(r#"{{"a": "{}"}}"#, "ü".repeat(10_000)));
        assert!(c.flag("a").unwrap_err().to_string().len() < 250);
    }

    #[test]
    fn configurations_are_objects() {
        let parsed = |text: &str| RawConfig::parse(Path::new("config.json"), text.as_bytes());
        let list = parsed("[1]");
        assert!(matches!(list, Err(ModelError::NotAnObject { found, .. }) if found == "[1]"));
        assert!(matches!(parsed("{"), Err(ModelError::Json { .. })));
    }

    #[test]
    fn activations_by_name() {
        let check = |name: &str, expect: Activation| {
            let c = config(&format!(r#"{{"hidden_act": "{name}"}}"#));
            assert_eq!(
                c.activation("hidden_act", "relu").unwrap(),
                expect,
                "{name}"
            );
        };
        check("silu", Activation::Silu);
        check("swish", Activation::Silu);
        check("gelu", Activation::Gelu);
        check("gelu_new", Activation::GeluTanh);
        check("gelu_fast", Activation::GeluTanh);
        check("gelu_pytorch_tanh", Activation::GeluTanh);
        check("relu", Activation::Relu);
        let c = config(r#"{"hidden_act": "xielu"}"#);
        let (key, problem) = problem(c.activation("hidden_act", "relu"));
        assert_eq!(key, "hidden_act");
        assert!(matches!(problem, KeyProblem::Unsupported(_)), "{problem:?}");
    }

    #[test]
    fn dtypes_by_either_key() {
        let check = |text: &str, expect: Option<DType>| {
            assert_eq!(config(text).dtype().unwrap(), expect, "{text}");
        };
        check(r#"{"torch_dtype": "float16"}"#, Some(DType::F16));
        check(
            r#"{"dtype": "bfloat16", "torch_dtype": "float16"}"#,
            Some(DType::Bf16),
        );
        check("{}", None);
    }
}
