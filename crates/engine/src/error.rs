//! Errors of the engine.

use std::{fmt, path::PathBuf};

use djinn_device::DeviceError;
use djinn_kv::{KvError, OutOfPages, SpillError};
use djinn_model::hook::HookError;
use djinn_types::{DType, SessionId, Size, text::shown};
use djinn_wal::WalError;
use djinn_weights::{PlanError, WeightsError};

use crate::session::status::SessionStatus;

/// Kind of text that a [`ParseError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedText {
    /// An edit, such as `blocks.3.hook_resid_post:scale=0.9`.
    Edit,
    /// A breakpoint, such as `blocks.3.hook_resid_post@generated`.
    Breakpoint,
    /// A capture, such as `blocks.3.hook_resid_post|norm`.
    Capture,
}

impl fmt::Display for ParsedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParsedText::Edit => "edit",
            ParsedText::Breakpoint => "breakpoint",
            ParsedText::Capture => "capture",
        })
    }
}

/// Error of an edit, breakpoint or capture whose text is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} '{text}': {reason}")]
pub struct ParseError {
    /// Kind of the text.
    pub kind: ParsedText,
    /// Text as it was given; only its beginning if it is long.
    pub text: String,
    /// Reason why the text is malformed.
    pub reason: String,
}

impl ParseError {
    pub(crate) fn new(kind: ParsedText, text: &str, reason: String) -> Self {
        let text = shown(text);
        ParseError { kind, text, reason }
    }
}

/// Limit of an engine that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Number of open sessions.
    Sessions,
    /// Positions of a session.
    Context,
    /// Positions of a session, as the model limits them.
    ModelContext,
    /// Rows through the head in one pass.
    HeadRows,
    /// Rows of one pass.
    PassRows,
    /// Rows of one pass, as the device limits them.
    DeviceRows,
    /// Keys of an attention head, as the device limits them.
    DeviceKeys,
    /// Keys of an attention pattern, as the device limits them.
    DevicePatternKeys,
    /// Keys of an attention pattern that is captured or edited.
    PatternKeys,
    /// Width of the operand of an edit.
    OperandWidth,
    /// Width of a captured part of a hook.
    CaptureWidth,
    /// Numbers that a capture reduces a row to.
    ReducedWidth,
    /// Rows of the logit lens in one pass.
    LensRows,
    /// Bytes of host memory that captures and checkpoints of all sessions take.
    ProbeBytes,
}

impl LimitKind {
    /// Refuses a request beyond the limit.
    pub(crate) fn check(self, asked: usize, limit: usize) -> Result<(), EngineError> {
        match asked > limit {
            true => Err(EngineError::Limit {
                kind: self,
                asked,
                limit,
            }),
            false => Ok(()),
        }
    }

    /// Describes a request of `asked` where only `limit` are allowed.
    fn describe(self, asked: usize, limit: usize) -> String {
        match self {
            LimitKind::Sessions => format!(
                "too many open sessions (limit {limit}); close some, retry later or raise \
                 --sessions"
            ),
            LimitKind::Context => format!(
                "prompt plus max_tokens is {asked} tokens, but the context is {limit} (raise it \
                 with --context)"
            ),
            LimitKind::ModelContext => {
                format!("a context of {asked} tokens exceeds the model's limit of {limit}")
            }
            LimitKind::HeadRows => format!(
                "the session paused with {asked} rows of logits in one pass, but the limit is now \
                 {limit}; raise --memory or --rows"
            ),
            LimitKind::PassRows => format!(
                "{asked} tokens must run in one pass, but a pass has {limit} rows; raise --rows"
            ),
            LimitKind::DeviceRows => {
                format!(
                    "{asked} rows in one pass exceed the device's limit of {limit}; lower --rows"
                )
            }
            LimitKind::DeviceKeys => format!(
                "a context of {asked} tokens exceeds the device's limit of {limit} for heads of \
                 this size and this --kv-dtype; lower --context"
            ),
            LimitKind::DevicePatternKeys => format!(
                "attention patterns over {asked} tokens exceed the device's limit of {limit}; \
                 lower --context"
            ),
            LimitKind::PatternKeys => format!(
                "attention patterns over {asked} tokens were requested, but the engine has room \
                 for {limit}; raise --memory"
            ),
            LimitKind::OperandWidth => format!(
                "the operand of an edit has {asked} elements per row, but the engine has room for \
                 {limit}; raise --memory"
            ),
            LimitKind::CaptureWidth => format!(
                "a capture of {asked} elements per row was requested, but the engine has room for \
                 {limit}"
            ),
            LimitKind::ReducedWidth => format!(
                "a capture reduces rows to {asked} numbers, but the engine has room for {limit}"
            ),
            LimitKind::LensRows => format!(
                "the logit lens was requested for {asked} rows of one pass, but the limit is \
                 {limit}; select fewer hooks or positions, or raise --memory"
            ),
            LimitKind::ProbeBytes => format!(
                "captures and checkpoints of all sessions would take {}, but the limit is {}; \
                 capture less, or retry when other sessions have ended",
                Size(asked as u64),
                Size(limit as u64)
            ),
        }
    }
}

