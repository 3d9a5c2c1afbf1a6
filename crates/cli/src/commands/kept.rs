//! Sessions that `djinn run` keeps in a folder.

use std::path::Path;

use djinn_engine::{
    Blueprint, Engine, Finish, ProbeLimits, Request, RestoreScope, SessionId, Settings,
    StateFolder, Transcript,
};
use djinn_model::Model;

use super::{load, watch::Watch};
use crate::{args::Settled, failure::Failure};

/// Positions a kept session may come to, unless its model has fewer.
const CONTEXT: usize = 4096;

/// An engine that keeps its sessions in a folder, with one that runs.
pub struct Kept {
    pub engine: Engine,
    pub id: SessionId,
    /// Tokens that it had generated before this turn.
    pub generated: usize,
    /// What it generated of a turn that was cut off.
    pub rest: String,
}

/// Starts a session, or goes on with one and tells it the request's tokens.
pub fn start(
    settled: &Settled<'_>,
    model: Model,
    (folder, session): (&Path, Option<u64>),
    request: Request,
    watch: &mut Watch,
) -> Result<Kept, Failure> {
    let state = StateFolder::open(folder)?;
    if state.torn() > 0 {
        let torn = state.torn();
        eprintln!("note: {torn} bytes that were not yet acknowledged are dropped from the log");
    }
    let wanted = match session {
        Some(id) => RestoreScope::One(SessionId(id)),
        None => RestoreScope::None,
    };
    if let RestoreScope::One(id) = wanted {
        state.get(id)?;
    }
    let context = model.program.dims.context.min(CONTEXT);
    let one = Settings::for_sessions(&model.program, 1, context, settled.args.rows)?;
    // A session of the folder may change whatever there is.
    let settings = Settings {
        probe_limits: ProbeLimits::anything(&model.program, context),
        ..one
    };
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let mut engine = load(settled, model, blueprint, watch)?;
    let restored = engine.attach_state(state, wanted)?;
    if let Some((_, error)) = restored.refused.into_iter().next() {
        return Err(error.into());
    }
    let RestoreScope::One(id) = wanted else {
        let keep = true;
        let id = engine.open(Request { keep, ..request })?;
        return Ok(Kept {
            engine,
            id,
            generated: 0,
            rest: String::new(),
        });
    };
    // A turn that was cut off is brought to its end first.
    let mut rest = String::new();
    while !engine.is_idle() {
        for output in engine.step()? {
            rest.push_str(&output.text);
        }
    }
    let generated = engine
        .view(id)
        .map(|session| session.transcript())
        .map_or(0, |t| t.generated.len());
    engine
        .any_session(id)?
        .append(&request.tokens, request.max_tokens, &[])?;
    Ok(Kept {
        engine,
        id,
        generated,
        rest,
    })
}

/// What the session has come to in this turn, or why it is over.
pub fn so_far(engine: &Engine, id: SessionId, generated: usize) -> Result<Transcript, Failure> {
    let mut transcript = engine
        .view(id)
        .map(|session| session.transcript())
        .expect("it is kept");
    if let Some(finish) = transcript.finish {
        let why = transcript.failure.unwrap_or_else(|| match finish {
            Finish::Context => "no position is left in its context".to_owned(),
            Finish::NotANumber => "the model computed something that is not a number".to_owned(),
            other => other.to_string(),
        });
        return Err(Failure::Message(format!("session {} is over: {why}", id.0)));
    }
    transcript.generated.drain(..generated);
    let logprobs = transcript.logprobs.len();
    transcript.logprobs.drain(..generated.min(logprobs));
    Ok(transcript)
}
