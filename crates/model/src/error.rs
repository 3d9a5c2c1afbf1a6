//! What can be wrong with a model, in one enum.

use std::io;
use std::path::PathBuf;

/// Why a model could not be opened or used. Each message is one line that names
/// the file, and the key or tensor in it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The reference names no folder.
    #[error("no model at {}: there is no such folder", path.display())]
    NoFolder {
        /// As asked.
        path: PathBuf,
    },
    /// A folder without a file it needs.
    #[error("{}: no {what}", folder.display())]
    NoFile {
        /// Where.
        folder: PathBuf,
        /// What is not there.
        what: &'static str,
    },
    /// Weights in a format that is not read.
    #[error("{}: the weights are {found}, which is not read; {advice}", folder.display())]
    Format {
        /// Where.
        folder: PathBuf,
        /// The file that was found.
        found: String,
        /// What would make it possible.
        advice: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that should be JSON is not.
    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// A file that should hold a JSON object holds another value.
    #[error("{}: expected a JSON object, found {found}", path.display())]
    NotAnObject {
        /// Which file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// A key whose value cannot be used.
    #[error("{}: key '{key}': {problem}", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// The key, with dots between levels.
        key: String,
        /// What was expected and what was found.
        problem: String,
    },
    /// A safetensors header that is malformed.
    #[error("{}: bad safetensors header: {problem}", path.display())]
    Header {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A tensor whose place in its file makes no sense.
    #[error("{}: tensor '{tensor}': {problem}", path.display())]
    Place {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        tensor: String,
        /// What is wrong.
        problem: String,
    },
    /// A shard index that does not hold together.
    #[error("{}: {problem}", path.display())]
    Index {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A tensor the model needs is in none of its files.
    #[error("tensor '{tensor}' is missing from {files}")]
    NoTensor {
        /// Which tensor.
        tensor: String,
        /// Where it was looked for.
        files: String,
    },
    /// A tensor of another shape than the configuration says.
    #[error("{}: tensor '{tensor}': expected shape {expected:?}, found {found:?}", path.display())]
    Shape {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        tensor: String,
        /// From the configuration.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// A tensor of a type that is not computed.
    #[error("{}: tensor '{tensor}': dtype {found} is not computed, only F32, F16 and BF16", path.display())]
    DType {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        tensor: String,
        /// In the file.
        found: String,
    },
    /// A `shape:` reference that names no shape.
    #[error("unknown shape '{name}'; known: {known}")]
    UnknownShape {
        /// As asked.
        name: String,
        /// All there are.
        known: String,
    },
    /// A `shape:` reference with an option that cannot be used.
    #[error("shape option '{option}': {problem}")]
    ShapeOption {
        /// As asked.
        option: String,
        /// What was expected.
        problem: String,
    },
    /// A tokenizer that could not be loaded or used.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A chat template that does not parse or render.
    #[error("{}: chat template: {problem}", path.display())]
    Template {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}
