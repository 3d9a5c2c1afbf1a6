//! Flags of all commands.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use djinn_device::{Backend, DeviceError};
use djinn_types::Size;
use djinn_weights::MemorySettings;

mod bench;
mod device;
mod eval;
mod inside;
mod live;
mod memory;
mod models;
#[cfg(test)]
mod reference;
mod run;
mod serve;
mod server;
mod sessions;

pub use bench::*;
pub use device::{Chosen, DeviceArgs, DeviceName};
pub use eval::{Eval, EvalAllArgs, EvalArgs, ExperimentArgs, MeasuringArgs, ReportArgs};
pub use inside::*;
pub use live::{ChatArgs, TopArgs};
pub use memory::{MemoryArgs, WatchArgs};
pub use models::{LayoutArgs, Models, ModelsArgs};
pub use run::{PromptArgs, RunArgs, SamplingArgs, TraceArgs};
pub use serve::{ServeArgs, Setting, settle as settle_serve};
pub use server::ServerArgs;
pub use sessions::{Sessions, SessionsArgs};

/// Runs language models on the memory you have, with the inside of the model open.
///
/// Every command works without a model of your own: the default is a small story
/// model that ships with Djinn. A model is a folder as it lies on disk after a
/// download, a hub id once pulled (`djinn pull ID`), or a synthetic shape such as
/// `shape:llama-2-13b?layers=4&dtype=f16&seed=1`.
#[derive(Debug, Parser)]
#[command(name = "djinn", version, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// All commands and flags, with the conflicts between them.
pub fn command() -> clap::Command {
    serve::with_environment(server::with_conflicts(Cli::command()))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text; without arguments, tell a story
    Run(RunArgs),
    /// Chat with a model in a terminal
    Chat(ChatArgs),
    /// Read and change activations at hooks
    Trace(TraceArgs),
    /// Debug a model: pause at hooks, inspect, edit and continue
    Debug(DebugArgs),
    /// Logit lens: most likely next tokens after every block
    Lens(LensArgs),
    /// Put activations of one prompt into another, at every block and position
    Patch(PatchArgs),
    /// Make, show and measure steering vectors
    Steer(SteerArgs),
    /// Serve models over gRPC and an HTTP API compatible with OpenAI's
    Serve(Box<ServeArgs>),
    /// The models of a server: list, register, push, unload
    Models(ModelsArgs),
    /// Live server statistics: memory by tier, the link, sessions, tokens a second
    Top(TopArgs),
    /// Show how a model would use memory, and predict its speed
    Plan(PlanArgs),
    /// Show what a model is made of
    Inspect(InspectArgs),
    /// Download a model from the Hugging Face hub; resumes where it was cut off
    Pull(PullArgs),
    /// List synthetic shapes, or write one as a checkpoint that any program can load
    Shape(ShapeArgs),
    /// Check this machine: driver, card, link and memory, with a remedy for each problem
    Doctor(DoctorArgs),
    /// Check every operation of a device against the processor
    Selftest(SelftestArgs),
    /// Measure this machine and a model on it
    Bench(BenchArgs),
    /// Experiments that measure Djinn beside other systems
    Eval(EvalArgs),
    /// Figures, tables and a verdict from results of experiments
    Report(ReportArgs),
    /// Sessions kept in a folder or by a server: list, show, save, load, delete
    Sessions(SessionsArgs),
}

/// Which model, and where it runs.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// A folder, a pulled hub id, or shape:NAME[?layers=N&dtype=f16&seed=1]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Tokens of a prompt that pass through the model together
    #[arg(long, value_name = "N", default_value_t = djinn_engine::Settings::ROWS,
          value_parser = at_least_one)]
    pub rows: usize,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl ModelArgs {
    /// Opens the device and resolves memory flags for it. A command does this once.
    pub fn settled(&self) -> Result<Settled, DeviceError> {
        let device = self.device.choose()?;
        let memory = self.memory.settled(device.backend.free_memory()?);
        Ok(Settled {
            args: self.clone(),
            device,
            memory,
        })
    }
}

/// Model flags resolved on this machine.
pub struct Settled {
    /// Flags as given.
    pub args: ModelArgs,
    /// Device that computes.
    pub device: Chosen,
    /// Memory of the device, and how weights stream into it.
    pub memory: MemorySettings,
}

impl Settled {
    /// Backend of the device.
    pub fn backend(&self) -> &dyn Backend {
        &*self.device.backend
    }

    /// Refuses a budget above a card's total memory. A processor's memory is checked when it is
    /// allocated.
    pub fn check_budget(&self, budget: u64) -> Result<(), DeviceError> {
        let Some(card) = self.backend().card() else {
            return Ok(());
        };
        let (free, total) = card.memory()?;
        if budget <= total {
            return Ok(());
        }
        Err(DeviceError::Setup(over_budget(
            budget,
            &self.device.to_string(),
            total,
            free,
        )))
    }
}

