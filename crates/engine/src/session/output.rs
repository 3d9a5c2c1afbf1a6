//! Outputs of a pass, and the transcript of a session.

use std::{fmt, time::Instant};

use serde::{Deserialize, Serialize};

use crate::{Captured, Logprob, Paused, SessionId};

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// It generated as much as was asked for.
    Length,
    /// No position is left in the context.
    Context,
    /// The model said so.
    Eos,
    /// A stop string was reached.
    Stop,
    /// The model computed something that is not a number: weights or edits are broken.
    NotANumber,
    /// Its deadline came.
    Deadline,
    /// Its owner did not renew its lease.
    Lease,
    /// The device failed in the middle of a pass, or its pages are lost.
    Failed,
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Eos => "eos",
            Finish::Stop => "stop",
            Finish::NotANumber => "not-a-number",
            Finish::Deadline => "deadline",
            Finish::Lease => "lease",
            Finish::Failed => "failed",
        })
    }
}

/// What is left of a session when it is closed.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What was generated, the ending token included.
    pub generated: Vec<u32>,
    /// For each generated token, itself and its alternatives, when asked for.
    pub logprobs: Vec<Vec<Logprob>>,
    /// Why it ended; `None` where it was closed before its end.
    pub finish: Option<Finish>,
    /// What went wrong, where something did.
    pub failure: Option<String>,
    /// What was captured.
    pub captured: Captured,
}

/// What a pass gave one session.
#[derive(Clone, Debug)]
pub struct Output {
    /// Whose.
    pub session: SessionId,
    /// How many tokens it had generated before this one: those after a restart tell which
    /// one it is.
    pub index: usize,
    /// The token it generated; `None` while its prompt is still running, or where it
    /// was to generate none.
    pub token: Option<u32>,
    /// The text this released: whole characters, no part of a stop string.
    pub text: String,
    /// The token and its alternatives, when asked for.
    pub logprobs: Vec<Logprob>,
    /// Set when the session is over, or its turn where it is kept.
    pub finish: Option<Finish>,
    /// What went wrong, where something did.
    pub failure: Option<String>,
    /// When its turn came, since it had to wait for it last.
    pub turn: Option<Instant>,
    /// Where it stopped, if it came to a breakpoint.
    pub paused: Option<Paused>,
}

/// A session's turn ends without another token.
pub(crate) fn over(session: SessionId, finish: Finish) -> Output {
    Output {
        session,
        index: 0,
        token: None,
        text: String::new(),
        logprobs: Vec::new(),
        finish: Some(finish),
        failure: None,
        turn: None,
        paused: None,
    }
}