/// A context, or numbers that the user set, that do not fit in the memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ContextShortage {
    /// Context in tokens; `None` if the plan may choose any.
    pub context: Option<usize>,
    /// Whether the user set the context, or requests need it.
    pub is_set: bool,
    /// Longest context that fits, if any does.
    pub longest: Option<usize>,
    /// Bytes of the KV pages that must lie on the device together.
    pub kv: u64,
    /// Bytes of the budget.
    pub budget: u64,
    /// Bytes of the smallest budget that works.
    pub least: u64,
    /// Flags that keep the engine from shrinking.
    pub flags: Vec<String>,
}

impl fmt::Display for ContextShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = Size(self.least).rounded_up().to_string();
        let (memory, kv) = (Size(self.budget), Size(self.kv));
        let context = self.context.map(|context| match self.is_set {
            true => format!("--context {context}"),
            false => format!("{context} tokens of prompt and answer"),
        });
        let asked: Vec<String> = context.into_iter().chain(self.flags.clone()).collect();
        let asked = asked.join(" with ");
        write!(f, "--memory {memory} is too small for {asked}: ")?;
        if self.context.is_some() {
            write!(f, "the KV takes {kv}, and ")?;
        }
        write!(f, "the model then needs at least {least}; ")?;
        match (self.longest, self.is_set) {
            (Some(longest), true) => write!(f, "set --context {longest}, or ")?,
            (Some(longest), false) => {
                write!(f, "at most {longest} tokens fit (lower --max-tokens), or ")?;
            }
            (None, _) => {
                let flags = self.flags.iter().filter_map(|flag| flag.split(' ').next());
                let flags: Vec<&str> = flags.collect();
                write!(f, "lower {}, or ", flags.join(" or "))?;
            }
        }
        write!(f, "set --memory {}", least.replace(' ', ""))
    }
}

/// Quota of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Number of open sessions.
    Sessions,
    /// Number of KV pages that the open sessions may need.
    Pages,
    /// Bytes of host memory that captures and checkpoints of the sessions may take.
    ProbeBytes,
}

impl fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuotaKind::Sessions => "sessions",
            QuotaKind::Pages => "KV pages",
            QuotaKind::ProbeBytes => "bytes of captures and checkpoints",
        })
    }
}

