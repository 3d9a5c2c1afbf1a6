//! Opening sessions and extending their turns.

use djinn_kv::{OutOfPages, PageTable};
use djinn_model::Model;
use djinn_types::SessionId;

use super::{
    Session,
    lifetime::Lifetime,
    request::{Request, check_tokens},
    state::{OwnerAction, PassRoute, SessionState},
};
use crate::{
    error::{EngineError, LimitKind},
    probe::{Probe, captured::Captured, edit::EditSpec},
    sampling::stop_strings::TextStream,
    scheduler::fair_share::FairShare,
    settings::Settings,
};

/// Creates a session that has run nothing yet, after all checks of its request but those of its
/// edits ([`Request::check_probe`]).
pub(crate) fn create(
    model: &Model,
    settings: &Settings,
    request: Request,
    id: SessionId,
    virtual_time: u64,
) -> Result<Session, EngineError> {
    request.check(model)?;
    let (prompt, positions) = (request.tokens.len(), request.positions(&model.program));
    check_limits(settings, &request.probe, positions, prompt)?;
    let pages = PageTable::new(settings.page_tokens);
    // A kept session reserves the full context.
    let most = match request.keep {
        true => settings.context,
        false => positions,
    };
    let (pages_most, total) = (pages.missing(most), settings.pages);
    if pages_most > total {
        let (wanted, free) = (pages_most, total);
        let error = OutOfPages {
            wanted,
            free,
            total,
        };
        return Err(error.into());
    }
    let context = model.program.dims.context;
    let first = request.probe.first(settings.context, prompt);
    Ok(Session {
        id,
        text: text_stream(model, &request.tokens, &request.stop),
        given: std::iter::once(0..prompt).collect(),
        tokens: request.tokens,
        computed: 0,
        logged: 0,
        owes_state: false,
        max_tokens: request.max_tokens,
        keep: request.keep,
        context: match request.keep {
            true => context.min(settings.context),
            false => context,
        },
        pages,
        shares: first.unwrap_or(usize::MAX),
        pages_most,
        fair_share: FairShare::new(request.class, virtual_time),
        sampling: request.sampling,
        eos: request.eos,
        stop: request.stop,
        logprobs: Vec::new(),
        probe: request.probe.pinned(prompt, positions).resolved(prompt),
        captured: Captured::default(),
        last_pause: None,
        state: SessionState::Queued {
            route: PassRoute::default(),
        },
        transient: request.transient,
        owner: request.owner,
        lifetime: Lifetime::new(request.deadline, request.lease),
    })
}

/// Refuses a request that exceeds the engine's memory limits.
fn check_limits(
    settings: &Settings,
    probe: &Probe,
    positions: usize,
    prompt: usize,
) -> Result<(), EngineError> {
    settings.probe_limits.check(probe, positions)?;
    LimitKind::Context.check(positions, settings.context)?;
    check_head_rows(settings, probe, positions, prompt)
}

/// Refuses a probe that sends more rows through the head in a pass than fit there.
pub(crate) fn check_head_rows(
    settings: &Settings,
    probe: &Probe,
    positions: usize,
    prompt: usize,
) -> Result<(), EngineError> {
    if !probe.looks_in_head() {
        return Ok(());
    }
    let rows = probe.head_rows(positions, prompt).max(1);
    let rows = rows.saturating_mul(settings.sessions).min(settings.rows);
    LimitKind::HeadRows.check(rows, settings.logit_rows)
}

/// Tokens and limits of a turn that an owner appends to a session, checked against it.
pub(crate) struct NextTurn {
    pub tokens: Vec<u32>,
    /// Number of generated tokens at which the turn ends.
    pub max_tokens: usize,
    /// Probe of the session from this turn on.
    pub probe: Probe,
}

impl NextTurn {
    /// Checks a turn of `max_tokens` more tokens after `tokens`, with edits for this turn only.
    pub fn new(
        model: &Model,
        settings: &Settings,
        session: &Session,
        tokens: &[u32],
        max_tokens: usize,
        edits: &[EditSpec],
    ) -> Result<Self, EngineError> {
        let id = session.id;
        check_tokens(&model.program, tokens)?;
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
        let probe = turn_probe(model, settings, session, end, edits)?;
        session.check(OwnerAction::Append)?;
        Ok(NextTurn {
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
        if !self.tokens.is_empty() {
            session.given.push(start..session.tokens.len());
        }
        session.max_tokens = self.max_tokens;
        session.probe = self.probe;
        session.shares = session.shares.min(session.first_probed());
        session.text = text_of(model, session);
    }
}

/// Returns the probe of a session from its next turn on, with edits for that turn, which runs
/// the positions before `end` at most.
fn turn_probe(
    model: &Model,
    settings: &Settings,
    session: &Session,
    end: usize,
    edits: &[EditSpec],
) -> Result<Probe, EngineError> {
    let (start, prompt, context) = (session.turn_start(), session.prompt(), session.context);
    let new = Probe::default().with_turn_edits(&model.program, edits)?;
    let new = new.starting_at(start, context, prompt);
    let positions = end.min(context);
    new.check(prompt, positions)?;
    settings.probe_limits.check(&new, positions)?;
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
