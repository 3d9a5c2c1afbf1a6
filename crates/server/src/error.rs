//! Errors of the server. Each error has an [`ErrorCode`]. The code selects the gRPC status, the
//! HTTP status and the label in metrics.

use std::{net::SocketAddr, time::Duration};

use djinn_engine::{EngineError, FailureKind, LimitKind, ParsedText, SessionFailure};
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
    /// The body or message of a request exceeds a size limit.
    #[error("{0}")]
    TooLarge(String),
    /// A prompt, or a prompt with the tokens to generate, does not fit the context of the model.
    #[error("{0}")]
    ContextLength(String),
    /// A client sends its request too slowly.
    #[error("{0}")]
    SlowClient(String),
    /// The body of a request is not of the type that the path accepts.
    #[error("{0}")]
    ContentType(String),
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
    /// The device or the engine is lost, so the process ends and has to be started again.
    #[error("{0}")]
    Fatal(String),
    /// The server failed.
    #[error("{0}")]
    Internal(String),
}

/// Time after which a client may retry a request that a full queue or a quota rejected.
const RETRY_LIMITED: Duration = Duration::from_secs(2);
/// Time after which a client may retry a request to a server or a model that is not available.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(5);

impl ServeError {
    /// Creates the error of a full queue.
    pub fn busy(message: impl Into<String>) -> Self {
        ServeError::Busy(message.into())
    }

    /// Creates the error of a server or a model that does not serve now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        ServeError::Unavailable(message.into())
    }

    /// Creates the error of a field whose value is out of range.
    pub fn out_of_range(field: &str, message: impl Into<String>) -> Self {
        ServeError::Invalid(message.into()).in_field(field)
    }

    /// Time after which a retry of the request may succeed; `None` if a retry cannot succeed.
    pub fn retry_after(&self) -> Option<Duration> {
        match (self, self.code()) {
            (ServeError::Rate { retry }, _) => Some(*retry),
            (_, ErrorCode::Limited) => Some(RETRY_LIMITED),
            (_, ErrorCode::Unavailable) => Some(RETRY_UNAVAILABLE),
            _ => None,
        }
    }

    /// HTTP status of the error.
    pub fn http_status(&self) -> u16 {
        match self {
            ServeError::Field { error, .. } => error.http_status(),
            ServeError::SlowClient(_) => 408,
            ServeError::ContentType(_) => 415,
            error => error.code().http_status(),
        }
    }

    /// Whether a prompt does not fit the context, which clients of OpenAI's API handle by its own code.
    pub fn is_context_length(&self) -> bool {
        match self {
            ServeError::Field { error, .. } => error.is_context_length(),
            ServeError::ContextLength(_) => true,
            ServeError::Engine(error) => matches!(
                error,
                EngineError::PromptTooLong { .. }
                    | EngineError::Limit {
                        kind: LimitKind::Context | LimitKind::ModelContext,
                        ..
                    }
            ),
            _ => false,
        }
    }

    /// Message for clients: paths of the server's files are cut to their last part. If the message differs
    /// from the error, the log gets the whole error.
    pub fn public_message(&self) -> String {
        let whole = self.to_string();
        let public = hide_paths(&whole);
        if public != whole {
            tracing::warn!(error = whole, "error with a path of this server");
        }
        public
    }

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
            ServeError::Engine(error) => engine_field(error).map(str::to_owned),
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
            | ServeError::ContextLength(_)
            | ServeError::ContentType(_)
            | ServeError::Insecure(_) => ErrorCode::Invalid,
            ServeError::Hub(_) | ServeError::NotFound(_) => ErrorCode::NotFound,
            ServeError::Unsupported(_) => ErrorCode::Unsupported,
            ServeError::Unauthenticated => ErrorCode::Unauthenticated,
            ServeError::Forbidden(_) => ErrorCode::Forbidden,
            ServeError::Conflict(_) => ErrorCode::Conflict,
            ServeError::TooLarge(_) => ErrorCode::TooLarge,
            ServeError::Rate { .. } | ServeError::Busy(_) => ErrorCode::Limited,
            ServeError::Timeout(_) | ServeError::SlowClient(_) => ErrorCode::Timeout,
            ServeError::Replaced => ErrorCode::Replaced,
            ServeError::Unavailable(_) => ErrorCode::Unavailable,
            ServeError::SessionFailed(failure) => match failure.kind {
                FailureKind::KvMemory => ErrorCode::Limited,
                _ => ErrorCode::Internal,
            },
            ServeError::Internal(_) | ServeError::Fatal(_) => ErrorCode::Internal,
        }
    }
}

