//! Why something was not done: what kind of reason, and the server's own words.

use std::{io, path::Path, time::Duration};

use djinn_wire::{ERROR_CODE_METADATA, ErrorCode, TensorError};
use tonic::{Code, Status};

/// Why a server, or the way to it, did not do what it was asked.
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

    /// Something about a file of this machine.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Error::new(ErrorCode::Local, format!("{}: {error}", path.display()))
    }

    /// What kind of reason it is.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// When to ask again, where the server said.
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
            message: words(&status),
            retry_after: retry.map(Duration::from_secs),
        }
    }
}

/// What the server said, or what the connection did.
fn words(status: &Status) -> String {
    let text = match status.message() {
        "" => status.code().to_string(),
        text => text.to_owned(),
    };
    with_reasons(text, std::error::Error::source(status))
}

/// A text with the reasons behind it, each said once.
pub(crate) fn with_reasons(
    mut text: String,
    mut reason: Option<&(dyn std::error::Error + 'static)>,
) -> String {
    while let Some(error) = reason {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        reason = error.source();
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

    use super::{Error, ErrorCode};

    #[test]
    fn kinds_are_those_of_the_server() {
        let check = |code: Code, expect: ErrorCode| {
            let error = Error::from(Status::new(code, "so it is"));
            assert_eq!(
                (error.code(), error.to_string().as_str()),
                (expect, "so it is")
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
    fn who_asks_too_often_is_told_when() {
        let mut status = Status::resource_exhausted("too many requests");
        let seconds = "3".parse().expect("a plain number");
        status.metadata_mut().insert("retry-after", seconds);
        assert_eq!(
            Error::from(status).retry_after(),
            Some(Duration::from_secs(3))
        );
    }
}
