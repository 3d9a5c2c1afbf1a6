//! Descriptions of sessions, and replays of the tokens that a session generated.

use std::sync::Arc;

use djinn_engine::{EngineError, SavedSession, SavedState, SessionId, SessionInfo};
use djinn_wire::v1::{self, event::What};

use super::events::{EventMessages, finished, message, paused};
use crate::{
    ServeError,
    app::session_name,
    auth::Caller,
    engine_thread::{LoadedModel, TurnStream, Worker},
};

/// State of a session on the engine thread.
pub struct SessionSnapshot {
    info: SessionInfo,
    paused: Option<v1::Paused>,
}

impl SessionSnapshot {
    /// Reads the state of one session.
    pub fn of(worker: &Worker, id: SessionId) -> Result<Self, ServeError> {
        let info = worker.engine.view(id).map(|session| session.info());
        let info = info.ok_or(EngineError::NoSession(id))?;
        Ok(SessionSnapshot::with_stop(worker, info))
    }

    /// Adds the breakpoint at which a session is paused, if any.
    pub fn with_stop(worker: &Worker, info: SessionInfo) -> Self {
        SessionSnapshot {
            paused: paused_at(worker, info.id),
            info,
        }
    }

    /// Describes the session as a message.
    pub fn message(self, model: &LoadedModel) -> v1::Session {
        v1::Session {
            session: session_name(model, self.info.id),
            model: model.name.clone(),
            state: self.info.status.name().to_owned(),
            tokens: self.info.tokens as u64,
            generated: self.info.generated as u64,
            pages: self.info.pages as u64,
            pages_away: self.info.away as u64,
            paused: self.paused,
            owner: self.info.owner,
            token_ids: Vec::new(),
        }
    }
}

fn paused_at(worker: &Worker, id: SessionId) -> Option<v1::Paused> {
    let at = worker
        .engine
        .view(id)
        .and_then(|session| session.paused())?;
    let shape = worker
        .engine
        .view(id)
        .and_then(|session| session.activation_shape())
        .unwrap_or_default();
    Some(paused(&at, &shape))
}

/// First message of every turn.
pub fn opened(
    model: &LoadedModel,
    id: SessionId,
    prompt_tokens: usize,
    generated: usize,
    seed: u64,
) -> v1::Event {
    message(What::Opened(v1::Opened {
        session: session_name(model, id),
        prompt_tokens: prompt_tokens as u64,
        generated: generated as u64,
        seed,
    }))
}

/// Seed of a session's sampler.
pub fn seed_of(worker: &Worker, id: SessionId) -> u64 {
    let sampling = worker.engine.view(id).map(|session| session.sampling());
    sampling.map_or(0, |sampling| sampling.seed)
}

/// Replays the tokens that a session generated from token `from` on, then follows its turn.
pub async fn follow(
    model: &Arc<LoadedModel>,
    id: SessionId,
    from: usize,
    caller: Caller,
) -> Result<EventMessages, ServeError> {
    let owner = caller.name().to_owned();
    let found = model.call(caller.name(), move |worker| {
        worker.engine.session(&owner, id)?.renew();
        let saved = worker.engine.session(&owner, id)?.export()?.session;
        let is_running = matches!(saved.state, SavedState::Ready);
        let events = is_running.then(|| worker.follow(id));
        let paused = paused_at(worker, id);
        Ok((saved, events, paused, worker.last_finish(id)))
    });
    let (saved, events, paused, finish) = found.await?;
    let generated = saved.generated();
    let first = opened(model, id, 0, from.min(generated), saved.sampling.seed);
    let mut messages = vec![first];
    messages.extend(replay(model, &saved, from));
    let turn =
        events.map(|events| TurnStream::new(Arc::clone(model), id, true, events, &caller.context));
    match (&turn, paused) {
        (Some(_), _) => {}
        (None, Some(paused)) => messages.push(message(What::Paused(paused))),
        (None, None) => messages.push(finished(finish, None, String::new(), generated, 0, true)),
    }
    let tokenizer = model.tokenizer.clone();
    Ok(EventMessages::new(messages, turn, tokenizer, caller))
}

/// Messages of the tokens that a session generated from token `from` on.
fn replay(model: &LoadedModel, saved: &SavedSession, from: usize) -> Vec<v1::Event> {
    let is_prompt = |position: usize| saved.given.iter().any(|&(a, b)| (a..b).contains(&position));
    let prompt = saved.given.first().map_or(0, |given| given.1);
    let text = model.tokenizer.text.as_ref();
    let mut decoder = text.map(|text| text.decoder(&saved.tokens[..prompt], true));
    let (mut messages, mut index) = (Vec::new(), 0);
    for (position, &id) in saved.tokens.iter().enumerate().skip(prompt) {
        let text = decoder.as_mut().and_then(|decoder| decoder.push(id));
        if is_prompt(position) {
            continue;
        }
        if index >= from {
            messages.push(message(What::Token(v1::Token {
                id,
                text: text.unwrap_or_default(),
                index: index as u64,
                logprobs: Vec::new(),
            })));
        }
        index += 1;
    }
    messages
}
