//! Read-only views of open sessions.

use djinn_kv::Pager;
use djinn_model::Model;
use djinn_types::SessionId;

use super::{Session, output::Transcript, state::SessionState, status::SessionStatus};
use crate::{
    probe::{breakpoint::BreakSpec, checkpoint::Paused},
    sampling::sampler::Sampling,
};

/// Summary of an open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Session id.
    pub id: SessionId,
    /// Owner of the session.
    pub owner: String,
    /// Status of the session.
    pub status: SessionStatus,
    /// Number of tokens, given and generated.
    pub tokens: usize,
    /// Number of generated tokens.
    pub generated: usize,
    /// Number of KV pages that the session holds.
    pub pages: usize,
    /// Number of held pages that are not on the device.
    pub away: usize,
}

/// Read-only view of one open session.
#[derive(Clone, Copy)]
pub struct SessionView<'e> {
    session: &'e Session,
    model: &'e Model,
    pager: &'e Pager,
}

impl<'e> SessionView<'e> {
    pub(crate) fn new(session: &'e Session, model: &'e Model, pager: &'e Pager) -> Self {
        SessionView {
            session,
            model,
            pager,
        }
    }

    /// Returns a summary of the session.
    pub fn info(&self) -> SessionInfo {
        let session = self.session;
        SessionInfo {
            id: session.id,
            owner: session.owner.clone(),
            status: session.state.status(),
            tokens: session.tokens.len(),
            generated: session.generated(),
            pages: session.pages.len(),
            away: self.pager.pages().nonresident(&session.pages),
        }
    }

    /// Returns the status of the session.
    pub fn status(&self) -> SessionStatus {
        self.session.state.status()
    }

    /// Whether the session has tokens to run, and no pass has taken it since it got them.
    pub fn awaits_first_pass(&self) -> bool {
        self.session.awaits_first_pass()
    }

    /// Whether no pass has run a token of the session.
    pub fn has_run_nothing(&self) -> bool {
        self.session.has_run_nothing()
    }

    /// Whether the session waits for more input after a turn instead of ending.
    pub fn is_kept(&self) -> bool {
        self.session.keep
    }

    /// Returns how the session samples its tokens.
    pub fn sampling(&self) -> &'e Sampling {
        &self.session.sampling
    }

    /// Returns the stop strings.
    pub fn stop(&self) -> &'e [String] {
        &self.session.stop
    }

    /// Returns all tokens, given and generated.
    pub fn tokens(&self) -> &'e [u32] {
        &self.session.tokens
    }

    /// Returns the number of tokens whose keys and values the prefix cache had, since the last
    /// input.
    pub fn reused(&self) -> usize {
        self.session.reused
    }

    /// Returns the number of generated tokens.
    pub fn generated(&self) -> usize {
        self.session.generated()
    }

    /// Returns the transcript so far.
    pub fn transcript(&self) -> Transcript {
        let session = self.session;
        let (finish, failure) = match &session.state {
            SessionState::Done { finish, failure } => (Some(*finish), failure.clone()),
            _ => (None, None),
        };
        let (_, generated) = session.given_and_generated();
        Transcript {
            prompt: session.tokens[..session.prompt()].to_vec(),
            generated,
            logprobs: session.logprobs.clone(),
            finish,
            failure,
            captured: session.captured.clone(),
        }
    }

    /// Returns the number of bytes that captures of a turn of `tokens` more tokens take.
    pub fn captured_bytes(&self, tokens: usize) -> u64 {
        let session = self.session;
        let end = session.tokens.len().saturating_add(tokens);
        let end = end.min(session.context);
        let turn = session.turn_start().min(end)..end;
        let (program, prompt) = (&self.model.program, session.prompt());
        session.probe.captured_bytes(program, turn, prompt)
    }

    /// Returns the hook and tokens at which the session is paused, if it is.
    pub fn paused(&self) -> Option<Paused> {
        let session = self.session;
        session.paused().filter(|_| session.state.is_paused())
    }

    /// Returns the shape of the activation at the hook, if the session has a checkpoint.
    pub fn activation_shape(&self) -> Option<Vec<usize>> {
        let checkpoint = self.session.checkpoint()?;
        Some(checkpoint.shape(&self.model.program.dims))
    }

    /// Returns the breakpoints of the session.
    pub fn breakpoints(&self) -> Vec<BreakSpec> {
        self.session.probe.break_specs()
    }
}
