//! What tests share: the project's folders, and a small safetensors writer.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};

use djinn_model::Model;
use serde_json::{Map, Value, json};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folders with golden outputs, one a family.
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

/// A golden folder.
pub fn golden(family: &str) -> PathBuf {
    root().join("testdata/golden").join(family)
}

/// Opens a folder that must open.
pub fn open(folder: &Path) -> Model {
    Model::open(folder.to_str().expect("utf-8")).unwrap_or_else(|error| panic!("{error}"))
}

/// Why a folder does not open, with the folder's own path taken out.
pub fn refusal(folder: &Path) -> String {
    let path = folder.to_str().expect("utf-8");
    match Model::open(path) {
        Ok(_) => panic!("{path} opens"),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "one line: {message}");
            message.replace(path, "DIR")
        }
    }
}

/// A tensor for a file: name, dtype, shape, bytes of an element.
pub type Tensor<'a> = (&'a str, &'a str, &'a [usize], usize);

/// A safetensors file with these tensors, each filled with its number.
pub fn safetensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
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

/// A safetensors file with any header at all.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A checkpoint in a folder of its own: `config.json` and other files.
pub fn folder(config: &Value, files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    dir
}
