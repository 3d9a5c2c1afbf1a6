//! Engine of this process without a server, for commands that measure or change many sessions at once.

use djinn_engine::{Blueprint, Engine, Finish, Request, SessionId, Settings, Transcript};
use djinn_model::Model;

use crate::{args::Settled, failure::Failure, progress::Loading};

/// Loads an engine laid out for these requests and opens a session for each.
pub fn start(
    settled: &Settled,
    model: Model,
    requests: Vec<Request>,
) -> Result<(Engine, Vec<SessionId>), Failure> {
    let settings = Settings::for_requests(&model, &requests, settled.args.rows)?;
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let mut engine = load(settled, model, blueprint)?;
    let ids = requests
        .into_iter()
        .map(|request| engine.open(request))
        .collect::<Result<_, _>>()?;
    Ok((engine, ids))
}

/// Checks a blueprint, prints what stays in memory and what streams, and loads it.
pub fn load(settled: &Settled, model: Model, blueprint: Blueprint) -> Result<Engine, Failure> {
    load_notes(settled, &model, &blueprint)?;
    let loading = Loading::new(&model.name);
    let backend = settled.backend();
    Ok(Engine::load(model, backend, blueprint, &mut |p| {
        loading.update(p);
    })?)
}

/// Checks a blueprint, and prints what stays in memory, what streams, and flags without effect.
pub fn load_notes(settled: &Settled, model: &Model, blueprint: &Blueprint) -> Result<(), Failure> {
    settled.check_budget(blueprint.memory().budget)?;
    blueprint.check(settled.backend())?;
    eprintln!("{}: {}", model.name, blueprint.reason());
    settled.device.say();
    eprint!("{}", unused_flags(settled, blueprint));
    Ok(())
}

/// Runs passes until no session can run. The first failure ends the command.
pub fn run_out(engine: &mut Engine) -> Result<(), Failure> {
    while !engine.is_idle() {
        if let Some(failure) = engine.step()?.into_iter().find_map(|output| output.failure) {
            return Err(Failure::Message(failure.message));
        }
    }
    Ok(())
}

/// Notes about flags without effect.
pub fn unused_flags(settled: &Settled, blueprint: &Blueprint) -> String {
    let args = &settled.args;
    let mut notes = String::new();
    let on_card = settled.backend().card().is_some();
    if args.device.threads.is_some() && on_card {
        notes += "note: the card computes, so --threads is not used\n";
    }
    if args.memory.host_memory.is_some() && blueprint.host_bytes() == 0 {
        notes += "note: nothing waits in host memory, so --host-memory is not used\n";
    }
    if args.memory.ring.is_some() && blueprint.plan().ring.slots.is_empty() {
        notes += "note: no ring is needed, so --ring is not used\n";
    }
    if !blueprint.memory().prefetch && !blueprint.plan().streams() {
        notes += "note: nothing streams, so --prefetch off changes nothing\n";
    }
    notes
}

/// Closes a session that has finished. A value that is not a number is an error.
pub fn finish(engine: &mut Engine, id: SessionId) -> Result<Transcript, Failure> {
    let transcript = engine
        .close(id)
        .expect("a command closes only sessions that it opened");
    if transcript.finish == Some(Finish::NotANumber) {
        return Err(Failure::Message(
            "the model computed a value that is not a number: its weights or the edits are broken"
                .into(),
        ));
    }
    Ok(transcript)
}