fn over_budget(budget: u64, device: &str, total: u64, free: u64) -> String {
    let [budget, total, free] = [budget, total, free].map(Size);
    format!(
        "--memory {budget}: {device} has {total}, of which {free} are free; give less, or leave \
         --memory out to take what is free"
    )
}

/// `djinn plan`
#[derive(Debug, Args)]
#[command(after_help = "\
What stays in memory and what streams is decided by size alone. Rates only predict how
fast that will be: they are measured here, or given for a machine you do not have.

Examples:
  djinn plan --model ./Llama-2-13b --memory 4GB
  djinn plan --model shape:llama-2-70b --memory 60GB --link 55GB --compute 4TB
  djinn plan --model shape:mixtral-8x7b --memory 24GB --sessions 4 --context 8192 --json")]
pub struct PlanArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positions of each session [default: the model's context, at most 4096]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Sessions that generate together
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub sessions: u16,
    /// Bytes a second over the link [default: measured]
    #[arg(long, value_name = "SIZE")]
    pub link: Option<Size>,
    /// Bytes of weights a second through the products [default: measured, as what memory
    /// reads]
    #[arg(long, value_name = "SIZE")]
    pub compute: Option<Size>,
    /// List every piece with its offset instead of a line a segment
    #[arg(long)]
    pub pieces: bool,
    /// Print JSON: everything above and every piece
    #[arg(long)]
    pub json: bool,
}

/// `djinn shape`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  djinn shape
  djinn shape 'llama-2-7b?layers=8&dtype=bf16' --out ./llama-2-7b-of-8-layers")]
pub struct ShapeArgs {
    /// NAME[?layers=N&dtype=f16&seed=1]; without it, shapes are listed
    #[arg(value_name = "SHAPE", requires = "out")]
    pub shape: Option<String>,
    /// Folder to write config.json and model.safetensors to; must not exist
    #[arg(long, value_name = "FOLDER", requires = "shape")]
    pub out: Option<PathBuf>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "shape")]
    pub json: bool,
}

/// `djinn selftest`
#[derive(Debug, Args)]
#[command(after_help = "\
Fresh random input in every dtype and awkward shape; errors are relative to the length of
what the portable code gives. Exit status 2 where a case fails.

Example:
  djinn selftest --device cuda:0")]
pub struct SelftestArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The same seed gives the same input [default: drawn, and shown]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print JSON, with every case
    #[arg(long)]
    pub json: bool,
}

/// `djinn doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
A line for every check: pass, warn or fail, and what to do about it. Exit status 2 where
one fails. A machine without a card passes, unless --device names one.

Examples:
  djinn doctor
  djinn doctor --device cuda:0 --threshold 50
  djinn doctor --json")]
pub struct DoctorArgs {
    /// What to check: cpu, cuda:N, or auto for the card cuda:0 if there is one
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto)]
    pub device: DeviceName,
    /// Fail where pinned memory reaches the card more slowly than this
    #[arg(long, value_name = "GB/s", default_value_t = 20.0, value_parser = bench::rate)]
    pub threshold: f64,
    /// Print JSON: an array of check, verdict, detail and remedy
    #[arg(long)]
    pub json: bool,
}

/// `djinn inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A folder, a pulled hub id, or a shape [default: the bundled story model]
    #[arg(value_name = "M")]
    pub model: Option<String>,
    /// The same as M
    #[arg(long = "model", value_name = "M", conflicts_with = "model")]
    pub model_flag: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn pull`
#[derive(Debug, Args)]
#[command(after_help = "\
Models go to $DJINN_HOME/models (by default ~/.cache/djinn/models); HF_ENDPOINT names
another hub, HF_TOKEN opens gated models. An interrupted download resumes.

Example:
  djinn pull Qwen/Qwen2.5-0.5B && djinn run --model Qwen/Qwen2.5-0.5B --prompt 'Hello'")]
pub struct PullArgs {
    /// As the hub names it: org/name
    #[arg(value_name = "ID")]
    pub id: String,
    /// Branch, tag or commit
    #[arg(long, default_value = "main")]
    pub revision: String,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Cli, over_budget};

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_budget_beyond_the_card_is_told_with_what_it_has() {
        let told = over_budget(
            500_000_000_000,
            "cuda:0 (NVIDIA H200)",
            150 << 30,
            149 << 30,
        );
        for part in [
            "500.00 GB",
            "cuda:0 (NVIDIA H200)",
            "161.06 GB",
            "159.99 GB",
        ] {
            assert!(told.contains(part), "{part} not in {told}");
        }
    }
}
