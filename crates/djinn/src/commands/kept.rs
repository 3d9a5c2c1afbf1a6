//! Sessions that `djinn run` keeps in a folder.

use std::path::Path;

use djinn_engine::{Blueprint, Engine, Request, SessionId, SessionState, Settings, Wanted};
use djinn_model::Model;

use super::{load, watch::Watch};
use crate::{
    args::{PromptArgs, RunArgs, Settled},
    failure::Failure,
};

/// Positions a kept session may come to, unless its model has fewer.
const CONTEXT: usize = 4096;

/// An engine that keeps its sessions in a folder, with one that runs: a new one, or one that
/// goes on. Says which, and how many tokens that had generated.
pub fn start(
    settled: &Settled<'_>,
    model: Model,
    args: &RunArgs,
    request: Request,
    watch: &mut Watch,
) -> Result<(Engine, SessionId, usize), Failure> {
    let folder = args.state.as_deref().unwrap_or(Path::new("."));
    let state = SessionState::open(folder)?;
    if state.torn() > 0 {
        let torn = state.torn();
        eprintln!("note: {torn} bytes that were not yet acknowledged are dropped from the log");
    }
    let told = match args.session {
        Some(_) => more(&model, &args.prompt)?,
        None => Vec::new(),
    };
    let context = model.program.dims.context.min(CONTEXT);
    let settings = Settings::for_sessions(&model.program, 1, context, settled.args.rows)?;
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let wanted = match args.session {
        Some(id) => Wanted::One(SessionId(id)),
        None => Wanted::None,
    };
    if let Wanted::One(id) = wanted {
        state.get(id)?;
    }
    let mut engine = load(settled, model, blueprint, watch)?;
    let restored = engine.keep_state(state, wanted)?;
    if let Some((_, error)) = restored.refused.into_iter().next() {
        return Err(error.into());
    }
    let Wanted::One(id) = wanted else {
        let keep = true;
        let id = engine.open(Request { keep, ..request })?;
        return Ok((engine, id, 0));
    };
    // A turn that was cut off is brought to its end first.
    while !engine.is_idle() {
        engine.step()?;
    }
    let before = engine.transcript(id).map_or(0, |t| t.generated.len());
    engine.say(id, &told, request.max_tokens)?;
    Ok((engine, id, before))
}

/// The tokens of what a session is told: as text goes on, without a beginning of its own.
fn more(model: &Model, args: &PromptArgs) -> Result<Vec<u32>, Failure> {
    if args.chat {
        return Err(Failure::Message(
            "--chat begins a conversation; what a session is told later goes on as it is: leave \
             --chat out, and write what the model expects between turns"
                .into(),
        ));
    }
    match (&args.tokens, &args.prompt, &model.text) {
        (Some(tokens), ..) => Ok(tokens.clone()),
        (None, None, _) => Ok(Vec::new()),
        (None, Some(prompt), Some(text)) => Ok(text.encode_plain(prompt)?),
        (None, Some(_), None) => Err(Failure::Message(format!(
            "{} has no tokenizer.json: give what it is told as --tokens 1,2,3",
            model.name
        ))),
    }
}
