//! Events of a session, as its subscriber receives them.

use std::time::Duration;

use djinn_engine::{Finish, Logprob, Paused, SessionFailure, Tensor};

use crate::ServeError;

/// One event of a session's turn.
#[derive(Debug)]
pub enum SessionEvent {
    /// The session generated a token.
    Token {
        /// Id of the token.
        token: u32,
        /// Text that this token completes; empty while a character or a stop string is incomplete.
        text: String,
        /// Number of tokens that the session generated before this one.
        index: usize,
        /// Log-probabilities of the token and its alternatives, if requested.
        logprobs: Vec<Logprob>,
    },
    /// A capture of the turn: name of the hook, and the values there.
    Captured(String, Tensor),
    /// The session stopped at a breakpoint. No event follows.
    Paused {
        /// Hook and position of the stop.
        at: Paused,
        /// Shape of the activation at the hook.
        shape: Vec<usize>,
        /// Time since the turn began, or since its last token.
        took: Duration,
    },
    /// The turn is finished. No event follows.
    Finished {
        /// Reason for the end of the turn.
        finish: Finish,
        /// Failure that ended the session.
        failure: Option<SessionFailure>,
        /// Remaining text that the detection of stop strings held back.
        text: String,
        /// Number of tokens that the session has generated.
        generated: usize,
        /// Number of tokens that the prefix cache had, since the turn began.
        cached: usize,
        /// Whether the session is kept and accepts another turn.
        kept: bool,
    },
    /// Another subscriber replaced this one, or the session was closed. No event follows.
    Replaced,
    /// The stream ends before its turn: the request's time is over, or the server closes. No event follows.
    Interrupted(ServeError),
}

impl SessionEvent {
    /// Whether no event follows this one.
    pub fn is_last(&self) -> bool {
        match self {
            SessionEvent::Token { .. } | SessionEvent::Captured(..) => false,
            SessionEvent::Paused { .. }
            | SessionEvent::Finished { .. }
            | SessionEvent::Interrupted(_)
            | SessionEvent::Replaced => true,
        }
    }
}
