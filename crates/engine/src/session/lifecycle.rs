//! Opening sessions and extending their turns.

use djinn_kv::PageTable;
use djinn_model::Model;
use djinn_types::SessionId;

use super::{
    Session,
    checker::{CheckedRequest, RequestChecker},
    lifetime::Lifetime,
    probe_reserve::ProbeReserve,
    request::check_tokens,
    state::{OwnerAction, PassRoute, SessionState},
};
use crate::{
    error::EngineError,
    probe::{Probe, captured::Captured, edit::EditSpec},
    sampling::stop_strings::TextStream,
    scheduler::fair_share::FairShare,
    settings::Settings,
};

/// Creates a session that has run nothing yet.
pub(crate) fn create(
    model: &Model,
    settings: &Settings,
    checked: CheckedRequest,
    id: SessionId,
    fair_share: FairShare,
) -> Session {
    let request = checked.request;
    let context = model.program.dims.context;
    let prompt = request.tokens.len();
    Session {
        id,
        text: text_stream(model, &request.tokens, &request.stop),
        given: std::iter::once(0..prompt).collect(),
        tokens: request.tokens,
        computed: 0,
        reused: 0,
        adopted: 0,
        was_looked_up: false,
        logged: 0,
        owes_state: false,
        max_tokens: request.max_tokens,
        keep: request.keep,
        context: match request.keep {
            true => context.min(settings.context),
            false => context,
        },
        pages: PageTable::new(settings.page_tokens),
        shares: checked.shares,
        pages_most: checked.pages_most,
        fair_share,
        sampling: request.sampling,
        eos: request.eos,
        stop: request.stop,
        logprobs: Vec::new(),
        probe: request.probe,
        captured: Captured::default(),
        reserve: checked.reserve,
        last_pause: None,
        state: SessionState::Queued {
            route: PassRoute::default(),
        },
        transient: request.transient,
        owner: request.owner,
        lifetime: Lifetime::new(request.deadline, request.lease),
    }
}

/// Tokens and limits of a turn that an owner appends to a session, checked against it.
pub(crate) struct NextTurn {
    pub tokens: Vec<u32>,
    /// Number of generated tokens at which the turn ends.
    pub max_tokens: usize,
    /// Probe of the session from this turn on.
    pub probe: Probe,
    /// Host memory that the turn can take for its probe.
    pub reserve: ProbeReserve,
}

impl NextTurn {
    /// Checks a turn of `max_tokens` more tokens after `tokens`, with edits for this turn only.
    pub fn new(
        checker: &RequestChecker,
        session: &Session,
        tokens: &[u32],
        max_tokens: usize,
        edits: &[EditSpec],
    ) -> Result<Self, EngineError> {
        let id = session.id;
        check_tokens(checker.program(), tokens)?;
        if !session.keep {
            return Err(EngineError::NotKept(id));
        }
        let (prompt, context) = (session.tokens.len() + tokens.len(), session.context);
        if prompt > context {
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        if session.checkpoint().is_some() {
            return Err(EngineError::MidPass(id));
        }
        if tokens.is_empty() && session.pending() == 0 {
            return Err(EngineError::NothingToRun(id));
        }
        let end = prompt.saturating_add(max_tokens.saturating_sub(1));
        let probe = turn_probe(checker, session, end, edits)?;
        session.check(OwnerAction::Append)?;
        let (start, end) = (session.turn_start(), end.min(context));
        let mut reserve = checker.reserve(&probe, start.min(end)..end, session.prompt());
        let held = session.captured.bytes();
        reserve.captures = reserve.captures.saturating_add(held);
        Ok(NextTurn {
            reserve,
            tokens: tokens.to_vec(),
            max_tokens: session.generated().saturating_add(max_tokens),
            probe,
        })
    }

    /// Appends the turn to its session, which has been resumed.
    pub fn apply(self, model: &Model, session: &mut Session) {
        let start = session.tokens.len();
        session.tokens.extend(&self.tokens);
        session.logged = session.tokens.len();
        session.reused = 0;
        if !self.tokens.is_empty() {
            session.given.push(start..session.tokens.len());
        }
        session.max_tokens = self.max_tokens;
        session.probe = self.probe;
        session.reserve = self.reserve;
        session.shares = session.shares.min(session.first_probed());
        session.text = text_of(model, session);
    }
}

/// Returns the probe of a session from its next turn on, with edits for that turn, which runs
/// the positions before `end` at most.
fn turn_probe(
    checker: &RequestChecker,
    session: &Session,
    end: usize,
    edits: &[EditSpec],
) -> Result<Probe, EngineError> {
    let (start, prompt, context) = (session.turn_start(), session.prompt(), session.context);
    let new = Probe::default().with_turn_edits(checker.program(), edits)?;
    let new = new.starting_at(start, context, prompt);
    let positions = end.min(context);
    new.check(prompt, positions)?;
    checker.settings().probe_limits.check(&new, positions)?;
    let new = new.pinned(prompt, positions);
    Ok(session.probe.after_turn(start, prompt).and_edits(&new))
}

/// Returns a decoder for the tokens that a session generates next. The decoder has read the
/// tokens generated since the last input, because a stop string may have begun there.
pub(crate) fn text_of(model: &Model, session: &Session) -> Option<TextStream> {
    let given = session.given.last().map_or(0, |given| given.end);
    let mut stream = text_stream(model, &session.tokens[..given], &session.stop)?;
    for token in &session.tokens[given..] {
        stream.push(*token);
    }
    Some(stream)
}

/// Returns a decoder for the tokens after `tokens`.
fn text_stream(model: &Model, tokens: &[u32], stop: &[String]) -> Option<TextStream> {
    let text = model.tokenizer.as_ref()?;
    Some(TextStream::new(text.decoder(tokens, true), stop.to_vec()))
}
