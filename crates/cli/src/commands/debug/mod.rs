//! `djinn debug`: a session that pauses at hooks, driven from a terminal or a script.

mod command;
mod debugger;
mod show;
mod target;
mod terminal;

use djinn_engine::{ProbeLimits, Settings};

use super::{
    connection::{LocalEngine, SettingsFn},
    prompt,
};
use crate::{
    args::{DebugArgs, PromptArgs},
    failure::{Failure, say},
};
use command::Command;
use debugger::{Debugger, Flow};
use target::DebugTarget;

/// Most rows of a pass, since all of them may pass through the head.
const ROWS: usize = 128;
/// Branches and steps back that fit in memory.
const SPARE: usize = 24;

/// Debugs a model step by step.
pub fn debug(mut args: DebugArgs) -> Result<(), Failure> {
    let script = match &args.script {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?)
        }
        None => None,
    };
    args.prompt = prompt::read(&args.prompt)?;
    let engine = LocalEngine::new(settings(args.prompt.clone(), args.max_tokens));
    let target = DebugTarget::connect(&args, engine)?;
    let mut debugger = Debugger::new(target, args.breaks.clone());
    match script {
        Some(script) => run_script(&mut debugger, &script),
        None => terminal::run(&mut debugger),
    }
}

/// Layout for the session, its branches, and a lens over all blocks.
fn settings(prompt: PromptArgs, max_tokens: usize) -> SettingsFn {
    Box::new(move |model| {
        let program = &model.program;
        let tokens = prompt::local_tokens(model, &prompt)?;
        let context = (tokens.len() + max_tokens).min(program.dims.context);
        let sessions = SPARE + 2;
        let one = Settings::for_sessions(program, 1, context, ROWS)?;
        Ok(Settings {
            sessions,
            open: sessions,
            rows: ROWS.max(sessions),
            pages: (sessions + 2) * one.pages,
            logit_rows: ROWS.max(sessions),
            probe_limits: ProbeLimits::anything(program, context),
            ..one
        })
    })
}

/// Runs every line of a script and prints it before its output.
fn run_script(debugger: &mut Debugger, script: &str) -> Result<(), Failure> {
    for (number, line) in (1..).zip(script.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        say(&format!("> {line}\n"))?;
        let parsed = line.parse::<Command>().map_err(Failure::Message);
        match parsed.and_then(|command| debugger.obey(command)) {
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
