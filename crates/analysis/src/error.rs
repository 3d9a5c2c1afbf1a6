//! Errors of analyses.

use std::path::PathBuf;

use djinn_engine::EngineError;
use djinn_vectors::VectorsError;

/// Error of an analysis.
#[derive(Debug, thiserror::Error)]
pub enum AnalysisError {
    /// The server refused a request, or the connection failed.
    #[error(transparent)]
    Client(#[from] djinn_client::Error),
    /// A file of tensors cannot be read, or an edit cannot be parsed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A steering vector is not valid.
    #[error(transparent)]
    Vectors(#[from] VectorsError),
    /// The caller stopped the analysis.
    #[error("The analysis was stopped")]
    Stopped,
    /// A turn failed on the server.
    #[error("{0}")]
    TurnFailed(String),
    /// The model computed NaN.
    #[error("The model computed a value that is not a number: check the weights and the edits")]
    NotANumber,
    /// The server returned no tensor for a hook.
    #[error("The server returned no capture of {0}")]
    NotCaptured(String),
    /// A file has no tensor of this name.
    #[error("{}: the file has no tensor '{name}'; select one with #NAME", path.display())]
    NoTensor {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
    },
    /// A steering vector does not fit the model.
    #[error("{}: {reason}", path.display())]
    VectorMismatch {
        /// Path of the steering vector.
        path: PathBuf,
        /// Difference between the vector and the model.
        reason: String,
    },
    /// Two prompts of a patching experiment have different lengths.
    #[error(
        "--clean has {clean} tokens and --corrupt {corrupt}: both prompts need the same number \
         of tokens"
    )]
    PromptLengths {
        /// Tokens of the clean prompt.
        clean: usize,
        /// Tokens of the corrupt prompt.
        corrupt: usize,
    },
    /// An answer of a patching experiment has no tokens.
    #[error("{0} is empty: give the text of an answer")]
    EmptyAnswer(&'static str),
    /// The tokenizer has a token that the model has no logit for.
    #[error(
        "Token {token} of an answer is outside the model's vocabulary of {vocab} tokens; use another answer"
    )]
    UnknownAnswer {
        /// Id of the token.
        token: u32,
        /// Number of tokens that the model predicts.
        vocab: usize,
    },
    /// Both prompts of a patching experiment give the same answer.
    #[error(
        "Clean and corrupt prompt give the same logit difference ({0:+.3}), so no patch can restore it; use prompts with different answers"
    )]
    SameAnswer(f64),
}
