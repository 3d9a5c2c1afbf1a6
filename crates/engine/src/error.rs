//! What can go wrong between a request and its tokens.

use std::path::PathBuf;

use djinn_device::DeviceError;
use djinn_kv::{KvError, OutOfPages, SpillError};
use djinn_memory::Size;
use djinn_model::hook::HookError;

use djinn_weights::{PlanError, WeightsError};

use crate::SessionId;

/// An edit, a breakpoint or a capture that cannot be read as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} '{text}': {reason}")]
pub struct ParseError {
    what: &'static str,
    text: String,
    reason: String,
}

impl ParseError {
    pub(crate) fn new(what: &'static str, text: &str, reason: String) -> Self {
        let text = text.to_owned();
        ParseError { what, text, reason }
    }
}

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A hook that is not there.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// An edit that does not fit the model or the request.
    #[error("edit at '{hook}': {reason}")]
    Edit {
        /// Where.
        hook: String,
        /// Why not.
        reason: String,
    },
    /// Something written that cannot be read.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A capture that does not fit the model.
    #[error("capture at '{hook}': {reason}")]
    Capture {
        /// Where.
        hook: String,
        /// Why not.
        reason: String,
    },
    /// A hook at which a pass cannot stop.
    #[error(
        "a session cannot stop at '{0}': a pattern is taken apart only for whoever reads it; \
         stop at attn.hook_z instead"
    )]
    NoStop(String),
    /// A session whose activation was not kept over a restart.
    #[error(
        "session {} was taken back from its folder and has not come to its hook again: run it \
         there first (Engine::recall)",
        .0.0
    )]
    NotThere(SessionId),
    /// Nothing to start from.
    #[error("the prompt is empty: a session needs at least one token")]
    EmptyPrompt,
    /// A token the model does not have.
    #[error("token id {token} at position {position} is beyond the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Where it stood.
        position: usize,
        /// Ids there are.
        vocab: usize,
    },
    /// More positions than the model has.
    #[error("the prompt has {prompt} tokens, the model's context {context}: shorten it")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions there are.
        context: usize,
    },
    /// No room for another session's KV.
    #[error("no memory for the session's KV: {0}")]
    OutOfPages(#[from] OutOfPages),
    /// No room for the KV of sessions that hold some already.
    #[error("no memory for the session's KV, neither on the host nor on disk: {0}")]
    NoRoom(String),
    /// No room for another session that goes on from this one, and what it reads and
    /// changes on the way must not happen twice.
    #[error(
        "session {} has captures or edits and cannot be forked now: there is no memory for \
         another one's KV; close some, or wait",
        .0.0
    )]
    NoRoomToFork(SessionId),
    /// The spill file failed.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The log or an archive of sessions failed.
    #[error(transparent)]
    Wal(#[from] djinn_wal::WalError),
    /// What was written down could not be read.
    #[error("{0}")]
    NotRead(String),
    /// What a session came to could not be written down.
    #[error("the session's state could not be written: {0}")]
    NotWritten(String),
    /// Sessions of another model.
    #[error("these are sessions of {theirs}, and {name} is another model: use another folder")]
    OtherModel {
        /// The model at hand.
        name: String,
        /// The one they belong to.
        theirs: String,
    },
    /// An owner who has as much as it may.
    #[error("{owner} would have {asked} {what} with this, and may have {limit}: close some")]
    Quota {
        /// Who.
        owner: String,
        /// Of what.
        what: &'static str,
        /// How many it would have.
        asked: usize,
        /// How many it may.
        limit: usize,
    },
    /// A session that is not open.
    #[error("there is no session {}", .0.0)]
    NoSession(SessionId),
    /// A session whose memory was laid out for its first request alone.
    #[error("session {} is not kept: nothing can be said to it after its prompt", .0.0)]
    NotKept(SessionId),
    /// A session that has run all it has.
    #[error(
        "session {} has run all its tokens, and generated none with the last: tell it something",
        .0.0
    )]
    NothingToRun(SessionId),
    /// A session that is not as it would have to be.
    #[error("session {} is {is}, not {wanted}", id.0)]
    State {
        /// Which.
        id: SessionId,
        /// How it is.
        is: &'static str,
        /// How it would have to be.
        wanted: &'static str,
    },
    /// A limit that was set at start.
    #[error("{what}: {asked} asked for, {limit} set at start")]
    Limit {
        /// Of what.
        what: &'static str,
        /// RestoreScope.
        asked: usize,
        /// Allowed.
        limit: usize,
    },
    /// A budget that cannot work, or does not hold what was to stay.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The link that weights stream over could not be set up.
    #[error(transparent)]
    Weights(WeightsError),
    /// What streams and who waits does not fit in the host memory it may have.
    #[error(
        "weights that stream and sessions that wait need {} of host memory, and may have {}: give \
         more --host-memory, or more --memory, so that less streams",
        Size(*needed), Size(*there)
    )]
    HostBudget {
        /// Needed.
        needed: u64,
        /// Allowed.
        there: u64,
    },
    /// What streams and who waits does not fit in the host memory there is.
    #[error(
        "weights that stream and sessions that wait need {} of host memory, and {} are free: give \
         more --memory, so that less streams, or wait until more is free",
        Size(*needed), Size(*there)
    )]
    HostMemory {
        /// Needed.
        needed: u64,
        /// Free.
        there: u64,
    },
    /// Pages come from disk through host memory, and there is too little.
    #[error(
        "pages on disk pass through host memory, which has {} for them and needs {}: give more \
         --host-memory, or no --spill",
        Size(*there), Size(*needed)
    )]
    SpillNeedsHost {
        /// Needed.
        needed: u64,
        /// Left for pages.
        there: u64,
    },
    /// The link's threads would not start.
    #[error("cannot start {count} workers: {error}")]
    Workers {
        /// How many were to.
        count: usize,
        /// As the system put it.
        error: std::io::Error,
    },
    /// A sampling parameter out of range.
    #[error("{name} = {value}: {expect}")]
    Sampling {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        expect: &'static str,
    },
    /// Stop strings need text.
    #[error("this model has no tokenizer.json, so {what} cannot be used")]
    NoTokenizer {
        /// What was asked for.
        what: &'static str,
    },
    /// A tensor file that could not be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl From<KvError> for EngineError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::Device(error) => error.into(),
            KvError::OutOfPages(error) => error.into(),
            KvError::Spill(error) => error.into(),
            KvError::Threads { count, source } => EngineError::Workers {
                count,
                error: source,
            },
        }
    }
}

impl From<WeightsError> for EngineError {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Device(error) => EngineError::Device(error),
            error => EngineError::Weights(error),
        }
    }
}
