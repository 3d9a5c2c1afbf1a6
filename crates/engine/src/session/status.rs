//! The status of a session, as clients see it.

use std::fmt;

/// Status of a session, as reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionStatus {
    /// The session has tokens to run.
    Ready,
    /// The session runs in the current pass.
    Running,
    /// The session waits for its owner.
    Waiting,
    /// The session is paused at a hook.
    Paused,
    /// The session has ended.
    Done,
}

impl SessionStatus {
    /// Returns the status as one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            SessionStatus::Ready => "ready",
            SessionStatus::Running => "running",
            SessionStatus::Waiting => "waiting",
            SessionStatus::Paused => "paused",
            SessionStatus::Done => "done",
        }
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
