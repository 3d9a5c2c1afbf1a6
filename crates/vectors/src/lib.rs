//! Steering vectors: a direction for one or more blocks of a model, and the files that store them.
//!
//! A [`Steering`] is computed from rows captured for two sets of prompts, or read from a file.
//! The direction of block `b` belongs to the hook `blocks.{b}.hook_resid_post`: it is added to
//! the residual after that block.
//!
//! Files are safetensors, or GGUF in the format of llama.cpp's control vectors. The content of a
//! file decides how it is read; the extension decides how it is written.
//!
//! - Every `Steering` is valid: at least one direction, all of one width, all values finite.
//! - Sizes in a file are checked against the size of the file before memory is allocated.
//! - Equal vectors give equal bytes, and a file is written atomically.

#![forbid(unsafe_code)]

mod block_number;
mod error;
mod files;
mod gguf;
mod steering;
mod tensors;

pub use error::{BlockProblem, EntryProblem, GgufProblem, VectorsError};
pub use files::Format;
pub use steering::{Method, Steering, VectorRows};
