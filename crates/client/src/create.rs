//! What a session is asked for: to begin, to generate more, to go on from where it stopped.

use std::time::Duration;

use djinn_wire::v1::{self, prompt::What, resume_request::Until};

use crate::{client::Client, edit::HookEdit, error::Error, events::EventStream};

/// A session to begin; [`Create::open`] does. Made by [`ModelHandle::session`](crate::ModelHandle::session).
#[derive(Clone, Debug)]
#[must_use = "nothing is asked before it is opened"]
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

    /// Begins with text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.prompt(text_prompt(text))
    }

    /// Begins with tokens, exactly as given.
    pub fn tokens(self, ids: impl Into<Vec<u32>>) -> Self {
        self.prompt(token_prompt(ids))
    }

    /// Begins with messages, each a role and what it says, through the model's chat template.
    pub fn chat<R: Into<String>, C: Into<String>>(
        self,
        messages: impl IntoIterator<Item = (R, C)>,
    ) -> Self {
        self.prompt(chat_prompt(messages))
    }

    /// Begins with a prompt as it travels.
    pub fn prompt(mut self, prompt: v1::Prompt) -> Self {
        self.asked.prompt = Some(prompt);
        self
    }

    /// Generates so many tokens at most; zero only runs the prompt.
    pub fn max_tokens(mut self, count: u64) -> Self {
        self.asked.max_tokens = Some(count);
        self
    }

    /// Chooses tokens like this.
    pub fn sampling(mut self, sampling: v1::Sampling) -> Self {
        self.asked.sampling = Some(sampling);
        self
    }

    /// Ends where this text appears. May be said again for another.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.asked.stop.push(text.into());
        self
    }

    /// Goes on past tokens that end a text.
    pub fn ignore_eos(mut self) -> Self {
        self.asked.ignore_eos = true;
        self
    }

    /// Reads at hooks: `HOOK[PART][@POSITIONS][|REDUCTION]`. May be said again for others.
    pub fn capture(mut self, capture: impl Into<String>) -> Self {
        self.asked.captures.push(capture.into());
        self
    }

    /// Which positions are read by captures that do not say.
    pub fn capture_positions(mut self, positions: impl Into<String>) -> Self {
        self.asked.capture_positions = positions.into();
        self
    }

    /// Changes something for as long as the session lives. May be said again; they come in order.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.asked.edits.push(edit.into());
        self
    }

    /// Changes something for the first turn alone, after what lasts. May be said again.
    pub fn turn_edit(mut self, edit: HookEdit) -> Self {
        self.asked.turn_edits.push(edit.into());
        self
    }

    /// Stops there: `HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]`. May be said again for others.
    pub fn breakpoint(mut self, breakpoint: impl Into<String>) -> Self {
        self.asked.breakpoints.push(breakpoint.into());
        self
    }

    /// Keeps the session when its turn is over, and when the connection is.
    pub fn keep(mut self) -> Self {
        self.asked.keep = true;
        self
    }

    /// How long it stays while nobody uses it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.asked.lease_s = Some(lease.as_secs_f64());
        self
    }

    /// After how long it is over, whatever it has generated.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.asked.deadline_s = Some(deadline.as_secs_f64());
        self
    }

    /// Lets others go first.
    pub fn batch(mut self) -> Self {
        self.asked.priority = v1::Priority::Batch.into();
        self
    }

    /// Begins it.
    pub async fn open(self) -> Result<EventStream, Error> {
        let stream = self.client.sessions_service().create(self.asked).await?;
        EventStream::open(self.client, stream.into_inner()).await
    }
}

/// What a session that waits is told, and how much it may say.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is asked before a session is"]
pub struct Generate(pub(crate) v1::GenerateRequest);

impl Generate {
    /// Goes on from its last token.
    pub fn new() -> Self {
        Generate::default()
    }

    /// Told this text first.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.0.prompt = Some(text_prompt(text));
        self
    }

    /// Told these tokens first.
    pub fn tokens(mut self, ids: impl Into<Vec<u32>>) -> Self {
        self.0.prompt = Some(token_prompt(ids));
        self
    }

    /// Generates so many tokens at most.
    pub fn max_tokens(mut self, count: u64) -> Self {
        self.0.max_tokens = Some(count);
        self
    }

    /// Changes something for this turn alone. May be said again; they come in order.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.0.edits.push(edit.into());
        self
    }
}

/// How a session that stopped goes on: as it is to the next breakpoint, unless told.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is asked before a session is"]
pub struct Resume(pub(crate) v1::ResumeRequest);

impl Resume {
    /// As it is, to the next breakpoint.
    pub fn new() -> Self {
        Resume::default()
    }

    /// Changes what is at the hook first. May be said again; they come in order.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.0.edits.push(edit.into());
        self
    }

    fn until(mut self, until: Until) -> Self {
        self.0.until = Some(until);
        self
    }

    /// To the next hook.
    pub fn to_next_hook(self) -> Self {
        self.until(Until::NextHook(true))
    }

    /// To the end of the block it is in, or of the next.
    pub fn to_next_block(self) -> Self {
        self.until(Until::NextBlock(true))
    }

    /// To this hook.
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

/// Messages as they travel.
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