/// Error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model has no such hook.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// An edit does not fit the model or the request.
    #[error("edit at '{hook}': {reason}")]
    Edit {
        /// Name of the hook.
        hook: String,
        /// Reason why the request does not fit.
        reason: String,
    },
    /// An edit, breakpoint or capture is malformed.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A capture does not fit the model.
    #[error("capture at '{hook}': {reason}")]
    Capture {
        /// Name of the hook.
        hook: String,
        /// Reason why the request does not fit.
        reason: String,
    },
    /// Sessions cannot pause at this hook.
    #[error(
        "sessions cannot pause at '{0}': attention patterns exist only while they are captured; \
         pause at attn.hook_z instead"
    )]
    NoStop(String),
    /// The activations of a paused session were lost with a restart.
    #[error(
        "session {0} was restored without its activations; call Recall to run it to its hook \
         again"
    )]
    NotRecalled(SessionId),
    /// The prompt is empty.
    #[error("the prompt is empty; a session needs at least one token")]
    EmptyPrompt,
    /// A token is not in the vocabulary.
    #[error("token id {token} at position {position} is outside the vocabulary of {vocab} tokens")]
    UnknownToken {
        /// Id of the token.
        token: u32,
        /// Position of the token in the input.
        position: usize,
        /// Number of tokens in the vocabulary.
        vocab: usize,
    },
    /// The input does not fit in the context.
    #[error("the prompt has {prompt} tokens, but the context is {context}; shorten the prompt")]
    PromptTooLong {
        /// Number of tokens of the session with the input.
        prompt: usize,
        /// Maximum number of positions.
        context: usize,
    },
    /// The KV cache has too few pages for the session.
    #[error(
        "not enough KV memory for the session: {0}; close sessions, lower --context or raise --kv"
    )]
    OutOfPages(#[from] OutOfPages),
    /// Host memory has no room for the pages that the longest session has outside the device.
    #[error(
        "KV pages of the longest session stream from host memory, which needs {} for them, but \
         there are {}; lower --context or raise --kv, --memory or --host-memory",
        Size(*.needed), Size(*.there)
    )]
    WindowNeedsHost {
        /// Bytes of host memory that the pages need.
        needed: u64,
        /// Bytes of host memory for pages.
        there: u64,
    },
    /// The session is larger than the device, and what the device does not hold fits neither
    /// through the KV window nor in host memory.
    #[error(
        "the session needs {pages} KV pages, but the device holds {device}, {window} can stream \
         through the KV window, and host memory holds {host}; lower --context or raise --kv, \
         --memory or --host-memory"
    )]
    SessionTooLarge {
        /// Number of pages of the session.
        pages: usize,
        /// Number of pages on the device.
        device: usize,
        /// Number of pages that stream through the KV window.
        window: usize,
        /// Number of pages in host memory.
        host: usize,
    },
    /// The KV of a context does not fit in the memory.
    #[error(transparent)]
    ContextMemory(#[from] ContextShortage),
    /// Host memory has no room for the KV pages of sessions that would lose them.
    #[error(
        "the model cannot leave the device now: its sessions need {needed} KV pages of host memory, \
         and {there} are free; raise --host-memory"
    )]
    NoRoomToSwap {
        /// Number of pages that must move to host memory.
        needed: usize,
        /// Number of free pages of host memory.
        there: usize,
    },
    /// Host memory and disk have no room for the KV pages of open sessions.
    #[error("host memory and disk have no room for more KV pages: {0}")]
    NoRoom(String),
    /// The KV cache has no room for a fork, and the fork cannot be computed again because its
    /// captures and edits must not happen twice.
    #[error(
        "session {0} has captures, edits or a pause and cannot be forked now: the KV memory is \
         full; close some sessions or retry later"
    )]
    NoRoomToFork(SessionId),
    /// The spill file failed.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The session log or an archive failed.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// A saved session or the model cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The end of a turn could not be written to the session log.
    #[error("the state of the session could not be written: {0}")]
    NotWritten(String),
    /// The sessions belong to another model.
    #[error(
        "the saved sessions belong to {theirs}, which differs from the loaded model {name}; use \
         another folder"
    )]
    OtherModel {
        /// Name of the loaded model.
        name: String,
        /// Name of the model that the sessions belong to.
        theirs: String,
    },
    /// The tokens of a saved session were computed with keys and values of another type.
    #[error(
        "the session was computed with keys and values in {theirs}, but the engine keeps them in \
         {ours}; start with --kv-dtype {theirs} to continue the session"
    )]
    OtherKvDtype {
        /// Type that the session was computed with.
        theirs: DType,
        /// Type that the engine computes with.
        ours: DType,
    },
    /// The owner has used up a quota.
    #[error("{owner} would have {asked} {kind}, but the quota is {limit}; close some sessions")]
    Quota {
        /// Name of the owner.
        owner: String,
        /// Quota that is used up.
        kind: QuotaKind,
        /// Amount that the request would bring the owner to.
        asked: usize,
        /// Amount that the owner may have.
        limit: usize,
    },
    /// The owner has as much as is free for all others together; retry later.
    #[error(
        "{owner} has {held} {kind}, and only {free} are free for all owners; close some sessions \
         or retry later"
    )]
    FairShare {
        /// Name of the owner.
        owner: String,
        /// Kind of room that is short.
        kind: QuotaKind,
        /// Amount that the owner has.
        held: usize,
        /// Amount that is free.
        free: usize,
    },
    /// The session is not open, or belongs to another owner.
    #[error("no session {0} is open")]
    NoSession(SessionId),
    /// The session was opened without `keep`.
    #[error(
        "session {0} accepts no more input because it was opened without keep; open a session with \
         keep instead"
    )]
    NotKept(SessionId),
    /// The session has no token to run and none was appended.
    #[error("session {0} has no token left to run; append at least one")]
    NothingToRun(SessionId),
    /// The session is in the middle of a pass, where no token can be appended.
    #[error("session {0} is in the middle of a pass; resume it before appending tokens")]
    MidPass(SessionId),
    /// The operation is not allowed in the current status of the session.
    #[error("session {id} is {status}, but must be {}", any_of(allowed))]
    WrongStatus {
        /// Session that the operation is for.
        id: SessionId,
        /// Status of the session.
        status: SessionStatus,
        /// Statuses that allow the operation.
        allowed: &'static [SessionStatus],
    },
    /// A limit of the engine is exceeded.
    #[error("{}", kind.describe(*asked, *limit))]
    Limit {
        /// Limit that is exceeded.
        kind: LimitKind,
        /// Amount that was requested.
        asked: usize,
        /// Amount that is allowed.
        limit: usize,
    },
    /// The memory budget is too small for the model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weight streaming could not be set up.
    #[error(transparent)]
    Weights(WeightsError),
    /// The host memory budget is too small for streamed weights and waiting sessions.
    #[error(
        "streamed weights and waiting sessions need {} of host memory, but --host-memory is {}; \
         raise --host-memory, or raise --memory so that fewer weights stream",
        Size(*needed), Size(*there)
    )]
    HostBudget {
        /// Number of bytes needed.
        needed: u64,
        /// Number of bytes allowed.
        there: u64,
    },
    /// Free host memory is too small for streamed weights and waiting sessions.
    #[error(
        "streamed weights and waiting sessions need {} of host memory, but {} are free; raise \
         --memory so that fewer weights stream, or free host memory",
        Size(*needed), Size(*there)
    )]
    HostMemory {
        /// Number of bytes needed.
        needed: u64,
        /// Number of bytes free.
        there: u64,
    },
    /// Host memory is too small for pages in transit from disk.
    #[error(
        "--spill needs {} of host memory for pages in transit, but {} are left; raise \
         --host-memory or drop --spill",
        Size(*needed), Size(*there)
    )]
    SpillNeedsHost {
        /// Number of bytes needed.
        needed: u64,
        /// Number of bytes left for pages.
        there: u64,
    },
    /// Worker threads could not be started.
    #[error("{count} worker threads could not be started: {error}")]
    Workers {
        /// Number of threads.
        count: usize,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A sampling parameter is out of range.
    #[error("{name} = {value} is out of range: expected {expect}")]
    Sampling {
        /// Name of the parameter.
        name: &'static str,
        /// Value that was given.
        value: String,
        /// Values that are allowed.
        expect: &'static str,
    },
    /// A feature needs a tokenizer, and the model has none.
    #[error("{feature} need a tokenizer, but this model has no tokenizer.json")]
    NoTokenizer {
        /// Feature that was requested.
        feature: &'static str,
    },
    /// A file could not be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the failure.
        reason: String,
    },
}

/// Lists statuses as `ready, waiting or paused`.
fn any_of(statuses: &[SessionStatus]) -> String {
    let names: Vec<&str> = statuses.iter().map(|status| status.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

impl EngineError {
    /// Whether the device has too little free memory now, for example because another process uses it.
    pub fn is_device_memory_shortage(&self) -> bool {
        matches!(self, EngineError::Device(DeviceError::NoMemory { .. }))
    }

    /// Whether the device is lost, so that nothing of this process can use it any more.
    pub fn is_fatal(&self) -> bool {
        matches!(self, EngineError::Device(error) if error.is_sticky())
    }
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
