//! What a model is: checkpoints as they lie on disk, families, synthetic shapes.
//!
//! [`Model::open`] takes a folder, or `shape:NAME`, and gives a [`Program`] with
//! the [`Weights`] it reads. A model knows nothing of sessions or devices' memory.

#![forbid(unsafe_code)]

mod builder;
pub mod chat;
pub mod checkpoint;
mod clock;
mod config;
mod describe;
mod error;
pub mod families;
mod generation;
pub mod hook;
mod liveness;
pub mod program;
mod pyjson;
mod rope;
pub mod safetensors;
pub mod shapes;
mod slow_file;
pub mod synthetic;
pub mod text;
mod weights;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use djinn_types::DType;

pub use chat::{ChatTemplate, Message};
pub use checkpoint::Checkpoint;
pub use config::RawConfig;
pub use describe::{DTypeShare, SegmentShare};
pub use error::ModelError;
pub use generation::Generation;
pub use hook::{HookError, Site};
pub use liveness::Stop;
pub use program::Program;
pub use shapes::Shape;
pub use text::{Decoder, Text};
pub use weights::{Extent, FileWeights, Origin, Weights};

/// A model, ready for an engine.
pub struct Model {
    /// What to call it: the folder's or shape's name.
    pub name: String,
    /// Its folder; `None` for a shape.
    pub path: Option<PathBuf>,
    /// What a pass does.
    pub program: Program,
    /// What it reads.
    pub weights: Arc<dyn Weights>,
    /// Its tokenizer, where it has one.
    pub text: Option<Arc<Text>>,
    /// How it wants to be sampled.
    pub generation: Generation,
    /// How chats become text, where it says so.
    pub chat: Option<Arc<ChatTemplate>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A program is thousands of lines; its family and sizes say what it is.
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("family", &self.program.family)
            .field("dims", &self.program.dims)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Opens `shape:NAME[?options]` or a folder.
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
            text: None,
            // A shape has no words, so no token of it ends a text.
            generation: Generation::default(),
            chat: None,
        })
    }

    fn open_folder(folder: &Path) -> Result<Model, ModelError> {
        let checkpoint = Checkpoint::open(folder)?;
        let mut program = families::build(checkpoint.config(), DType::F32)?;
        let text = Text::read(folder)?;
        let generation = Generation::read(folder, checkpoint.config(), text.as_ref())?;
        let tokens = text.as_ref().map(|text| text.special_tokens().clone());
        let chat = ChatTemplate::read(folder, tokens.unwrap_or_default())?;
        let weights = checkpoint.resolve(&mut program)?;
        Ok(Model {
            name: name_of(folder),
            path: Some(folder.to_owned()),
            program,
            weights: Arc::new(weights),
            text: text.map(Arc::new),
            generation,
            chat: chat.map(Arc::new),
        })
    }
}

/// The folder's own name, even of `.`.
fn name_of(folder: &Path) -> String {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match full.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => full.display().to_string(),
    }
}
