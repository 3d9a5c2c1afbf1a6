//! `djinn eval`

mod all;
mod place;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use djinn_eval::{EvalConfig, EvalProgress, ProgressSink, ServerLocation, Testbed, TestbedOptions};
use djinn_report::{Experiment, Outcome, ResultFile};
use tokio::runtime::Runtime;

use crate::{
    args::{Eval, EvalArgs, ExperimentArgs, MeasuringArgs},
    bundled,
    commands::interrupt::Interrupt,
    failure::{Failure, say},
    progress::Doing,
    style::{Colour, coloured, table},
};

/// Runs experiments.
pub fn eval(args: &EvalArgs) -> Result<(), Failure> {
    match &args.what {
        Eval::VirtualMemory(args) => one(Experiment::VirtualMemory, args),
        Eval::MemoryPressure(args) => one(Experiment::MemoryPressure, args),
        Eval::ResumeLatency(args) => one(Experiment::ResumeLatency, args),
        Eval::Steering(args) => one(Experiment::Steering, args),
        Eval::Agents(args) => one(Experiment::Agents, args),
        Eval::All(args) => all::all(args),
    }
}

fn one(experiment: Experiment, args: &ExperimentArgs) -> Result<(), Failure> {
    let mut config = EvalConfig::read(&args.config)?;
    if let Some(model) = &args.model {
        model.clone_into(&mut config.experiment.model.model_id);
        // What another model has its weights in is its own affair.
        config.experiment.model.dtype = None;
    }
    if let Some(memory) = args.memory {
        config.environment.max_gpu_memory_gb = Some(memory.0 as f64 / 1e9);
        config.environment.safety_margin_gb = None;
    }
    heed(&mut config, &args.measuring)?;
    let output = output(experiment, &config, args.output.as_deref())?;
    let interrupt = Interrupt::by_key()?;
    let place = place::place(&config, args)?;
    let python = &args.measuring.python;
    let result = measure(experiment, &config, place, python, &output, &interrupt)?;
    say(&told(&result, &output, &config))?;
    verdict(&[result])
}

/// What flags say in place of a configuration.
fn heed(config: &mut EvalConfig, args: &MeasuringArgs) -> Result<(), Failure> {
    if let Some(runs) = args.runs {
        config.experiment.measurement.runs = u32::try_from(runs)?;
    }
    if args.no_peers {
        let ours = ["ring_buffer", "djinn", "stateless"];
        let is_ours = |name: &str| ours.iter().any(|start| name.starts_with(start));
        config.baselines.retain(|name, _| is_ours(name));
    }
    Ok(())
}

/// Where the result goes. Refused before anything is measured if nothing can be written there.
fn output(
    experiment: Experiment,
    config: &EvalConfig,
    asked: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let path = match (asked, &config.output.results_dir) {
        (Some(path), _) => path.to_owned(),
        (None, Some(folder)) => {
            let name = format!("{}_{}.json", config.experiment.name, experiment.name());
            Path::new(folder).join(name)
        }
        (None, None) => {
            let text = "--output FILE.json: where does the result go? (or output.results_dir)";
            return Err(Failure::Message(text.into()));
        }
    };
    if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|error| Failure::Message(format!("{}: {error}", folder.display())))?;
    }
    djinn_engine::check_writable(&path)?;
    Ok(path)
}

/// Runs an experiment and writes what came of it.
fn measure(
    experiment: Experiment,
    config: &EvalConfig,
    place: ServerLocation,
    python: &str,
    output: &Path,
    interrupt: &Interrupt,
) -> Result<ResultFile, Failure> {
    let words: Vec<String> = std::env::args().collect();
    let no_threads = |error| Failure::Message(format!("no threads to measure with: {error}"));
    let serving = match place {
        ServerLocation::InProcess(_) => Some(serving().map_err(no_threads)?),
        ServerLocation::Remote { .. } => None,
    };
    // A client has one thread, as most have: what it asks for does not go from hand to hand.
    let asking = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(no_threads)?;
    let setup = TestbedOptions {
        location: place,
        serving: serving.as_ref().unwrap_or(&asking).handle().clone(),
        bundled: bundled::bundled()?,
        python: python.to_owned(),
        command: command_line(&words),
        progress: tell(),
    };
    let mut result = asking.block_on(async {
        // A folder that is sent to a server takes its time.
        let lab = tokio::select! {
            lab = Testbed::open(config, setup) => lab?,
            () = interrupt.pressed() => return Err(Failure::Interrupted),
        };
        let result = tokio::select! {
            result = djinn_eval::run(experiment, config, &lab) => result.map_err(Failure::from),
            () = interrupt.pressed() => Err(Failure::Interrupted),
        };
        lab.close().await;
        result
    })?;
    result.write(output)?;
    Ok(result)
}

