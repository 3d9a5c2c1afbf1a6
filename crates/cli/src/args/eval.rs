//! Flags of `djinn eval` and `djinn report`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use djinn_types::{Amount, Size};

use super::{DeviceArgs, ServerArgs, at_least_one};

/// `djinn eval`
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Which experiment.
    #[command(subcommand)]
    pub what: Eval,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum Eval {
    /// A model larger than the memory it runs in, beside others that offload
    VirtualMemory(ExperimentArgs),
    /// More sessions than memory holds, beside eager PyTorch that parks them
    MemoryPressure(ExperimentArgs),
    /// Time to resume a paused session, beside recomputation and manual offloading
    ResumeLatency(ExperimentArgs),
    /// What a change inside the model does, whether it is exact, and what it costs
    Steering(ExperimentArgs),
    /// Many agents that think most of the time: how long until the next token
    Agents(ExperimentArgs),
    /// All of them, one after the other
    All(EvalAllArgs),
}

/// One experiment.
#[derive(Debug, Args)]
#[command(after_help = "\
A configuration is a YAML file; those that ship with Djinn are named without a path:
virt_mem_smoke, virt_mem_l4, virt_mem_config, virt_mem_distributed, exp3_smoke,
exp3_osdi_llama, exp3_resume_llama, exp3_osdi_full, agent_smoke, agent_scaling.
What is measured is what a client gets, from a server in this process or from the one
that --server names. Baselines run where their packages are, and are reported as absent
where not. Exit status 2 where a check fails.

Examples:
  djinn eval virtual-memory --config virt_mem_smoke --output smoke.json
  djinn eval virtual-memory --config eval/configs/virt_mem_l4.yaml --output results/13b.json
  djinn eval memory-pressure --config exp3_osdi_llama --server 127.0.0.1:5556 --output results/50.json
  djinn report --results results --output report")]
pub struct ExperimentArgs {
    /// A YAML file, or the name of one that ships with Djinn
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Instead of the configuration's: a folder, a hub id, shape:NAME, or bundled
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// Where the result goes [default: NAME_EXPERIMENT.json in the configuration's results_dir]
    #[arg(long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
    /// Instead of the configuration's: memory of the device
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
    /// Run in this process even where the configuration names a server
    #[arg(long, conflicts_with = "server")]
    pub in_process: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Host memory for weights that stream and for KV of sessions that wait [default: the
    /// configuration's, or what is free, less a margin]
    #[arg(long, value_name = "SIZE", conflicts_with = "server")]
    pub host_memory: Option<Amount>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// How often is measured, and beside whom.
#[derive(Debug, Args)]
pub struct MeasuringArgs {
    /// Instead of the configuration's: how many runs are measured
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub runs: Option<usize>,
    /// The Python that baselines run with
    #[arg(
        long,
        value_name = "PATH",
        env = "DJINN_PYTHON",
        default_value = "python3"
    )]
    pub python: String,
    /// Leave out all baselines that are not Djinn's own
    #[arg(long)]
    pub no_peers: bool,
}

/// `djinn eval all`
#[derive(Debug, Args)]
#[command(after_help = "\
With --smoke: every experiment end to end with the story model that ships with Djinn, on
the processor, against a server that is a process of its own; takes less than a minute.
Without: the full ones, in this process, on the device there is; they want a card with
more than 80 GB.

Examples:
  djinn eval all --smoke
  djinn eval all --smoke --output smoke && djinn report --results smoke --output smoke/report
  djinn eval all --output results --keep    resumes after an interruption")]
pub struct EvalAllArgs {
    /// Small ones that run anywhere
    #[arg(long, conflicts_with = "device")]
    pub smoke: bool,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "eval-results")]
    pub output: PathBuf,
    /// What has a result there already, with these settings, and passed is not measured again
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
Reads results, holds them to their schema, judges them anew from their runs, and writes
analysis.md, report.html (one page, nothing else needed) and figures as SVG, PNG and PDF.
Exit status 2 where a check fails.

Examples:
  djinn report --results eval-results --output report
  djinn report --results new.json --against old.json --output report")]
pub struct ReportArgs {
    /// Result files, or folders of them
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    pub results: Vec<PathBuf>,
    /// Where the report goes
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Older results to compare with: what changed, and whether that is more than noise
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub against: Vec<PathBuf>,
    /// Write the table of measurements into this file too, between its marks
    #[arg(long, value_name = "FILE.md")]
    pub table: Option<PathBuf>,
}
