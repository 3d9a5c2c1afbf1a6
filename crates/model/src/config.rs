//! `config.json` and its like: typed getters whose errors name file and key.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use djinn_types::{Activation, DType};
use serde_json::{Map, Value};

use crate::ModelError;

/// No configuration comes near this; whoever sends more means harm.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// Limits on sizes. With them no product of sizes overflows, and a hostile
/// configuration cannot make a program that does not fit in memory.
pub(crate) mod limits {
    pub const BLOCKS: usize = 4096;
    pub const D_MODEL: usize = 1 << 20;
    pub const HEADS: usize = 1 << 16;
    pub const D_HEAD: usize = 1 << 16;
    pub const ATTENTION: usize = 1 << 24;
    pub const D_MLP: usize = 1 << 24;
    pub const VOCAB: usize = 1 << 26;
    pub const CONTEXT: usize = i32::MAX as usize;
    pub const EXPERTS: usize = 1024;
    /// Experts of all blocks together.
    pub const EXPERTS_ALL: usize = 1 << 16;
}

/// A JSON object with the file it came from. `null` equals a missing key.
#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    path: PathBuf,
    /// Put before keys in errors: `rope_parameters.`
    prefix: String,
    map: Map<String, Value>,
}

/// Reads a JSON file of any reasonable size.
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

/// How a value is shown in an error: short, on one line.
fn show(value: &Value) -> String {
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

    /// The same, of text that is already in memory; `path` is for errors.
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
                found: show(&other),
            }),
        }
    }

    /// The file this came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error about a key.
    pub fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Key {
            path: self.path.clone(),
            key: format!("{}{key}", self.prefix),
            problem: problem.into(),
        }
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> ModelError {
        self.error(key, format!("expected {expected}, found {}", show(found)))
    }

    /// Sets a key, as if the file had it.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.map.insert(key.to_owned(), value.into());
    }

    /// The whole object.
    pub fn to_json(&self) -> Value {
        Value::Object(self.map.clone())
    }

    /// The value of a key that is there and not `null`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there, even as `null`: some defaults differ between the
    /// two.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Whether the object is empty.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The first of several names for one thing that the file uses; the first of
    /// all when it uses none.
    pub fn spelling<'k>(&self, keys: &[&'k str]) -> &'k str {
        keys.iter()
            .find(|key| self.value(key).is_some())
            .unwrap_or(&keys[0])
    }

    /// A whole number.
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
                    .ok_or_else(|| self.wrong(key, "a whole number, 0 or more", value))
            })
            .transpose()
    }

    /// A size within a range.
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
            _ => Err(self.error(
                key,
                format!(
                    "expected {} to {}, found {found}",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// A finite number.
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

    /// A number above zero.
    pub fn positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.number(key)? {
            Some(found) if found <= 0.0 => {
                Err(self.error(key, format!("expected a number above 0, found {found}")))
            }
            found => Ok(found),
        }
    }

    /// The epsilon of a norm.
    pub fn epsilon(&self, key: &str, default: f64) -> Result<f32, ModelError> {
        let eps = self.number(key)?.unwrap_or(default);
        if (0.0..1.0).contains(&eps) {
            Ok(eps as f32)
        } else {
            Err(self.error(key, format!("expected 0 to 1, found {eps}")))
        }
    }

    /// True or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.value(key)
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| self.wrong(key, "true or false", value))
            })
            .transpose()
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.value(key)
            .map(|value| {
                value
                    .as_str()
                    .ok_or_else(|| self.wrong(key, "a string", value))
            })
            .transpose()
    }

    /// A list of strings.
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

    /// One token id or a list of them.
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
            .ok_or_else(|| self.wrong(key, "a token id or a list of them", value))
    }

    /// An object within the object; empty when missing.
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

    /// An elementwise function by the name transformers gives it.
    pub fn activation(&self, key: &str, default: &str) -> Result<Activation, ModelError> {
        match self.text(key)?.unwrap_or(default) {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" | "gelu_python" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh"
            | "gelu_accurate" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            other => Err(self.error(
                key,
                format!(
                    "activation '{other}' is not computed; known: silu, swish, gelu, gelu_new, \
                     gelu_fast, gelu_pytorch_tanh, relu"
                ),
            )),
        }
    }

    /// The dtype the configuration speaks of. Only synthetic shapes go by it: in a
    /// checkpoint each tensor's own dtype counts.
    pub fn dtype(&self) -> Result<Option<DType>, ModelError> {
        let key = self.spelling(&["dtype", "torch_dtype"]);
        Ok(self.text(key)?.and_then(dtype_named))
    }
}

/// A dtype by any of its names.
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
    use std::path::Path;

    use djinn_types::{Activation, DType};

    use super::RawConfig;
    use crate::ModelError;

    fn config(text: &str) -> RawConfig {
        RawConfig::parse(Path::new("config.json"), text.as_bytes()).unwrap()
    }

    fn message<T: std::fmt::Debug>(result: Result<T, ModelError>) -> String {
        result.unwrap_err().to_string()
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
    fn errors_name_file_and_key() {
        let c = config(r#"{"a": "x", "n": -1, "big": 99, "s": {"k": [1]}, "list": [1]}"#);
        let check = |found: String, expect: &str| assert_eq!(found, expect);
        check(
            message(c.integer("a")),
            "config.json: key 'a': expected a whole number, 0 or more, found \"x\"",
        );
        check(
            message(c.size("n", 1..=9)),
            "config.json: key 'n': expected a whole number, 0 or more, found -1",
        );
        check(
            message(c.size("big", 1..=9)),
            "config.json: key 'big': expected 1 to 9, found 99",
        );
        check(
            message(c.section("s").unwrap().text("k")),
            "config.json: key 's.k': expected a string, found [1]",
        );
        check(
            message(c.section("a")),
            "config.json: key 'a': expected an object, found \"x\"",
        );
        check(
            message(c.texts("list")),
            "config.json: key 'list': expected a list of strings, found [1]",
        );
        check(
            message(c.ids("s")),
            "config.json: key 's': expected a token id or a list of them, found {\"k\":[1]}",
        );
        check(
            message(c.flag("a")),
            "config.json: key 'a': expected true or false, found \"x\"",
        );
    }

    #[test]
    fn long_values_are_cut() {
        let c = config(&format!(r#"{{"a": "{}"}}"#, "ü".repeat(10_000)));
        assert!(message(c.flag("a")).len() < 250);
    }

    #[test]
    fn only_objects_are_configurations() {
        let path = Path::new("config.json");
        let parsed = |text: &str| message(RawConfig::parse(path, text.as_bytes()));
        assert_eq!(
            parsed("[1]"),
            "config.json: expected a JSON object, found [1]"
        );
        assert_eq!(
            parsed("{"),
            "config.json is not valid JSON: EOF while parsing an object at line 1 column 1"
        );
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
        assert!(message(c.activation("hidden_act", "relu")).contains("'xielu' is not computed"));
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
