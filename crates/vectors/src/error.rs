//! What can go wrong with a steering vector or its file.

use std::{io, path::PathBuf};

/// A vector that cannot be made, or a file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum VectorsError {
    /// No block has a direction.
    #[error("no directions: a steering vector has one for at least one block")]
    NoDirections,
    /// A block without a sound direction, or one the format has no place for.
    #[error("block {block}: {reason}")]
    Block {
        /// Which block.
        block: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A part of a file that says something it should not.
    #[error("{what} '{name}' {reason}")]
    Entry {
        /// `tensor` or `metadata`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Bytes that are not GGUF of a kind that is read.
    #[error("GGUF at byte {at}: {reason}")]
    Gguf {
        /// Where.
        at: usize,
        /// What is wrong there.
        reason: String,
    },
    /// Neither of the formats.
    #[error("neither GGUF nor safetensors: {0}")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// A file that no steering vector needs.
    #[error("too large for a steering vector: is this a whole model?")]
    TooLarge,
    /// A name that does not say what to write.
    #[error("the name does not say the format: end it in .safetensors or .gguf")]
    Extension,
    /// Something the system would not do.
    #[error("cannot {doing}: {source}")]
    System {
        /// `read` or `write`.
        doing: &'static str,
        /// As the system put it.
        source: io::Error,
    },
    /// Any of these, with a file.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<VectorsError>,
    },
}

impl VectorsError {
    pub(crate) fn block(block: usize, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        VectorsError::Block { block, reason }
    }

    pub(crate) fn entry(what: &'static str, name: &str, reason: impl Into<String>) -> Self {
        let (name, reason) = (name.to_owned(), reason.into());
        VectorsError::Entry { what, name, reason }
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| VectorsError::System { doing, source }
    }
}
