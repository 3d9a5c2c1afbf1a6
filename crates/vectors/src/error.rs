//! Errors of steering vectors and their files.

use std::{io, path::PathBuf};

/// Reason why a steering vector cannot be computed, read or written.
#[derive(Debug, thiserror::Error)]
pub enum VectorsError {
    /// The vector has no direction.
    #[error("the steering vector has no directions; it needs a direction for at least one block")]
    NoDirections,
    /// The direction of a block is invalid, or the file format cannot store it.
    #[error("block {block}: {problem}")]
    Block {
        /// Block number.
        block: usize,
        /// Problem with the direction.
        problem: BlockProblem,
    },
    /// A tensor or a metadata entry of a file is invalid.
    #[error("{what} '{name}' {problem}")]
    Entry {
        /// `tensor` or `metadata`.
        what: &'static str,
        /// Name of the tensor or key of the metadata.
        name: String,
        /// Problem with the entry.
        problem: EntryProblem,
    },
    /// The bytes of a GGUF file are malformed.
    #[error("GGUF at byte {at}: {problem}")]
    Gguf {
        /// Offset in the file.
        at: usize,
        /// Problem at this offset.
        problem: GgufProblem,
    },
    /// The file is neither GGUF nor safetensors.
    #[error("the file is neither GGUF nor safetensors: {0}")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// The file is larger than any steering vector.
    #[error(
        "the file is larger than 256 MiB, the limit for a steering vector; check that it is not a whole model"
    )]
    TooLarge,
    /// The file name does not have the extension of a supported format.
    #[error("the file name has an unknown extension; use .safetensors or .gguf")]
    Extension,
    /// An operation of the file system failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// `read` or `write`.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// An error about a file, with the path of the file.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error without the path.
        source: Box<VectorsError>,
    },
}

/// Problem with the direction of one block.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BlockProblem {
    /// A row has no values.
    #[error("a row has no values; every row needs the width of the model")]
    Empty,
    /// The width of a row differs from the width of the other rows.
    #[error(
        "a row has {found} values, but others have {expected}; capture all rows from one model"
    )]
    Width {
        /// Width of the row.
        found: usize,
        /// Width of the other rows.
        expected: usize,
    },
    /// A value is infinite or not a number.
    #[error("a value is {value}: all values must be finite")]
    NotFinite {
        /// Value that is not finite.
        value: f32,
    },
    /// One of the two sets of prompts has no rows.
    #[error("the {set} set has no rows: capture some, or leave the block out")]
    NoRows {
        /// `positive` or `negative`.
        set: &'static str,
    },
    /// Both sets of prompts have the same mean.
    #[error("both sets have the same mean: use prompts that differ, or leave the block out")]
    SameMean,
    /// The file has two directions for the block.
    #[error("the file has two directions for this block; remove one")]
    Duplicate,
    /// GGUF cannot store a direction for block 0.
    #[error(
        "GGUF cannot store this block, because llama.cpp never steers its layer 0: leave the block out, or write .safetensors"
    )]
    NotInGguf,
}

/// Problem with a tensor or a metadata entry of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// The name of a tensor does not name a direction.
    #[error("is not a direction: expected a name like {example}")]
    NotADirection {
        /// Valid name.
        example: &'static str,
    },
    /// The tensor is not one row.
    #[error("has shape {found:?}, expected one row")]
    Shape {
        /// Shape in the file.
        found: Vec<u64>,
    },
    /// The number of dimensions is out of range.
    #[error("has {found} dimensions, expected 1 to {limit}")]
    Dimensions {
        /// Number of dimensions in the file.
        found: u32,
        /// Largest number of dimensions.
        limit: u32,
    },
    /// The element type is not supported.
    #[error("has type {found}, expected {expected}")]
    ElementType {
        /// Type in the file.
        found: String,
        /// Supported types.
        expected: &'static str,
    },
    /// The tensor does not start at the end of the previous tensor.
    #[error("starts at offset {found}, expected {expected}")]
    Offset {
        /// Offset in the file.
        found: u64,
        /// End of the previous tensors.
        expected: u64,
    },
    /// A newer Djinn wrote the file.
    #[error("is version {found}, but this djinn reads version {supported}: update djinn")]
    Version {
        /// Version in the file.
        found: String,
        /// Version that this program reads.
        supported: &'static str,
    },
    /// The GGUF file holds something other than a control vector.
    #[error("is '{found}', expected '{expected}'")]
    Architecture {
        /// Architecture in the file.
        found: String,
        /// Architecture of control vectors.
        expected: &'static str,
    },
    /// The value is not text.
    #[error("is not text")]
    NotText,
    /// The alignment is not a power of two.
    #[error("is not a power of two")]
    Alignment,
}

/// Problem with the bytes of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufProblem {
    /// The version is not supported.
    #[error(
        "version {found:#x} is not supported; convert the file to version 2 or 3 in little-endian order"
    )]
    Version {
        /// Version in the file.
        found: u32,
    },
    /// The file ends early.
    #[error(
        "the file is truncated: expected {needed} more bytes, found {left}; copy the file again"
    )]
    Truncated {
        /// Number of bytes that must follow.
        needed: u64,
        /// Number of bytes that do follow.
        left: usize,
    },
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
    /// Arrays are nested too deeply.
    #[error("arrays are nested more than 4 levels deep")]
    TooDeep,
    /// A metadata value has an unknown type.
    #[error("a metadata value has the unknown type {found}")]
    UnknownType {
        /// Type in the file.
        found: u32,
    },
}

impl VectorsError {
    pub(crate) fn block(block: usize, problem: BlockProblem) -> Self {
        VectorsError::Block { block, problem }
    }

    pub(crate) fn entry(what: &'static str, name: &str, problem: EntryProblem) -> Self {
        let name = name.to_owned();
        VectorsError::Entry {
            what,
            name,
            problem,
        }
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| VectorsError::System { doing, source }
    }
}
