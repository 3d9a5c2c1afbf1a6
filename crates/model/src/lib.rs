//! Models: checkpoints on disk, model families, tokenizers and synthetic shapes.
//!
//! [`Model::open`] opens a folder or `shape:NAME` and returns a [`Program`] with its [`Weights`].
//! This crate knows nothing of sessions, devices or device memory.

#![forbid(unsafe_code)]

mod config;
mod error;
pub mod families;
pub mod program;
pub mod shapes;
mod tokenizer;
mod weights;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use djinn_types::DType;

pub use config::{Generation, RawConfig};
pub use error::{HeaderProblem, IndexProblem, KeyProblem, ModelError, OffsetProblem};
pub use program::hook::{self, HookError};
pub use program::{DTypeShare, Program, SegmentShare, Site, SiteLayout, StopPoint};
pub use program::{FusedOp, FusedProjection, Fusion, Fusions, WeightResidency, fuse};
pub use shapes::Shape;
pub use tokenizer::{ChatTemplate, Decoder, Message, Tokenizer};
pub use weights::safetensors;
pub use weights::{CheckpointFolder, Extent, FileWeights, Origin, SyntheticWeights, Weights};

/// An opened model: its program, weights, tokenizer and settings.
pub struct Model {
    /// Name of the folder or shape.
    pub name: String,
    /// Path of the folder; `None` for a shape.
    pub path: Option<PathBuf>,
    /// Operations of a pass.
    pub program: Program,
    /// Source of the weights.
    pub weights: Arc<dyn Weights>,
    /// Tokenizer, if the model has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Sampling settings that the model recommends.
    pub generation: Generation,
    /// Chat templates, if the model has any.
    pub chat: Option<Arc<ChatTemplate>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A program has thousands of operations; family and sizes are enough to identify it.
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("family", &self.program.family)
            .field("dims", &self.program.dims)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Opens a model folder, or a shape given as `shape:NAME[?options]`.
    pub fn open(reference: &str) -> Result<Model, ModelError> {
        match reference.strip_prefix(shapes::PREFIX) {
            Some(shape) => Self::open_shape(shape),
            None => Self::open_folder(Path::new(reference)),
        }
    }

    fn open_shape(reference: &str) -> Result<Model, ModelError> {
        let shape = Shape::parse(reference)?;
        let (program, weights) = shape.build()?;
        Ok(Model {
            name: shape.name.to_owned(),
            path: None,
            program,
            weights: Arc::new(weights),
            tokenizer: None,
            // A shape has no tokenizer, so no token ends a text.
            generation: Generation::default(),
            chat: None,
        })
    }

    fn open_folder(folder: &Path) -> Result<Model, ModelError> {
        let checkpoint = CheckpointFolder::open(folder)?;
        let mut program = families::build(checkpoint.config(), DType::F32)?;
        let tokenizer = Tokenizer::read(folder)?;
        let eos = tokenizer.as_ref().and_then(Tokenizer::eos);
        let generation = Generation::read(folder, checkpoint.config(), eos)?;
        let tokens = tokenizer.as_ref().map(|t| t.special_tokens().clone());
        let chat = ChatTemplate::read(folder, tokens.unwrap_or_default())?;
        let weights = checkpoint.resolve(&mut program)?;
        Ok(Model {
            name: name_of(folder),
            path: Some(folder.to_owned()),
            program,
            weights: Arc::new(weights),
            tokenizer: tokenizer.map(Arc::new),
            generation,
            chat: chat.map(Arc::new),
        })
    }
}

/// Returns the name of a folder; a path such as `.` is resolved first.
fn name_of(folder: &Path) -> String {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match full.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => full.display().to_string(),
    }
}
