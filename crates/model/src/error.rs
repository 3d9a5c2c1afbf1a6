//! Errors of models, checkpoints, tokenizers and chat templates.

use std::io;
use std::path::PathBuf;

/// Reason why a model cannot be opened or used. Every message is one line that names the file,
/// and the key or tensor in it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The path of a model is not a folder.
    #[error("no model at {}: the folder does not exist; check the path", path.display())]
    NoFolder {
        /// Path, as given.
        path: PathBuf,
    },
    /// A model folder lacks a required file.
    #[error("{}: the folder has no {what}; add the file, or download the model again", folder.display())]
    NoFile {
        /// Model folder.
        folder: PathBuf,
        /// Name of the missing file.
        what: &'static str,
    },
    /// The weights are stored in an unsupported file format.
    #[error("{}: the weights are in {found}, a format that is not supported; {advice}", folder.display())]
    Format {
        /// Model folder.
        folder: PathBuf,
        /// Name of the file with the weights.
        found: String,
        /// Action that solves the problem.
        advice: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is not valid JSON.
    #[error("{} is not valid JSON: {source}; download the file again", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// A JSON file holds a value other than an object.
    #[error("{}: expected a JSON object, found {found}", path.display())]
    NotAnObject {
        /// Path of the file.
        path: PathBuf,
        /// Value that the file holds.
        found: String,
    },
    /// The value of a key in a JSON file cannot be used.
    #[error("{}: key '{key}': {problem}", path.display())]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Key, with dots between levels.
        key: String,
        /// Problem with the value.
        problem: KeyProblem,
    },
    /// The header of a safetensors file is malformed.
    #[error("{}: bad safetensors header: {problem}; download the file again", path.display())]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the header.
        problem: HeaderProblem,
    },
    /// A safetensors header gives a tensor an impossible place in the file.
    #[error("{}: tensor '{tensor}': {problem}; download the file again", path.display())]
    Offsets {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Problem with the offsets.
        problem: OffsetProblem,
    },
    /// The index of a sharded checkpoint is malformed.
    #[error("{}: {problem}; download the model again", path.display())]
    Index {
        /// Path of the index.
        path: PathBuf,
        /// Problem with the index.
        problem: IndexProblem,
    },
    /// No file of the checkpoint holds a tensor that the model needs.
    #[error("tensor '{tensor}' is missing from {files}; download the model again")]
    NoTensor {
        /// Name of the tensor.
        tensor: String,
        /// Files of the checkpoint.
        files: String,
    },
    /// The shape of a stored tensor does not match the configuration.
    #[error("{}: tensor '{tensor}': expected shape {expected:?}, found {found:?}; use the config.json of this checkpoint", path.display())]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape according to the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor has a dtype that Djinn does not compute with.
    #[error("{}: tensor '{tensor}': dtype {found} is not supported; use F32, F16 or BF16", path.display())]
    DType {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Dtype in the file.
        found: String,
    },
    /// A `shape:` reference names no known shape.
    #[error("unknown shape '{name}'; known shapes: {known}")]
    UnknownShape {
        /// Name, as given.
        name: String,
        /// Names of all shapes.
        known: String,
    },
    /// An option of a `shape:` reference cannot be used.
    #[error("shape option '{option}': expected {expected}")]
    ShapeOption {
        /// Option, as given.
        option: String,
        /// Values or options that are accepted.
        expected: String,
    },
    /// A tokenizer cannot be loaded, or cannot process a text.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// Path of the tokenizer's file.
        path: PathBuf,
        /// Error of the tokenizer.
        problem: String,
    },
    /// A chat template cannot be parsed or rendered.
    #[error("{}: chat template: {problem}", path.display())]
    Template {
        /// Path of the file with the template.
        path: PathBuf,
        /// Error of the template engine.
        problem: String,
    },
}

/// Problem with the value of a configuration key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// A required key is missing.
    #[error("the key is missing")]
    Missing,
    /// The value has the wrong type or is out of range.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// Accepted values.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// The value asks for a feature that Djinn does not have.
    #[error("{0}")]
    Unsupported(String),
    /// The value contradicts other values of the configuration.
    #[error("{0}")]
    Inconsistent(String),
}

