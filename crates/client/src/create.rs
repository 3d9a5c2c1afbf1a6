//! Setup of a new session.

use std::time::Duration;

use djinn_wire::v1;

use crate::{
    connection::GrpcConnection,
    edit::HookEdit,
    error::Error,
    session::EventStream,
    turn_setup::{chat_prompt, text_prompt, token_prompt},
};

/// Setup of a new session. [`ModelHandle::session`](crate::ModelHandle::session) creates the
/// setup, and [`Create::open`] opens the session.
#[derive(Clone, Debug)]
#[must_use = "call open to open the session"]
pub struct Create {
    connection: GrpcConnection,
    asked: v1::CreateRequest,
}

impl Create {
    pub(crate) fn new(connection: GrpcConnection, model: String) -> Self {
        let asked = v1::CreateRequest {
            model,
            ..v1::CreateRequest::default()
        };
        Create { connection, asked }
    }

    /// Sets the prompt to text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.prompt(text_prompt(text))
    }

    /// Sets the prompt to tokens. The server adds no tokens around them.
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

    /// Sets the positions of captures that have none of their own.
    pub fn capture_positions(mut self, positions: impl Into<String>) -> Self {
        self.asked.capture_positions = positions.into();
        self
    }

    /// Adds an edit of every turn. Edits apply in the order of the calls.
    pub fn edit(mut self, edit: HookEdit) -> Self {
        self.asked.edits.push(edit.into());
        self
    }

    /// Adds an edit of the first turn only. The edit applies after the edits of every turn.
    pub fn turn_edit(mut self, edit: HookEdit) -> Self {
        self.asked.turn_edits.push(edit.into());
        self
    }

    /// Adds a breakpoint: `HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]`.
    pub fn breakpoint(mut self, breakpoint: impl Into<String>) -> Self {
        self.asked.breakpoints.push(breakpoint.into());
        self
    }

    /// Keeps the session open after its turn, and after the connection ends.
    pub fn keep(mut self) -> Self {
        self.asked.keep = true;
        self
    }

    /// Sets the lease: the time that an unused session stays open.
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
        let stream = self
            .connection
            .sessions_service()
            .create(self.asked)
            .await?;
        EventStream::open(self.connection, stream.into_inner()).await
    }
}
