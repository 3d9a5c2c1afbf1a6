//! `djinn debug`: a session stopped at hooks, from a terminal or a script.

mod command;
mod debugger;
mod local;
mod show;
pub mod target;
mod terminal;

use djinn_engine::{Blueprint, Probe, ProbeLimits, Request, Settings};
use djinn_model::Model;

use super::{load, prompt, remote, watch::Watch};
use crate::{
    args::DebugArgs,
    bundled,
    failure::{Failure, say},
};
use command::Command;
use debugger::{Debugger, Flow};
use local::Local;
use target::Target;

/// Rows of a pass at most: all of them may go through the head.
const ROWS: usize = 128;
/// Branches and steps back there is room for.
const SPARE: usize = 24;

/// Looks into a model step by step.
pub fn debug(args: &DebugArgs) -> Result<(), Failure> {
    let script = match &args.script {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?)
        }
        None => None,
    };
    let target: Box<dyn Target> = match args.server.server {
        Some(_) => Box::new(remote::debug::Remote::connect(args)?),
        None => Box::new(local(args)?),
    };
    let mut debugger = Debugger::new(target, args.breaks.clone());
    match script {
        Some(script) => run_script(&mut debugger, &script),
        None => terminal::run(&mut debugger),
    }
}

/// An engine of this process, with the session opened.
fn local(args: &DebugArgs) -> Result<Local, Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let tokens = prompt::tokens(&model, &args.prompt)?;
    let probe = Probe::default().with_breaks(&model.program, &args.breaks)?;
    let request = Request {
        max_tokens: args.max_tokens,
        eos: model.generation.eos.clone(),
        probe,
        tokens,
        ..Request::default()
    };
    let settled = args.model.settled()?;
    let settings = settings(&model, &request)?;
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let engine = load(&settled, model, blueprint, &mut Watch::default())?;
    Local::new(engine, request)
}

/// Room for the session, its branches, and one for a lens over all blocks.
fn settings(model: &Model, request: &Request) -> Result<Settings, Failure> {
    let dims = &model.program.dims;
    let context = (request.tokens.len() + request.max_tokens).min(dims.context);
    let sessions = SPARE + 2;
    let one = Settings::for_sessions(&model.program, 1, context, ROWS)?;
    Ok(Settings {
        sessions,
        open: sessions,
        rows: ROWS.max(sessions),
        pages: (sessions + 2) * one.pages,
        logit_rows: ROWS.max(sessions),
        probe_limits: ProbeLimits::anything(&model.program, context),
        ..one
    })
}

/// Every line of a script, as if it had been typed; shown before what it gives.
fn run_script(debugger: &mut Debugger, script: &str) -> Result<(), Failure> {
    for (number, line) in (1..).zip(script.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        say(&format!("> {line}\n"))?;
        let told = line.parse::<Command>().map_err(Failure::Message);
        match told.and_then(|command| debugger.obey(command)) {
            Ok(Flow::On(text)) => say(&text)?,
            Ok(Flow::End) => return Ok(()),
            Err(Failure::Message(message)) => {
                return Err(Failure::Message(format!("line {number}: {message}")));
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
