//! Why something was not done: what kind of reason, and the server's own words.

use std::{io, path::Path, time::Duration};

use djinn_wire::TensorError;
use tonic::{Code, Status};

/// Why a server, or the way to it, did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    retry_after: Option<Duration>,
}

/// Whose fault it is, and what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Refused: the request has to be another.
    Refused,
    /// Known, and not done by this server.
    Unsupported,
    /// A key is needed, or another one.
    Unauthenticated,
    /// The key does not open this.
    Forbidden,
    /// Nothing of that name, for this key.
    NotFound,
    /// Not as the session or the model stands.
    WrongState,
    /// More at once than is taken.
    TooLarge,
    /// More than there is for now: later.
    Limited,
    /// It took too long.
    Timeout,
    /// Somebody else follows the session now, or has closed it.
    Replaced,
    /// The server cannot be reached, or goes down.
    Unavailable,
    /// What the server said makes no sense here, or something broke.
    Internal,
    /// A file, an address or a certificate of this machine.
    Local,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: message.into(),
            retry_after: None,
        }
    }

    /// Something about a file of this machine.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Error::new(Kind::Local, format!("{}: {error}", path.display()))
    }

    /// What kind of reason it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// When to ask again, where the server said.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let kind = match status.code() {
            Code::InvalidArgument => Kind::Refused,
            Code::Unimplemented => Kind::Unsupported,
            Code::Unauthenticated => Kind::Unauthenticated,
            Code::PermissionDenied => Kind::Forbidden,
            Code::NotFound => Kind::NotFound,
            Code::FailedPrecondition | Code::AlreadyExists => Kind::WrongState,
            Code::OutOfRange => Kind::TooLarge,
            Code::ResourceExhausted => Kind::Limited,
            Code::DeadlineExceeded => Kind::Timeout,
            Code::Aborted => Kind::Replaced,
            Code::Unavailable | Code::Cancelled => Kind::Unavailable,
            // A connection that broke has no code of its own, but a reason.
            Code::Unknown | Code::Internal if std::error::Error::source(&status).is_some() => {
                Kind::Unavailable
            }
            _ => Kind::Internal,
        };
        let retry = status.metadata().get("retry-after");
        let retry = retry.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        Error {
            kind,
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
        Error::new(Kind::Internal, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::{Code, Status};

    use super::{Error, Kind};

    #[test]
    fn kinds_are_those_of_the_server() {
        let check = |code: Code, expect: Kind| {
            let error = Error::from(Status::new(code, "so it is"));
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (expect, "so it is")
            );
        };
        check(Code::InvalidArgument, Kind::Refused);
        check(Code::FailedPrecondition, Kind::WrongState);
        check(Code::NotFound, Kind::NotFound);
        check(Code::ResourceExhausted, Kind::Limited);
        check(Code::Unauthenticated, Kind::Unauthenticated);
        check(Code::Aborted, Kind::Replaced);
        check(Code::Unavailable, Kind::Unavailable);
        check(Code::Unknown, Kind::Internal);
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
