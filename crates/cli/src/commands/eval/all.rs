//! `djinn eval all`

use std::path::{Path, PathBuf};

use djinn_bench::ServerProcess;
use djinn_client::Options;
use djinn_eval::{EvalConfig, ServerLocation};
use djinn_report::{Experiment, Outcome, ResultFile, summarize};

use super::{
    heed, measure,
    place::{self, Devices},
    verdict,
};
use crate::{
    args::EvalAllArgs,
    commands::interrupt::Interrupt,
    failure::{Failure, say},
    style::{Colour, coloured, table},
};

use Experiment::{Agents, MemoryPressure, ResumeLatency, Steering, VirtualMemory};

/// Which experiment with which configuration, and what its file is called.
type Listed = (Experiment, &'static str, &'static str);

const SMOKE: &[Listed] = &[
    (VirtualMemory, "virt_mem_smoke", "virtual_memory"),
    (MemoryPressure, "pressure_smoke", "memory_pressure"),
    (ResumeLatency, "exp3_smoke", "resume_latency"),
    (Steering, "exp3_smoke", "steering"),
    (Agents, "agent_smoke", "agents"),
];

const FULL: &[Listed] = &[
    (VirtualMemory, "virt_mem_l4", "virtual_memory_13b"),
    (VirtualMemory, "virt_mem_config", "virtual_memory_70b"),
    (MemoryPressure, "exp3_osdi_llama", "memory_pressure"),
    (ResumeLatency, "exp3_resume_llama", "resume_latency"),
    (Steering, "exp3_resume_llama", "steering"),
    (Agents, "agent_scaling", "agents"),
];

/// Where all of them are made.
enum Workplace {
    /// A server that was started for them.
    Server(ServerProcess),
    /// This process.
    Here(Devices),
}

/// Runs all of them; what fails does not keep others from running.
pub fn all(args: &EvalAllArgs) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.output)
        .map_err(|error| Failure::Message(format!("{}: {error}", args.output.display())))?;
    let listed = if args.smoke { SMOKE } else { FULL };
    let interrupt = Interrupt::by_key()?;
    let pushed = tempfile::tempdir()?;
    let mut workplace = match args.smoke {
        true => Workplace::Server(serve(args, pushed.path())?),
        false => Workplace::Here(Devices::new(&args.device)),
    };
    let mut results = Vec::new();
    let mut failed = false;
    for (number, (experiment, name, file)) in listed.iter().enumerate() {
        eprintln!(
            "[{} of {}] {} {name}",
            number + 1,
            listed.len(),
            experiment.name()
        );
        let output = args.output.join(format!("{file}.json"));
        let made = one(*experiment, name, args, &mut workplace, &output, &interrupt);
        match made {
            Ok(result) => results.push((result, output)),
            Err(Failure::Message(why)) => {
                eprintln!("djinn: {} {name}: {why}", experiment.name());
                failed = true;
            }
            Err(other) => return Err(other),
        }
    }
    if let Workplace::Server(server) = workplace {
        server.stop()?;
    }
    say(&told(&results))?;
    let results: Vec<ResultFile> = results.into_iter().map(|(result, _)| result).collect();
    match failed {
        true => Err(Failure::Reported),
        false => verdict(&results),
    }
}

/// A server for all of them, which has nothing of its own but what it must have.
fn serve(args: &EvalAllArgs, pushed: &Path) -> Result<ServerProcess, Failure> {
    let mut flags = vec![
        "--device=cpu".to_owned(),
        "--memory=1GB".to_owned(),
        "--host-memory=1GB".to_owned(),
        "--model=bundled,memory=64MB,sessions=2,context=64".to_owned(),
        format!("--push-dir={}", pushed.display()),
    ];
    flags.extend(
        args.device
            .threads
            .map(|threads| format!("--threads={threads}")),
    );
    Ok(ServerProcess::start(&std::env::current_exe()?, &flags)?)
}

fn one(
    experiment: Experiment,
    name: &str,
    args: &EvalAllArgs,
    workplace: &mut Workplace,
    output: &Path,
    interrupt: &Interrupt,
) -> Result<ResultFile, Failure> {
    let mut config = EvalConfig::read(Path::new(name))?;
    heed(&mut config, &args.measuring)?;
    if let Some(result) = args
        .keep
        .then(|| kept(experiment, &config, output))
        .flatten()
    {
        eprintln!("kept: {}", output.display());
        return Ok(result);
    }
    let place = match workplace {
        Workplace::Server(server) => ServerLocation::Remote {
            address: format!("127.0.0.1:{}", server.port),
            options: Options::default(),
        },
        Workplace::Here(devices) => place::in_process(&config, devices, None)?,
    };
    let python = &args.measuring.python;
    measure(experiment, &config, place, python, output, interrupt)
}

/// A result that is there already, if it is of this experiment with these settings, and passes.
fn kept(experiment: Experiment, config: &EvalConfig, output: &Path) -> Option<ResultFile> {
    let mut result = ResultFile::read(output).ok()?;
    result.summary = summarize(&result);
    let is_it = result.experiment == experiment && result.settings == config.settings();
    (is_it && result.summary.pass).then_some(result)
}

fn told(results: &[(ResultFile, PathBuf)]) -> String {
    let row = |(result, path): &(ResultFile, PathBuf)| {
        let word = match result.summary.pass {
            true => coloured("PASS", Colour::Green),
            false => coloured("FAIL", Colour::Red),
        };
        let failed = result
            .summary
            .checks
            .iter()
            .filter(|c| c.outcome == Outcome::Fail);
        let failed: Vec<String> = failed
            .map(|check| format!("{}: {}", check.name, check.found))
            .collect();
        vec![
            result.experiment.name().to_owned(),
            result.name.clone(),
            word,
            path.display().to_string(),
            failed.join("; "),
        ]
    };
    let rows: Vec<Vec<String>> = results.iter().map(row).collect();
    table(
        &["experiment", "configuration", "verdict", "result", ""],
        &rows,
    )
}
