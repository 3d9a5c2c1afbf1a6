//! Helpers of the tests: paths of the repository, and a small safetensors writer.
#![allow(dead_code, reason = "each test file uses only some helpers")]

use std::path::{Path, PathBuf};

use djinn_model::{KeyProblem, Model, ModelError};
use serde_json::{Map, Value, json};

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of the folders with golden outputs, at least one for each family.
pub const GOLDEN: [&str; 10] = [
    "falcon180b",
    "falcon7b",
    "gpt2",
    "gptj",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
];

/// Returns the path of a golden folder.
pub fn golden(family: &str) -> PathBuf {
    root().join("testdata/golden").join(family)
}

/// Opens a model folder that must be valid.
pub fn open(folder: &Path) -> Model {
    Model::open(folder.to_str().expect("utf-8")).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the error of opening a model folder; its message must be one line.
pub fn open_error(folder: &Path) -> ModelError {
    let path = folder.to_str().expect("utf-8");
    let error = Model::open(path).expect_err("the folder is invalid");
    let message = error.to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    error
}

/// Returns file, key and problem of an error about a configuration key.
pub fn key_problem(error: ModelError) -> (String, String, KeyProblem) {
    match error {
        ModelError::Key { path, key, problem } => (file_name(&path), key, problem),
        other => panic!("not an error of a key: {other}"),
    }
}

/// Returns the last component of a path.
pub fn file_name(path: &Path) -> String {
    let name = path.file_name().expect("a file");
    name.to_string_lossy().into_owned()
}

/// A tensor for a test file: name, dtype, shape, bytes of an element.
pub type TestTensor<'a> = (&'a str, &'a str, &'a [usize], usize);

/// Returns a safetensors file with the given tensors. Tensor `i` is filled with bytes `i + 1`.
pub fn safetensors(tensors: &[TestTensor<'_>]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for (i, (name, dtype, shape, bytes)) in tensors.iter().enumerate() {
        let start = data.len();
        data.resize(start + shape.iter().product::<usize>() * bytes, i as u8 + 1);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    file(&Value::Object(header).to_string(), &data)
}

/// Returns a safetensors file with the given header and data, valid or not.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Writes a model folder with `config.json` and other files.
pub fn folder(config: &Value, files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    dir
}