/// Problem with the header of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// The file is shorter than the length field of a header.
    #[error("the file has {file_bytes} bytes, too few for a header")]
    NoLength {
        /// Size of the file.
        file_bytes: u64,
    },
    /// The header is longer than the limit.
    #[error("the header has {bytes} bytes, but the limit is {limit}")]
    TooLong {
        /// Size of the header, according to the file.
        bytes: u64,
        /// Largest size that is accepted.
        limit: u64,
    },
    /// The header ends beyond the end of the file.
    #[error(
        "the header has {bytes} bytes, but the file has only {file_bytes}; the file is truncated"
    )]
    Truncated {
        /// Size of the header, according to the file.
        bytes: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// The caller gave fewer bytes than the header has.
    #[error("the caller gave fewer bytes than the header has")]
    Partial,
    /// The header is not valid JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// The header is JSON, but not a table of tensors.
    #[error("{0}")]
    Malformed(String),
    /// The file continues after its last tensor.
    #[error("the file has {bytes} bytes after its last tensor")]
    TrailingBytes {
        /// Number of bytes after the last tensor.
        bytes: u64,
    },
}

/// Problem with the place of a tensor in a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffsetProblem {
    /// The tensor ends before it starts.
    #[error("the tensor ends at offset {end}, before its start at {start}")]
    Reversed {
        /// First byte, according to the header.
        start: u64,
        /// End, according to the header.
        end: u64,
    },
    /// The tensor ends beyond the end of the file.
    #[error(
        "the tensor ends at offset {end}, but the file has only {data_bytes} bytes of data; the file is truncated"
    )]
    BeyondFile {
        /// End, according to the header.
        end: u64,
        /// Size of the data after the header.
        data_bytes: u64,
    },
    /// The tensor overlaps the one before it.
    #[error("the tensor starts at offset {start}, inside a tensor that ends at {previous_end}")]
    Overlap {
        /// First byte, according to the header.
        start: u64,
        /// End of the previous tensor.
        previous_end: u64,
    },
    /// Bytes between two tensors belong to none.
    #[error("the tensor starts at offset {start} and leaves a hole from {previous_end}")]
    Hole {
        /// First byte, according to the header.
        start: u64,
        /// End of the previous tensor.
        previous_end: u64,
    },
    /// The offsets do not match shape and dtype.
    #[error("shape {shape:?} of {dtype} takes {expected} bytes, but the offsets span {found}")]
    Size {
        /// Shape, according to the header.
        shape: Vec<usize>,
        /// Dtype, according to the header.
        dtype: String,
        /// Size that shape and dtype give.
        expected: u64,
        /// Size that the offsets give.
        found: u64,
    },
    /// The number of elements does not fit in 64 bits.
    #[error("shape {shape:?} has more elements than 64 bits can count")]
    Overflow {
        /// Shape, according to the header.
        shape: Vec<usize>,
    },
    /// The header lists the tensor twice.
    #[error("the header lists the tensor twice")]
    Duplicate,
}

/// Problem with the index of a sharded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexProblem {
    /// The index has no `weight_map` object.
    #[error("the index has no object 'weight_map' from tensors to shards")]
    NoWeightMap,
    /// The `weight_map` names no tensor.
    #[error("'weight_map' names no tensor")]
    EmptyWeightMap,
    /// The shard of a tensor is not a string.
    #[error("tensor '{tensor}': expected a file name, found {found}")]
    NotAFileName {
        /// Name of the tensor.
        tensor: String,
        /// Value in the index.
        found: String,
    },
    /// The name of a shard leads out of the model folder.
    #[error("tensor '{tensor}': shard '{shard}' is outside the model folder")]
    OutsideFolder {
        /// Name of the tensor.
        tensor: String,
        /// Name of the shard.
        shard: String,
    },
    /// The model folder lacks a shard.
    #[error("shard '{shard}' is not in the model folder")]
    MissingShard {
        /// Name of the shard.
        shard: String,
    },
    /// A shard lacks a tensor that the index places there.
    #[error("tensor '{tensor}' is missing from shard '{shard}', where the index lists it")]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the shard.
        shard: String,
    },
}
