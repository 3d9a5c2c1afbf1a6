//! Weights of a model: checkpoints in safetensors files, or synthetic numbers.

mod checkpoint;
mod files;
pub mod safetensors;
mod slow_file;
mod source;
mod synthetic;

pub use checkpoint::CheckpointFolder;
pub use files::FileWeights;
pub use source::{Extent, Origin, Weights};
pub use synthetic::SyntheticWeights;
