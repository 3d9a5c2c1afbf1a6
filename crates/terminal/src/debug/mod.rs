//! Debugger: a session that pauses at hooks, driven from a terminal or a script.

mod command;
mod debugger;
mod options;
mod show;
mod target;
mod terminal;

use djinn_client::{Client, ModelHandle, v1};
use tokio::runtime::Runtime;

use crate::output::{Failure, say};
use command::DebugCommand;
use debugger::{DebugFlow, Debugger};
use target::DebugTarget;

pub use options::DebugOptions;

/// Debugs a model step by step.
pub fn debug(
    runtime: &Runtime,
    client: Client,
    model: ModelHandle,
    info: v1::Model,
    options: DebugOptions,
) -> Result<(), Failure> {
    let target = DebugTarget::new(runtime, client, model, info, &options)?;
    let mut debugger = Debugger::new(target, options.breaks);
    match options.script {
        Some(script) => run_script(&mut debugger, &script),
        None => terminal::run(&mut debugger),
    }
}

/// Runs every line of a script and prints it before its output.
fn run_script(debugger: &mut Debugger<'_>, script: &str) -> Result<(), Failure> {
    for (number, line) in (1..).zip(script.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        say(&format!("> {line}\n"))?;
        let parsed = line.parse::<DebugCommand>().map_err(Failure::Message);
        match parsed.and_then(|command| debugger.run(command)) {
            Ok(DebugFlow::Continue(text)) => say(&text)?,
            Ok(DebugFlow::End) => return Ok(()),
            Err(Failure::Message(message)) => {
                return Err(Failure::Message(format!("line {number}: {message}")));
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
