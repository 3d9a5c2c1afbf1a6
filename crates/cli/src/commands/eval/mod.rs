//! `djinn eval`

mod all;
mod location;
mod measurement;
mod summary;

use std::path::{Path, PathBuf};

use djinn_eval::EvalConfig;
use djinn_report::{Experiment, ResultFile};
use djinn_terminal::{Failure, Interrupt, say};

use self::measurement::{Measurement, apply_flags};
use crate::args::{Eval, EvalArgs, ExperimentArgs};

/// Runs experiments.
pub fn eval(args: &EvalArgs) -> Result<(), Failure> {
    match &args.experiment {
        Eval::VirtualMemory(args) => one(Experiment::VirtualMemory, args),
        Eval::MemoryPressure(args) => one(Experiment::MemoryPressure, args),
        Eval::ResumeLatency(args) => one(Experiment::ResumeLatency, args),
        Eval::Steering(args) => one(Experiment::Steering, args),
        Eval::Agents(args) => one(Experiment::Agents, args),
        Eval::All(args) => judge(&all::all(args)?),
    }
}

fn one(experiment: Experiment, args: &ExperimentArgs) -> Result<(), Failure> {
    let mut config = EvalConfig::read(&args.config)?;
    if let Some(model) = &args.model {
        model.clone_into(&mut config.experiment.model.model_id);
        // The dtype of the configuration belongs to its own model.
        config.experiment.model.dtype = None;
    }
    if let Some(memory) = args.memory {
        config.environment.max_gpu_memory_gb = Some(memory.0 as f64 / 1e9);
        config.environment.safety_margin_gb = None;
    }
    apply_flags(&mut config, &args.measuring)?;
    let output = output(experiment, &config, args.output.as_deref())?;
    let interrupt = Interrupt::by_key()?;
    let measurement = Measurement {
        experiment,
        config: &config,
        python: &args.measuring.python,
        output: &output,
        interrupt: &interrupt,
    };
    let result = measurement.run(location::location(&config, args)?)?;
    say(&summary::of_result(&result, &output, &config))?;
    judge(&[result])
}

/// Path of the result. A path that cannot be written is refused before anything is measured.
fn output(
    experiment: Experiment,
    config: &EvalConfig,
    flag: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let path = match (flag, &config.output.results_dir) {
        (Some(path), _) => path.to_owned(),
        (None, Some(folder)) => {
            let name = format!("{}_{}.json", config.experiment.name, experiment.name());
            Path::new(folder).join(name)
        }
        (None, None) => {
            let text = "no result file: give --output FILE.json, or output.results_dir in the \
                        configuration";
            return Err(Failure::Message(text.into()));
        }
    };
    if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
        let created = std::fs::create_dir_all(folder);
        created.map_err(|error| Failure::Message(format!("{}: {error}", folder.display())))?;
    }
    djinn_engine::check_writable(&path)?;
    Ok(path)
}

/// Ends the command with exit status 2 if a result failed.
fn judge(results: &[ResultFile]) -> Result<(), Failure> {
    match results.iter().all(|result| result.summary.pass) {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}