/// Field of a request that most likely caused an error of the engine.
fn engine_field(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::Edit { .. } => Some("djinn.edits"),
        EngineError::Capture { .. } => Some("djinn.captures"),
        EngineError::Limit {
            kind: LimitKind::Context,
            ..
        } => Some("max_tokens"),
        EngineError::PromptTooLong { .. }
        | EngineError::EmptyPrompt
        | EngineError::UnknownToken { .. } => Some("prompt"),
        EngineError::Parse(error) => Some(match error.kind {
            ParsedText::Edit => "djinn.edits",
            ParsedText::Capture => "djinn.captures",
            ParsedText::Breakpoint => "breakpoints",
        }),
        _ => None,
    }
}

/// Cuts absolute paths in a text to their last part.
fn hide_paths(text: &str) -> String {
    let mut public = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let (before, from) = rest.split_at(start);
        public.push_str(before);
        let begins_word = |c: char| c.is_whitespace() || "'\"(=,".contains(c);
        let is_path = public.chars().next_back().is_none_or(begins_word);
        let ends_path = |c: char| c.is_whitespace() || "'\"),:;".contains(c);
        let path = &from[..from.find(ends_path).unwrap_or(from.len())];
        let has_folder = path.trim_end_matches('/').matches('/').count() > 1;
        match path.trim_end_matches('/').rsplit_once('/') {
            Some((_, last)) if is_path && has_folder => public.push_str(last),
            _ => public.push_str(path),
        }
        rest = &from[path.len()..];
    }
    public.push_str(rest);
    public
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
        | E::Weights(WeightsError::WorkerCount { .. }) => ErrorCode::Invalid,
        E::NoSession(_) => ErrorCode::NotFound,
        E::NotKept(_)
        | E::NotRecalled(_)
        | E::NothingToRun(_)
        | E::WrongStatus { .. }
        | E::MidPass(_)
        | E::OtherModel { .. }
        | E::OtherKvDtype { .. }
        | E::Plan(_)
        | E::ContextMemory(_)
        | E::HostBudget { .. }
        | E::HostMemory { .. }
        | E::SpillNeedsHost { .. }
        | E::WindowNeedsHost { .. } => ErrorCode::Conflict,
        E::Limit { kind, .. } if !matches!(kind, LimitKind::Sessions | LimitKind::ProbeBytes) => {
            ErrorCode::Invalid
        }
        E::Quota { .. }
        | E::FairShare { .. }
        | E::Limit { .. }
        | E::OutOfPages(_)
        | E::SessionTooLarge { .. }
        | E::NoRoom(_)
        | E::NoRoomToSwap { .. }
        | E::NoRoomToFork(_) => ErrorCode::Limited,
        E::Device(_)
        | E::Spill(_)
        | E::Wal(_)
        | E::NotWritten(_)
        | E::File { .. }
        | E::Workers { .. }
        | E::Weights(_) => ErrorCode::Internal,
    }
}

impl From<ServeError> for tonic::Status {
    fn from(error: ServeError) -> Self {
        let code = error.code();
        let mut status = tonic::Status::new(code.grpc(), error.public_message());
        let metadata = status.metadata_mut();
        if let Ok(name) = code.name().parse() {
            metadata.insert(ERROR_CODE_METADATA, name);
        }
        if let Some(retry) = error.retry_after() {
            let seconds = retry.as_secs_f64().ceil().to_string();
            if let Ok(seconds) = seconds.parse() {
                metadata.insert("retry-after", seconds);
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::{ServeError, hide_paths};
    use crate::ErrorCode;

    #[test]
    fn messages_name_files_without_their_folders() {
        for (text, public) in [
            (
                "/srv/models/x/config.json: no such file",
                "config.json: no such file",
            ),
            ("cannot open '/a/b/c' now", "cannot open 'c' now"),
            ("see https://example.com/a/b", "see https://example.com/a/b"),
            ("org/name and 1/2 and /v1", "org/name and 1/2 and /v1"),
            ("(/a/b/, /c/d)", "(b, d)"),
        ] {
            assert_eq!(hide_paths(text), public);
        }
    }

    #[test]
    fn every_refusal_that_may_succeed_later_says_when() {
        let errors = [
            ServeError::busy("full"),
            ServeError::unavailable("starting"),
            ServeError::busy("full").in_field("n"),
        ];
        for error in errors {
            assert!(error.retry_after().is_some(), "{error}");
        }
        assert!(ServeError::Invalid(String::new()).retry_after().is_none());
        let slow = ServeError::SlowClient(String::new());
        assert_eq!((slow.http_status(), slow.code()), (408, ErrorCode::Timeout));
    }
}
