//! Outputs of passes, and transcripts of sessions.

use std::{fmt, time::Instant};

use djinn_types::SessionId;
use serde::{Deserialize, Serialize};

use crate::{
    probe::{captured::Captured, checkpoint::Paused},
    sampling::sampler::Logprob,
    session::failure::SessionFailure,
};

/// Reason for the end of a turn or of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The session generated the maximum number of tokens.
    Length,
    /// The context is full.
    Context,
    /// The model generated an end-of-sequence token.
    Eos,
    /// The output reached a stop string.
    Stop,
    /// The logits contain NaN: the weights or the edits are broken.
    NotANumber,
    /// The deadline passed.
    Deadline,
    /// The lease ran out without renewal.
    Lease,
    /// The device failed during a pass, KV pages were lost, or the end of the turn could not be
    /// written. A kept session stays open.
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

/// Transcript of a session: its tokens, captures and end.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Generated tokens, the ending token included.
    pub generated: Vec<u32>,
    /// For each generated token, the token and its alternatives, if requested.
    pub logprobs: Vec<Vec<Logprob>>,
    /// Reason for the end; `None` where the session has not ended.
    pub finish: Option<Finish>,
    /// Failure that ended the session.
    pub failure: Option<SessionFailure>,
    /// Captured activations.
    pub captured: Captured,
}

/// Output of a pass for one session.
#[derive(Clone, Debug)]
pub struct Output {
    /// Session that the output belongs to.
    pub session: SessionId,
    /// Number of tokens generated before this one; identifies the token after a restart.
    pub index: usize,
    /// Generated token; `None` while the prompt is still running, or where no token was asked
    /// for.
    pub token: Option<u32>,
    /// Text that the token released: whole characters, without stop strings.
    pub text: String,
    /// The token and its alternatives, if requested.
    pub logprobs: Vec<Logprob>,
    /// Reason for the end of the turn or of the session, if either ended.
    pub finish: Option<Finish>,
    /// Failure that ended the turn of a kept session, or another session.
    pub failure: Option<SessionFailure>,
    /// Time at which the scheduler first chose the session since it last waited.
    pub scheduled: Option<Instant>,
    /// Hook and tokens at which the session paused.
    pub paused: Option<Paused>,
}

impl Output {
    /// Creates an output without a token that ends a turn or a session.
    pub fn finished(session: SessionId, finish: Finish, failure: Option<SessionFailure>) -> Self {
        Output {
            session,
            index: 0,
            token: None,
            text: String::new(),
            logprobs: Vec::new(),
            finish: Some(finish),
            failure,
            scheduled: None,
            paused: None,
        }
    }

    /// Creates an output without a token for a session that paused at a hook.
    pub(crate) fn paused(
        session: SessionId,
        index: usize,
        scheduled: Option<Instant>,
        at: Paused,
    ) -> Self {
        Output {
            index,
            finish: None,
            scheduled,
            paused: Some(at),
            ..Output::finished(session, Finish::Length, None)
        }
    }
}
