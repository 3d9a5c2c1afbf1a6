//! Failures that end a session, or a turn of a kept one.

use std::fmt;

use crate::error::EngineError;

/// Kind of a failure that ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The device failed, or weights could not be copied to it.
    Device,
    /// Device, host memory and disk have no room for the KV pages of the session.
    KvMemory,
    /// The spill file failed, so KV pages of the session are lost.
    Spill,
    /// The session log could not be written.
    Log,
    /// Any other error. Also the error of a session that ended before a restart: the session
    /// log keeps only the message.
    Other,
}

/// Failure that ended a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFailure {
    /// Kind of the failure.
    pub kind: FailureKind,
    /// Message for people.
    pub message: String,
    /// Whether the device cannot be used any more; see
    /// [`EngineError::is_fatal`](crate::EngineError::is_fatal).
    pub is_fatal: bool,
}

impl SessionFailure {
    /// Returns the failure of a session that was restored with this message.
    pub(crate) fn restored(message: String) -> Self {
        let kind = FailureKind::Other;
        SessionFailure {
            kind,
            message,
            is_fatal: false,
        }
    }
}

impl From<&EngineError> for SessionFailure {
    fn from(error: &EngineError) -> Self {
        use EngineError as E;
        let kind = match error {
            E::Device(_) | E::Weights(_) | E::Workers { .. } => FailureKind::Device,
            E::OutOfPages(_) | E::SessionTooLarge { .. } | E::NoRoom(_) => FailureKind::KvMemory,
            E::Spill(_) => FailureKind::Spill,
            E::Wal(_) | E::NotWritten(_) => FailureKind::Log,
            _ => FailureKind::Other,
        };
        SessionFailure {
            kind,
            message: error.to_string(),
            is_fatal: error.is_fatal(),
        }
    }
}

impl fmt::Display for SessionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::{FailureKind, SessionFailure};
    use crate::error::EngineError;

    #[test]
    fn errors_have_the_kind_of_what_failed() {
        let full = EngineError::NoRoom("the disk is full".to_owned());
        let failure = SessionFailure::from(&full);
        assert_eq!(failure.kind, FailureKind::KvMemory);
        assert_eq!(failure.to_string(), full.to_string());
        let unwritten = EngineError::NotWritten("no space left".to_owned());
        assert_eq!(SessionFailure::from(&unwritten).kind, FailureKind::Log);
    }
}
