//! Setup of further turns, of resuming from a breakpoint, and of prompts.

use djinn_wire::v1::{self, prompt::What, resume_request::Until};

use crate::edit::HookEdit;

/// Setup of another turn of a waiting session; see [`SessionHandle::generate`](crate::SessionHandle::generate).
#[derive(Clone, Debug, Default)]
#[must_use = "pass it to a session"]
pub struct Generate(pub(crate) v1::GenerateRequest);

impl Generate {
    /// Continues from the session's last token.
    pub fn new() -> Self {
        Generate::default()
    }

    /// Appends text to the session before the turn.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.0.prompt = Some(text_prompt(text));
        self
    }

    /// Appends tokens to the session before the turn.
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

/// Prompt of plain text.
pub(crate) fn text_prompt(text: impl Into<String>) -> v1::Prompt {
    prompt(What::Text(text.into()))
}

/// Prompt of tokens.
pub(crate) fn token_prompt(ids: impl Into<Vec<u32>>) -> v1::Prompt {
    prompt(What::Tokens(v1::Tokens { ids: ids.into() }))
}

/// Prompt of chat messages.
pub(crate) fn chat_prompt<R: Into<String>, C: Into<String>>(
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
