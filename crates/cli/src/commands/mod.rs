//! One file a command, and what they share: starting an engine, and its end.

pub mod bench;
pub mod chat;
pub mod debug;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod lens;
pub mod patch;
pub mod plan;
pub mod pull;
pub mod remote;
pub mod report;
pub mod run;
pub mod selftest;
pub mod serve;
pub mod sessions;
pub mod shape;
pub mod steer;
pub mod top;
pub mod trace;

mod grid;
mod interrupt;
mod kept;
mod prompt;
mod traced;
mod watch;

use djinn_engine::{Blueprint, Engine, Finish, Request, SessionId, Settings, Transcript};
use djinn_model::Model;

use crate::{args::Settled, failure::Failure, progress::Loading};
use watch::Watch;

/// An engine laid out for these requests, with all of them opened. Says before loading
/// what stays in memory and what streams.
fn start(
    settled: &Settled<'_>,
    model: Model,
    requests: Vec<Request>,
    watch: &mut Watch,
) -> Result<(Engine, Vec<SessionId>), Failure> {
    let settings = Settings::for_requests(&model, &requests, settled.args.rows)?;
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let mut engine = load(settled, model, blueprint, watch)?;
    let ids = requests
        .into_iter()
        .map(|request| engine.open(request))
        .collect::<Result<_, _>>()?;
    Ok((engine, ids))
}

/// Loads a blueprint: first what can be refused is, then what will happen is said.
fn load(
    settled: &Settled<'_>,
    model: Model,
    blueprint: Blueprint,
    watch: &mut Watch,
) -> Result<Engine, Failure> {
    let backend = settled.backend();
    settled.check_budget(blueprint.memory().budget)?;
    blueprint.check(backend)?;
    eprintln!("{}: {}", model.name, blueprint.reason());
    settled.device.say();
    eprint!("{}", unused_flags(settled, &blueprint));
    watch.measure(settled, &model, &blueprint)?;
    let loading = Loading::new(&model.name);
    let engine = Engine::load(model, backend, blueprint, &mut |p| loading.update(p))?;
    watch.begin(&engine);
    Ok(engine)
}

/// Runs until nobody can; whatever fails ends it.
fn run_out(engine: &mut Engine) -> Result<(), Failure> {
    while !engine.is_idle() {
        if let Some(failure) = engine.step()?.into_iter().find_map(|output| output.failure) {
            return Err(Failure::Message(failure));
        }
    }
    Ok(())
}

/// Tells of flags that change nothing.
fn unused_flags(settled: &Settled<'_>, blueprint: &Blueprint) -> String {
    let args = settled.args;
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
