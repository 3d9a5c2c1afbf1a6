//! `djinn eval all`

use std::path::Path;

use djinn_bench::ServerProcess;
use djinn_client::Options;
use djinn_eval::{EvalConfig, ServerLocation};
use djinn_report::{Experiment, ResultFile, summarize};
use djinn_terminal::{Failure, Interrupt, say};

use super::{
    location::{self, Devices},
    measurement::{Measurement, apply_flags},
    summary,
};
use crate::args::EvalAllArgs;

use Experiment::{Agents, MemoryPressure, ResumeLatency, Steering, VirtualMemory};

/// Experiment, its configuration, and the name of its result file.
type ListedExperiment = (Experiment, &'static str, &'static str);

/// Small experiments that run on any machine.
const SMOKE: &[ListedExperiment] = &[
    (VirtualMemory, "virt_mem_smoke", "virtual_memory"),
    (MemoryPressure, "pressure_smoke", "memory_pressure"),
    (ResumeLatency, "exp3_smoke", "resume_latency"),
    (Steering, "exp3_smoke", "steering"),
    (Agents, "agent_smoke", "agents"),
];

/// Full experiments, for a large card.
const FULL: &[ListedExperiment] = &[
    (VirtualMemory, "virt_mem_l4", "virtual_memory_13b"),
    (VirtualMemory, "virt_mem_config", "virtual_memory_70b"),
    (MemoryPressure, "exp3_osdi_llama", "memory_pressure"),
    (ResumeLatency, "exp3_resume_llama", "resume_latency"),
    (Steering, "exp3_resume_llama", "steering"),
    (Agents, "agent_scaling", "agents"),
];

/// Server of all experiments.
enum SharedServer {
    /// Server process that was started for the experiments.
    Process(ServerProcess),
    /// Servers in this process, on these devices.
    InProcess(Devices),
}

/// Runs all experiments and returns their results. An experiment that fails does not stop the others.
pub fn all(args: &EvalAllArgs) -> Result<Vec<ResultFile>, Failure> {
    std::fs::create_dir_all(&args.output)
        .map_err(|error| Failure::Message(format!("{}: {error}", args.output.display())))?;
    let listed = if args.smoke { SMOKE } else { FULL };
    let interrupt = Interrupt::by_key()?;
    let pushed = tempfile::tempdir()?;
    let mut server = match args.smoke {
        true => SharedServer::Process(start_server(args, pushed.path())?),
        false => SharedServer::InProcess(Devices::new(&args.device)),
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
        let result = one(*experiment, name, args, &mut server, &output, &interrupt);
        match result {
            Ok(result) => results.push((result, output)),
            Err(Failure::Message(why)) => {
                eprintln!("djinn: {} {name}: {why}", experiment.name());
                failed = true;
            }
            Err(other) => return Err(other),
        }
    }
    if let SharedServer::Process(server) = server {
        server.stop()?;
    }
    say(&summary::of_results(&results))?;
    match failed {
        true => Err(Failure::Reported),
        false => Ok(results.into_iter().map(|(result, _)| result).collect()),
    }
}

/// Starts a server process with a small bundled model.
fn start_server(args: &EvalAllArgs, pushed: &Path) -> Result<ServerProcess, Failure> {
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
    server: &mut SharedServer,
    output: &Path,
    interrupt: &Interrupt,
) -> Result<ResultFile, Failure> {
    let mut config = EvalConfig::read(Path::new(name))?;
    apply_flags(&mut config, &args.measuring)?;
    if let Some(result) = args
        .keep
        .then(|| kept(experiment, &config, output))
        .flatten()
    {
        eprintln!("kept: {}", output.display());
        return Ok(result);
    }
    let location = match server {
        SharedServer::Process(server) => ServerLocation::Remote {
            address: format!("127.0.0.1:{}", server.port),
            options: Options::default(),
        },
        SharedServer::InProcess(devices) => location::in_process(&config, devices, None)?,
    };
    let measurement = Measurement {
        experiment,
        config: &config,
        python: &args.measuring.python,
        output,
        interrupt,
    };
    measurement.run(location)
}

/// Existing result of this experiment with these settings, if it passes.
fn kept(experiment: Experiment, config: &EvalConfig, output: &Path) -> Option<ResultFile> {
    let mut result = ResultFile::read(output).ok()?;
    result.summary = summarize(&result);
    let is_same = result.experiment == experiment && result.settings == config.settings();
    (is_same && result.summary.pass).then_some(result)
}