/// Threads of a server in process.
fn serving() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(djinn_device::host::cores().clamp(2, 8))
        .thread_name("server")
        .enable_all()
        .build()
}

/// The command line as it can be typed again, with the program's name in place of where it lies, and
/// without the key.
fn command_line(words: &[String]) -> String {
    let quoted = |word: &String| match word.contains([' ', '*', '?', '&', '\'']) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    let mut secret = false;
    let shown = words.iter().skip(1).map(|word| {
        let is_secret = std::mem::replace(&mut secret, word == "--key");
        match is_secret || word.starts_with("--key=") {
            true if is_secret => "KEY".to_owned(),
            true => "--key=KEY".to_owned(),
            false => word.clone(),
        }
    });
    let shown: Vec<String> = shown.collect();
    let rest = shown.iter().map(quoted);
    std::iter::once("djinn".to_owned())
        .chain(rest)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A line that moves on a terminal, and lines elsewhere.
fn tell() -> ProgressSink {
    if !std::io::stderr().is_terminal() {
        return Box::new(|said| match said {
            EvalProgress::Step(text) => eprintln!("… {text}"),
            EvalProgress::Result(text) => eprintln!("{text}"),
        });
    }
    let doing = Doing::new("starting");
    Box::new(move |said| match said {
        EvalProgress::Step(text) => doing.now(text.to_owned()),
        EvalProgress::Result(text) => doing.note(text),
    })
}

/// What an experiment came to: its numbers, then its checks.
fn told(result: &ResultFile, output: &Path, config: &EvalConfig) -> String {
    let rows: Vec<Vec<String>> = djinn_report::METRICS
        .iter()
        .filter(|metric| config.shows(metric.key))
        .filter_map(|metric| {
            let stats = result.summary.metrics.get(metric.key)?;
            let number = |value: f64| format!("{value:.3}");
            Some(vec![
                metric.key.to_owned(),
                number(stats.median),
                number(stats.mean),
                number(stats.std),
                number(stats.min),
                number(stats.max),
            ])
        })
        .collect();
    let points: Vec<Vec<String>> = result
        .summary
        .points
        .iter()
        .map(|point| {
            let ms = |value: f64| format!("{value:.3}");
            vec![
                format!("{} at {}", point.series, point.x),
                ms(point.ms.median),
                ms(point.ms.min),
                ms(point.ms.max),
            ]
        })
        .collect();
    let mut text = format!(
        "{} · {} · {}\n{}",
        result.experiment.name(),
        result.name,
        result.model,
        table(&["", "median", "mean", "std", "min", "max"], &rows)
    );
    if !points.is_empty() {
        text += &table(&["ms", "median", "min", "max"], &points);
    }
    for check in &result.summary.checks {
        let colour = match check.outcome {
            Outcome::Pass => Colour::Green,
            Outcome::Fail => Colour::Red,
            Outcome::NotJudged => Colour::Yellow,
        };
        let word = coloured(check.outcome.word(), colour);
        text += &format!("{word}: {}: {}\n", check.name, check.found);
    }
    for note in &result.notes {
        text += &format!("note: {note}\n");
    }
    text + &format!("written to {}\n", output.display())
}

/// Ends with a status where something failed.
fn verdict(results: &[ResultFile]) -> Result<(), Failure> {
    match results.iter().all(|result| result.summary.pass) {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

#[cfg(test)]
mod tests {
    use super::command_line;

    #[test]
    fn a_command_line_can_be_typed_again() {
        let words = ["/x/djinn", "eval", "--model", "shape:a?layers=2", "it's"];
        let words = words.map(str::to_owned);
        let expect = r"djinn eval --model 'shape:a?layers=2' 'it'\''s'";
        assert_eq!(command_line(&words), expect);
        let words = ["djinn", "eval", "--key", "s3cret", "--key=s3cret", "x"].map(str::to_owned);
        assert_eq!(command_line(&words), "djinn eval --key KEY --key=KEY x");
    }
}
