//! The command line: parses flags, talks to a server through the client, prints text or JSON.

#![forbid(unsafe_code)]

mod args;
mod bundled;
mod commands;
mod progress;
mod timeline;

use std::process::ExitCode;

use clap::{FromArgMatches, error::ErrorKind};

use args::{Cli, Command};
use djinn_terminal::Failure;

fn main() -> ExitCode {
    let parsed = args::command().try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse_flags(&error),
    };
    if let Err(message) = args::check_environment() {
        eprintln!("djinn: {message}");
        return ExitCode::from(2);
    }
    let done = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::chat(&args),
        Command::Trace(args) => commands::trace::trace(&args),
        Command::Debug(args) => commands::debug::debug(&args),
        Command::Lens(args) => commands::lens::lens(&args),
        Command::Patch(args) => commands::patch::patch(&args),
        Command::Steer(args) => commands::steer::steer(&args),
        Command::Serve(_) => commands::serve::serve(),
        Command::Models(args) => commands::models::models(args),
        Command::Top(args) => commands::top::top(&args),
        Command::Plan(args) => commands::plan::plan(&args),
        Command::Inspect(args) => commands::inspect::inspect(&args),
        Command::Pull(args) => commands::pull::pull(&args),
        Command::Shape(args) => commands::shape::shape(&args),
        Command::Doctor(args) => commands::doctor::doctor(&args),
        Command::Selftest(args) => commands::selftest::selftest(&args),
        Command::Bench(args) => commands::bench::bench(args),
        Command::Eval(args) => commands::eval::eval(&args),
        Command::Report(args) => commands::report::report(&args),
        Command::Sessions(args) => commands::sessions::sessions(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // A reader such as `head` has enough output.
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::from(2),
        Err(Failure::Interrupted) => {
            eprintln!("djinn: interrupted");
            // Exit status of a process that SIGINT ended, as a shell reports it.
            ExitCode::from(130)
        }
        Err(Failure::Message(message)) => {
            eprintln!("djinn: {message}");
            ExitCode::from(2)
        }
    }
}

/// Prints help as it is, and an error about flags as one line.
fn refuse_flags(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A failure to print the help cannot be reported either.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
    }
    let text = error.to_string();
    let problem = text.split("\n\n").next().unwrap_or_default();
    let line: Vec<&str> = problem.split_whitespace().collect();
    let line = line.join(" ");
    eprintln!("djinn: {}", line.trim_start_matches("error: "));
    ExitCode::from(2)
}
