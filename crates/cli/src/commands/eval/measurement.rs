//! One measurement: runs an experiment and writes its result.

use std::{io::IsTerminal, path::Path};

use djinn_eval::{EvalConfig, EvalProgress, ProgressSink, ServerLocation, Testbed, TestbedOptions};
use djinn_report::{Experiment, ResultFile};
use djinn_terminal::{Failure, Interrupt};
use tokio::runtime::{Builder, Runtime};

use crate::{args::MeasuringArgs, bundled, progress::Spinner};

/// Names of baselines that Djinn computes itself.
const OWN_BASELINES: [&str; 3] = ["ring_buffer", "djinn", "stateless"];

/// An experiment to run.
pub struct Measurement<'a> {
    /// Experiment.
    pub experiment: Experiment,
    /// Configuration of the experiment.
    pub config: &'a EvalConfig,
    /// Python interpreter of the baselines.
    pub python: &'a str,
    /// Path of the result.
    pub output: &'a Path,
    /// Ctrl-C, which ends the experiment and its baselines.
    pub interrupt: &'a Interrupt,
}

/// Applies flags in place of values of the configuration.
pub fn apply_flags(config: &mut EvalConfig, args: &MeasuringArgs) -> Result<(), Failure> {
    if let Some(runs) = args.runs {
        config.experiment.measurement.runs = u32::try_from(runs)?;
    }
    if args.no_peers {
        let is_own = |name: &str| OWN_BASELINES.iter().any(|start| name.starts_with(start));
        config.baselines.retain(|name, _| is_own(name));
    }
    Ok(())
}

impl Measurement<'_> {
    /// Runs the experiment on a server and writes its result.
    pub fn run(&self, location: ServerLocation) -> Result<ResultFile, Failure> {
        let words: Vec<String> = std::env::args().collect();
        let fault = |error| Failure::Message(format!("cannot start threads: {error}"));
        let server = match location {
            ServerLocation::InProcess(_) => Some(server_runtime().map_err(fault)?),
            ServerLocation::Remote { .. } => None,
        };
        // The client has one thread, as most clients have.
        let client = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(fault)?;
        let options = TestbedOptions {
            location,
            serving: server.as_ref().unwrap_or(&client).handle().clone(),
            bundled: bundled::bundled()?,
            python: self.python.to_owned(),
            command: command_line(&words),
            progress: progress(),
        };
        let mut result = client.block_on(async {
            // Pushing a folder to a server takes a while, so Ctrl-C ends it too.
            let testbed = tokio::select! {
                testbed = Testbed::open(self.config, options) => testbed?,
                () = self.interrupt.pressed() => return Err(Failure::Interrupted),
            };
            let result = tokio::select! {
                result = djinn_eval::run(self.experiment, self.config, &testbed) => {
                    result.map_err(Failure::from)
                }
                () = self.interrupt.pressed() => Err(Failure::Interrupted),
            };
            testbed.close().await;
            result
        })?;
        result.write(self.output)?;
        Ok(result)
    }
}

/// Threads of a server in process.
fn server_runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(djinn_device::host::cores().clamp(2, 8))
        .thread_name("server")
        .enable_all()
        .build()
}

/// Command line that repeats the measurement: without the program's path and without the key.
fn command_line(words: &[String]) -> String {
    let quoted = |word: &String| match word.contains([' ', '*', '?', '&', '\'']) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    let mut is_key = false;
    let shown = words.iter().skip(1).map(|word| {
        let was_key = std::mem::replace(&mut is_key, word == "--key");
        match (was_key, word.starts_with("--key=")) {
            (true, _) => "KEY".to_owned(),
            (false, true) => "--key=KEY".to_owned(),
            (false, false) => word.clone(),
        }
    });
    let shown: Vec<String> = shown.collect();
    let rest = shown.iter().map(quoted);
    std::iter::once("djinn".to_owned())
        .chain(rest)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Prints progress: a changing line on a terminal, one line for each step elsewhere.
fn progress() -> ProgressSink {
    if !std::io::stderr().is_terminal() {
        return Box::new(|progress| match progress {
            EvalProgress::Step(text) => eprintln!("… {text}"),
            EvalProgress::Result(text) => eprintln!("{text}"),
        });
    }
    let spinner = Spinner::new("starting");
    Box::new(move |progress| match progress {
        EvalProgress::Step(text) => spinner.show(text.to_owned()),
        EvalProgress::Result(text) => spinner.note(text),
    })
}

#[cfg(test)]
mod tests {
    use super::command_line;

    #[test]
    fn a_command_line_can_be_repeated() {
        let words = ["/x/djinn", "eval", "--model", "shape:a?layers=2", "it's"];
        let words = words.map(str::to_owned);
        let expect = r"djinn eval --model 'shape:a?layers=2' 'it'\''s'";
        assert_eq!(command_line(&words), expect);
        let words = ["djinn", "eval", "--key", "s3cret", "--key=s3cret", "x"].map(str::to_owned);
        assert_eq!(command_line(&words), "djinn eval --key KEY --key=KEY x");
    }
}
