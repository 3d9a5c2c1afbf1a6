//! Steering vectors: one direction for each of some blocks of a model, and their files.
//!
//! A [`Steering`] is made from rows that were captured for two sets of prompts, or read from a
//! file. The direction of block `b` belongs to the hook `blocks.{b}.hook_resid_post`: it is
//! added to the residual behind that block.
//!
//! Files are safetensors, or GGUF as llama.cpp has its control vectors. Reading goes by what a
//! file is, writing by its name.
//!
//! - A `Steering` that exists is sound: at least one direction, all of one width, all finite.
//! - A number read from a file is compared with the file's size before memory is taken for it.
//! - The same vector gives the same bytes, and a file appears under its name only when it is
//!   whole.

#![forbid(unsafe_code)]

mod error;
mod files;
mod gguf;
mod steering;
mod tensors;

pub use error::VectorsError;
pub use files::Format;
pub use steering::{Method, Rows, Steering};
