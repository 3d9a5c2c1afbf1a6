//! One file a command, and what they share: starting an engine, and its end.

pub mod bench;
pub mod inspect;
pub mod plan;
pub mod pull;
pub mod run;
pub mod shape;
pub mod trace;

mod prompt;
mod watch;

use djinn_engine::{Blueprint, Engine, Finish, Request, SessionId, Settings, Transcript};
use djinn_model::Model;

use crate::{args::ModelArgs, failure::Failure, progress::Loading};

/// An engine laid out for these requests, with all of them opened. Says before loading
/// what stays in memory and what streams.
fn start(
    args: &ModelArgs,
    model: Model,
    requests: Vec<Request>,
) -> Result<(Engine, Vec<SessionId>), Failure> {
    let settings = Settings::for_requests(&model, &requests, args.rows)?;
    let backend = args.device.backend();
    let blueprint = Blueprint::draw(&model, &backend, settings, args.memory.settled())?;
    eprintln!("{}: {}", model.name, blueprint.reason());
    note_what_is_unused(args, &blueprint);
    let footprint = blueprint.footprint();
    let loading = Loading::new(&model.name, footprint.resident + footprint.pool);
    let mut engine = Engine::load(model, &backend, blueprint, &mut |p| loading.update(p))?;
    drop(loading);
    let ids = requests
        .into_iter()
        .map(|request| engine.open(request))
        .collect::<Result<_, _>>()?;
    Ok((engine, ids))
}

/// Tells of flags that change nothing, because nothing streams.
fn note_what_is_unused(args: &ModelArgs, blueprint: &Blueprint) {
    if args.memory.ring.is_some() && blueprint.plan().ring.slots.is_empty() {
        eprintln!("note: nothing streams, so --ring is not used");
    }
}

/// Ends a session that ran to its end, and says so where it broke down.
fn finish(engine: &mut Engine, id: SessionId) -> Result<Transcript, Failure> {
    let transcript = engine.close(id).expect("a command closes what it opened");
    if transcript.finish == Some(Finish::NotANumber) {
        return Err(Failure::Message(
            "the model computed something that is not a number: weights or edits are broken".into(),
        ));
    }
    Ok(transcript)
}
