//! The command line: flags in, engine calls, text or JSON out.

#![forbid(unsafe_code)]

mod args;
mod bundled;
mod commands;
mod failure;
mod progress;
mod style;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => commands::run::run(args),
        Command::Trace(args) => commands::trace::trace(args),
        Command::Inspect(args) => commands::inspect::inspect(&args),
        Command::Pull(args) => commands::pull::pull(&args),
        Command::Bench(args) => commands::bench::bench(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has left: nothing went wrong.
        Err(Failure::ReaderLeft) => ExitCode::SUCCESS,
        Err(Failure::Message(message)) => {
            eprintln!("djinn: {message}");
            ExitCode::from(2)
        }
    }
}
