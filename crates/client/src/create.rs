//! Requests of sessions: open a session, run another turn, resume from a breakpoint.

use std::time::Duration;

use djinn_wire::v1::{self, prompt::What, resume_request::Until};

use crate::{client::Client, edit::HookEdit, error::Error, events::EventStream};

/// Setup of a new session. [`ModelHandle::session`](crate::ModelHandle::session) creates it, and
/// [`Create::open`] opens the session.
#[derive(Clone, Debug)]
#[must_use = "call open to open the session"]
pub struct Create {
    client: Client,
    asked: v1::CreateRequest,
}

impl Create {
    pub(crate) fn new(client: Client, model: String) -> Self {
        let asked = v1::CreateRequest {
            model,
            ..v1::CreateRequest::default()
        };
        Create { client, asked }
    }

    /// Sets the prompt to text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.prompt(text_prompt(text))
    }

    /// Sets the prompt to tokens, used as they are.
    pub fn tokens(self, ids: impl Into<Vec<u32>>) -> Self {
        self.prompt(token_prompt(ids))
    }

    /// Sets the prompt to chat messages, each a role and a content, formatted with the model's template.
    pub fn chat<R: Into<String>, C: Into<String>>(
        self,
        messages: impl IntoIterator<Item = (R, C)>,
    ) -> Self {
        self.prompt(chat_prompt(messages))
    }

    /// Sets the prompt to a message of the protocol.
    pub fn prompt(mut self, prompt: v1::Prompt) -> Self {
        self.asked.prompt = Some(prompt);
        self
    }

    /// Limits the number of tokens to generate; zero runs the prompt only.
    pub fn max_tokens(mut self, count: u64) -> Self {
        self.asked.max_tokens = Some(count);
        self
    }

    /// Sets the sampling parameters.
    pub fn sampling(mut self, sampling: v1::Sampling) -> Self {
        self.asked.sampling = Some(sampling);
        self
    }

    /// Adds a stop string, which ends a turn.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.asked.stop.push(text.into());
        self
    }

    /// Continues past end-of-text tokens.
    pub fn ignore_eos(mut self) -> Self {
        self.asked.ignore_eos = true;
        self
    }

    /// Adds a capture: `HOOK[PART][@POSITIONS][|REDUCTION]`.
    pub fn capture(mut self, capture: impl Into<String>) -> Self {
        self.asked.captures.push(capture.into());
        self
    }

    /// Sets the positions of captures that set none.
    pub fn capture_positions(mut self, positions: impl Into<String>) -> Self {
        self.asked.capture_positions = positions.into();
        self
    }

    /// Adds an edit of every turn. Edits apply in the order of the calls.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.asked.edits.push(edit.into());
        self
    }

    /// Adds an edit of the first turn only. It applies after the edits of every turn.
    pub fn turn_edit(mut self, edit: HookEdit) -> Self {
        self.asked.turn_edits.push(edit.into());
        self
    }

    /// Adds a breakpoint: `HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]`.
    pub fn breakpoint(mut self, breakpoint: impl Into<String>) -> Self {
        self.asked.breakpoints.push(breakpoint.into());
        self
    }

    /// Keeps the session open after its turn, and when the connection ends.
    pub fn keep(mut self) -> Self {
        self.asked.keep = true;
        self
    }

    /// Sets how long an unused session stays open.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.asked.lease_s = Some(lease.as_secs_f64());
        self
    }

    /// Sets the time limit of the session.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.asked.deadline_s = Some(deadline.as_secs_f64());
        self
    }

    /// Gives interactive sessions precedence over this one.
    pub fn batch(mut self) -> Self {
        self.asked.priority = v1::Priority::Batch.into();
        self
    }

    /// Opens the session and returns the events of its first turn.
    pub async fn open(self) -> Result<EventStream, Error> {
        let stream = self.client.sessions_service().create(self.asked).await?;
        EventStream::open(self.client, stream.into_inner()).await
    }
}

/// Setup of another turn of a waiting session; see [`SessionHandle::generate`](crate::SessionHandle::generate).
#[derive(Clone, Debug, Default)]
#[must_use = "pass it to a session"]
pub struct Generate(pub(crate) v1::GenerateRequest);

impl Generate {
    /// Continues from the session's last token.
    pub fn new() -> Self {
        Generate::default()
    }

    /// Appends text first.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.0.prompt = Some(text_prompt(text));
        self
    }

    /// Appends tokens first.
    pub fn tokens(mut self, ids: impl Into<Vec<u32>>) -> Self {
        self.0.prompt = Some(token_prompt(ids));
        self
    }

    /// Limits the number of tokens to generate.
    pub fn max_tokens(mut self, count: u64) -> Self {
        self.0.max_tokens = Some(count);
        self
    }

    /// Adds an edit of this turn only. Edits apply in the order of the calls.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.0.edits.push(edit.into());
        self
    }
}

/// Setup of resuming a stopped session; see [`SessionHandle::resume`](crate::SessionHandle::resume).
#[derive(Clone, Debug, Default)]
#[must_use = "pass it to a session"]
pub struct Resume(pub(crate) v1::ResumeRequest);

impl Resume {
    /// Resumes without edits, to the next breakpoint.
    pub fn new() -> Self {
        Resume::default()
    }

    /// Adds an edit of the activation at the breakpoint. Edits apply in the order of the calls.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.0.edits.push(edit.into());
        self
    }

    fn until(mut self, until: Until) -> Self {
        self.0.until = Some(until);
        self
    }

    /// Runs to the next hook.
    pub fn to_next_hook(self) -> Self {
        self.until(Until::NextHook(true))
    }

    /// Runs to the end of the current block, or of the next one.
    pub fn to_next_block(self) -> Self {
        self.until(Until::NextBlock(true))
    }

    /// Runs to the given hook.
    pub fn to_hook(self, hook: impl Into<String>) -> Self {
        self.until(Until::Hook(hook.into()))
    }
}

fn prompt(what: What) -> v1::Prompt {
    v1::Prompt { what: Some(what) }
}

fn text_prompt(text: impl Into<String>) -> v1::Prompt {
    prompt(What::Text(text.into()))
}

fn token_prompt(ids: impl Into<Vec<u32>>) -> v1::Prompt {
    prompt(What::Tokens(v1::Tokens { ids: ids.into() }))
}

fn chat_prompt<R: Into<String>, C: Into<String>>(
    messages: impl IntoIterator<Item = (R, C)>,
) -> v1::Prompt {
    prompt(What::Chat(chat(messages)))
}

/// Creates a chat message of the protocol.
pub(crate) fn chat<R: Into<String>, C: Into<String>>(
    messages: impl IntoIterator<Item = (R, C)>,
) -> v1::Chat {
    let message = |(role, content): (R, C)| v1::ChatMessage {
        role: role.into(),
        content: content.into(),
    };
    v1::Chat {
        messages: messages.into_iter().map(message).collect(),
    }
}
