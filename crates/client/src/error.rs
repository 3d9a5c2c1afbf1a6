//! Errors of the client: a code, and the server's message.

use std::{io, path::Path, time::Duration};

use djinn_wire::{ERROR_CODE_METADATA, ErrorCode, TensorError};
use tonic::{Code, Status};

/// Error of a request: from the server, the connection, or the client's own machine.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    message: String,
    retry_after: Option<Duration>,
}

impl Error {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Error {
            code,
            message: message.into(),
            retry_after: None,
        }
    }

    /// Error of a file on this machine.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Error::new(ErrorCode::Local, format!("{}: {error}", path.display()))
    }

    /// Machine-readable class of the error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// Time after which the server accepts the request again, if the server sent it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let sent = status.metadata().get(ERROR_CODE_METADATA);
        let sent = sent.and_then(|name| ErrorCode::from_name(name.to_str().ok()?));
        let code = sent.unwrap_or_else(|| match status.code() {
            // A broken connection has no status code of its own, only a source.
            Code::Unknown | Code::Internal if std::error::Error::source(&status).is_some() => {
                ErrorCode::Unavailable
            }
            code => ErrorCode::from_grpc(code),
        });
        let retry = status.metadata().get("retry-after");
        let retry = retry.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        Error {
            code,
            message: status_message(&status),
            retry_after: retry.map(Duration::from_secs),
        }
    }
}

/// Message of the server, or the cause of a broken connection.
fn status_message(status: &Status) -> String {
    let text = match status.message() {
        "" => status.code().to_string(),
        text => text.to_owned(),
    };
    with_causes(text, std::error::Error::source(status))
}

/// Appends the causes of an error to a message, each once.
pub(crate) fn with_causes(
    mut text: String,
    mut cause: Option<&(dyn std::error::Error + 'static)>,
) -> String {
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    text
}

impl From<TensorError> for Error {
    fn from(error: TensorError) -> Self {
        Error::new(ErrorCode::Internal, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::{Code, Status};

    use super::{ERROR_CODE_METADATA, Error, ErrorCode};

    #[test]
    fn a_grpc_status_without_metadata_maps_to_a_code() {
        let check = |code: Code, expect: ErrorCode| {
            let error = Error::from(Status::new(code, "message"));
            assert_eq!(
                (error.code(), error.to_string().as_str()),
                (expect, "message")
            );
        };
        check(Code::InvalidArgument, ErrorCode::Invalid);
        check(Code::FailedPrecondition, ErrorCode::Conflict);
        check(Code::NotFound, ErrorCode::NotFound);
        check(Code::ResourceExhausted, ErrorCode::Limited);
        check(Code::Unauthenticated, ErrorCode::Unauthenticated);
        check(Code::Aborted, ErrorCode::Replaced);
        check(Code::Unavailable, ErrorCode::Unavailable);
        check(Code::Unknown, ErrorCode::Internal);
    }

    #[test]
    fn the_code_of_the_metadata_takes_precedence() {
        let mut status = Status::new(Code::Internal, "replaced");
        let name = ErrorCode::Replaced.name().parse().expect("a plain name");
        status.metadata_mut().insert(ERROR_CODE_METADATA, name);
        assert_eq!(Error::from(status).code(), ErrorCode::Replaced);
    }

    #[test]
    fn a_rate_limit_carries_its_retry_time() {
        let mut status = Status::resource_exhausted("too many requests");
        let seconds = "3".parse().expect("a plain number");
        status.metadata_mut().insert("retry-after", seconds);
        assert_eq!(
            Error::from(status).retry_after(),
            Some(Duration::from_secs(3))
        );
    }
}
