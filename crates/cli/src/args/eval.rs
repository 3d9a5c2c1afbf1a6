//! Flags of `djinn eval` and `djinn report`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use djinn_types::{Amount, Size};

use super::{device::DeviceArgs, parse::at_least_one, server::ServerArgs};

/// `djinn eval`
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Experiment.
    #[command(subcommand)]
    pub experiment: Eval,
}

/// An experiment, or all.
#[derive(Debug, Subcommand)]
pub enum Eval {
    /// Run a model that is larger than its memory budget, compared with other offloading systems
    VirtualMemory(ExperimentArgs),
    /// Run more sessions than memory holds, compared with eager PyTorch
    MemoryPressure(ExperimentArgs),
    /// Time to resume a paused session, compared with recomputation and manual offloading
    ResumeLatency(ExperimentArgs),
    /// Exactness and overhead of edits inside the model
    Steering(ExperimentArgs),
    /// Time to the next token of many agents that wait most of the time
    Agents(ExperimentArgs),
    /// Run all experiments, one after the other
    All(EvalAllArgs),
}

/// Flags of one experiment.
#[derive(Debug, Args)]
#[command(after_help = "\
A configuration is a YAML file. Configurations that ship with Djinn need no path:
virt_mem_smoke, virt_mem_l4, virt_mem_config, virt_mem_distributed, exp3_smoke,
exp3_osdi_llama, exp3_resume_llama, exp3_osdi_full, agent_smoke, agent_scaling.
Experiments measure what a client of a server sees, in this process or on the server that --server
names. Baselines run if their Python packages are installed, and are reported as absent otherwise.
The exit status is 2 if a check fails.

Examples:
  djinn eval virtual-memory --config virt_mem_smoke --output smoke.json
  djinn eval virtual-memory --config eval/configs/virt_mem_l4.yaml --output results/13b.json
  djinn eval memory-pressure --config exp3_osdi_llama --server 127.0.0.1:5556 --output results/50.json
  djinn report --results results --output report")]
pub struct ExperimentArgs {
    /// Configuration: a YAML file, or the name of one that ships with Djinn
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Model, in place of the configuration's: a folder, a hub id, shape:NAME, or bundled
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// Result file [default: NAME_EXPERIMENT.json in the configuration's results_dir]
    #[arg(long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
    /// Device memory, in place of the configuration's
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
    /// Run in this process even if the configuration names a server
    #[arg(long, conflicts_with = "server")]
    pub in_process: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Host memory for streamed weights and for KV pages of waiting sessions [default: the
    /// configuration's, or free memory minus a margin]
    #[arg(long, value_name = "SIZE", conflicts_with = "server")]
    pub host_memory: Option<Amount>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Number of runs, and baselines.
#[derive(Debug, Args)]
pub struct MeasuringArgs {
    /// Number of measured runs, in place of the configuration's
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub runs: Option<usize>,
    /// Python interpreter of the baselines
    #[arg(
        long,
        value_name = "PATH",
        env = "DJINN_PYTHON",
        default_value = "python3"
    )]
    pub python: String,
    /// Skip baselines of other systems
    #[arg(long)]
    pub no_peers: bool,
}

/// `djinn eval all`
#[derive(Debug, Args)]
#[command(after_help = "\
With --smoke, every experiment runs end to end with the bundled story model on the processor, against
a server in a process of its own. This takes less than a minute. Without --smoke, the full experiments
run in this process; they need a card with more than 80 GB.

Examples:
  djinn eval all --smoke
  djinn eval all --smoke --output smoke && djinn report --results smoke --output smoke/report
  djinn eval all --output results --keep    resumes after an interruption")]
pub struct EvalAllArgs {
    /// Run small experiments that work on any machine
    #[arg(long, conflicts_with = "device")]
    pub smoke: bool,
    /// Folder of the results
    #[arg(long, value_name = "DIR", default_value = "eval-results")]
    pub output: PathBuf,
    /// Skip experiments that have a passing result with the same settings in the folder
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `djinn report`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads results, validates them, judges them again from their runs, and writes analysis.md, report.html
(one self-contained page) and figures as SVG, PNG and PDF. The exit status is 2 if a check fails.

Examples:
  djinn report --results eval-results --output report
  djinn report --results new.json --against old.json --output report")]
pub struct ReportArgs {
    /// Result files, or folders of them
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    pub results: Vec<PathBuf>,
    /// Folder of the report
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Older results to compare with; differences within the noise are marked
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub against: Vec<PathBuf>,
    /// Also write the table of measurements into this file, between its markers
    #[arg(long, value_name = "FILE.md")]
    pub table: Option<PathBuf>,
}
