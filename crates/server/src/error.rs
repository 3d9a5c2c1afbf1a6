//! Errors of the server. Each error has an [`ErrorCode`]. The code selects the gRPC status, the
//! HTTP status and the label in metrics.

use std::{net::SocketAddr, time::Duration};

use djinn_engine::{EngineError, FailureKind, LimitKind, SessionFailure};
use djinn_hub::HubError;
use djinn_model::ModelError;
use djinn_weights::WeightsError;
use djinn_wire::{ERROR_CODE_METADATA, ErrorCode, TensorError};

use crate::auth::KeyFileError;

/// Error of a request or of the server's start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine rejected a request or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A checkpoint cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model cannot be found or downloaded.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A tensor in a message is inconsistent.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The key file is rejected.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// A request is malformed or impossible.
    #[error("{0}")]
    Invalid(String),
    /// A request is valid, but this server does not implement the requested feature.
    #[error("{0}")]
    Unsupported(String),
    /// A field of a request caused an error.
    #[error("{error}")]
    Field {
        /// Name of the field, with dots between levels.
        field: String,
        /// Error that the field caused.
        error: Box<ServeError>,
    },
    /// A server without keys would be reachable from other machines.
    #[error(
        "Refusing to listen on {0} without keys: other machines can reach it. Pass --keys FILE (see \
         docs/serving.md), listen on 127.0.0.1, or pass --insecure to accept every client"
    )]
    Insecure(SocketAddr),
    /// A request has no API key, or an unknown one.
    #[error("API key required: send the header 'authorization: Bearer KEY' with a valid key")]
    Unauthenticated,
    /// An API key lacks the permission for an operation.
    #[error("{0}")]
    Forbidden(String),
    /// No model, session or path of the given name exists.
    #[error("{0}")]
    NotFound(String),
    /// An operation conflicts with the current state of a session or a model.
    #[error("{0}")]
    Conflict(String),
    /// A request exceeds a size limit.
    #[error("{0}")]
    TooLarge(String),
    /// An owner exceeds its rate limit.
    #[error("Too many requests: retry in {} s", .retry.as_secs_f64().ceil())]
    Rate {
        /// Time until the next request is accepted.
        retry: Duration,
    },
    /// A queue or the number of concurrent requests is at its limit.
    #[error("{0}")]
    Busy(String),
    /// A deadline passed.
    #[error("{0}")]
    Timeout(String),
    /// Another client follows the session, or the session was closed.
    #[error("The session was closed, or another client follows it now")]
    Replaced,
    /// The server is shutting down, or a model is gone.
    #[error("{0}")]
    Unavailable(String),
    /// A session failed.
    #[error("{0}")]
    SessionFailed(SessionFailure),
    /// The server failed.
    #[error("{0}")]
    Internal(String),
}

impl ServeError {
    /// Adds the name of the request's field that caused the error.
    pub fn in_field(self, field: impl Into<String>) -> Self {
        ServeError::Field {
            field: field.into(),
            error: Box::new(self),
        }
    }

    /// Name of the request's field that caused the error, if known.
    pub fn field(&self) -> Option<String> {
        match self {
            ServeError::Field { field, .. } => Some(field.clone()),
            // The engine names its parameters like flags.
            ServeError::Engine(EngineError::Sampling { name, .. }) => Some(name.replace('-', "_")),
            _ => None,
        }
    }

    /// Machine-readable class of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            ServeError::Field { error, .. } => error.code(),
            ServeError::Engine(error) => engine_code(error),
            ServeError::Model(_)
            | ServeError::Tensor(_)
            | ServeError::Keys(_)
            | ServeError::Invalid(_)
            | ServeError::Insecure(_) => ErrorCode::Invalid,
            ServeError::Hub(_) | ServeError::NotFound(_) => ErrorCode::NotFound,
            ServeError::Unsupported(_) => ErrorCode::Unsupported,
            ServeError::Unauthenticated => ErrorCode::Unauthenticated,
            ServeError::Forbidden(_) => ErrorCode::Forbidden,
            ServeError::Conflict(_) => ErrorCode::Conflict,
            ServeError::TooLarge(_) => ErrorCode::TooLarge,
            ServeError::Rate { .. } | ServeError::Busy(_) => ErrorCode::Limited,
            ServeError::Timeout(_) => ErrorCode::Timeout,
            ServeError::Replaced => ErrorCode::Replaced,
            ServeError::Unavailable(_) => ErrorCode::Unavailable,
            ServeError::SessionFailed(failure) => match failure.kind {
                FailureKind::KvMemory => ErrorCode::Limited,
                _ => ErrorCode::Internal,
            },
            ServeError::Internal(_) => ErrorCode::Internal,
        }
    }
}

fn engine_code(error: &EngineError) -> ErrorCode {
    use EngineError as E;
    match error {
        E::Hook(_)
        | E::Edit { .. }
        | E::Parse(_)
        | E::Capture { .. }
        | E::NoStop(_)
        | E::EmptyPrompt
        | E::UnknownToken { .. }
        | E::PromptTooLong { .. }
        | E::Sampling { .. }
        | E::NoTokenizer { .. }
        | E::Unreadable(_)
        | E::Weights(WeightsError::WorkerCount { .. })
        | E::File { .. } => ErrorCode::Invalid,
        E::NoSession(_) => ErrorCode::NotFound,
        E::NotKept(_)
        | E::NotRecalled(_)
        | E::NothingToRun(_)
        | E::WrongStatus { .. }
        | E::MidPass(_)
        | E::OtherModel { .. }
        | E::Plan(_)
        | E::HostBudget { .. }
        | E::HostMemory { .. }
        | E::SpillNeedsHost { .. } => ErrorCode::Conflict,
        E::Limit { kind, .. } if !matches!(kind, LimitKind::Sessions | LimitKind::ProbeBytes) => {
            ErrorCode::Invalid
        }
        E::Quota { .. }
        | E::FairShare { .. }
        | E::Limit { .. }
        | E::OutOfPages(_)
        | E::NoRoom(_)
        | E::NoRoomToFork(_) => ErrorCode::Limited,
        E::Device(_)
        | E::Spill(_)
        | E::Wal(_)
        | E::NotWritten(_)
        | E::Workers { .. }
        | E::Weights(_) => ErrorCode::Internal,
    }
}

impl From<ServeError> for tonic::Status {
    fn from(error: ServeError) -> Self {
        let code = error.code();
        let mut status = tonic::Status::new(code.grpc(), error.to_string());
        let metadata = status.metadata_mut();
        if let Ok(name) = code.name().parse() {
            metadata.insert(ERROR_CODE_METADATA, name);
        }
        if let ServeError::Rate { retry } = error {
            let seconds = retry.as_secs_f64().ceil().to_string();
            if let Ok(seconds) = seconds.parse() {
                metadata.insert("retry-after", seconds);
            }
        }
        status
    }
}
