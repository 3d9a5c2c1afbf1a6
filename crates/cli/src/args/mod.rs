//! Flags of all commands.

use clap::{CommandFactory, Parser, Subcommand};

mod bench;
mod device;
mod environment;
mod eval;
mod inside;
mod live;
mod machine;
mod memory;
mod model;
mod models;
mod parse;
mod plan;
mod prompt;
#[cfg(test)]
mod reference;
mod run;
mod serve;
mod serve_settings;
mod server;
mod sessions;

pub use bench::*;
pub use device::DeviceArgs;
pub use eval::{Eval, EvalAllArgs, EvalArgs, ExperimentArgs, MeasuringArgs, ReportArgs};
pub use inside::*;
pub use live::{ChatArgs, TopArgs};
pub use machine::{DoctorArgs, InspectArgs, PullArgs, SelftestArgs, ShapeArgs};
pub use memory::{Switch, WatchArgs};
pub use model::{ModelArgs, ResolvedModel};
pub use models::{LayoutArgs, Models, ModelsArgs};
pub use plan::PlanArgs;
pub use prompt::PromptArgs;
pub use run::{RunArgs, SamplingArgs, TraceArgs};
pub use serve::{HostCopyArg, LogFormat, ServeArgs, ShareArg, SizeOrOff};
pub use serve_settings::Setting;
pub use server::ServerArgs;
pub use sessions::{Sessions, SessionsArgs};

/// Runs language models that are larger than the GPU, with the inside of the model open.
///
/// Every command works without a model of your own: the default is a small story model that ships with
/// Djinn. A model is a folder in Hugging Face format, a hub id after `djinn pull ID`, or a synthetic shape
/// such as `shape:llama-2-13b?layers=4&dtype=f16&seed=1`.
#[derive(Debug, Parser)]
#[command(name = "djinn", version, max_term_width = 100)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// All commands and flags, with the conflicts between them.
pub fn command() -> clap::Command {
    serve_settings::with_environment(server::with_conflicts(Cli::command()))
}

/// Refuses environment variables of Djinn that no command reads.
pub fn check_environment() -> Result<(), String> {
    environment::check(&command(), std::env::vars_os().map(|(name, _)| name))
}

/// Settings of `djinn serve` from flags, the environment and a configuration file, and the source of each.
pub fn serve_settings() -> Result<(ServeArgs, Vec<Setting>), String> {
    serve_settings::resolve(&command())
}

/// Settings of `djinn serve` with this configuration file.
pub fn file_settings(file: &std::path::Path) -> Result<ServeArgs, String> {
    serve_settings::resolve_file(&command(), file)
}

/// A command of the command line.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text; without arguments, tell a story
    Run(RunArgs),
    /// Chat with a model in a terminal
    Chat(ChatArgs),
    /// Read and edit activations at hooks
    Trace(TraceArgs),
    /// Debug a model: pause at hooks, inspect, edit and continue
    Debug(DebugArgs),
    /// Logit lens: most likely next tokens after every block
    Lens(LensArgs),
    /// Activation patching: put residuals of one prompt into another, at every block and position
    Patch(PatchArgs),
    /// Make, show and measure steering vectors
    Steer(SteerArgs),
    /// Serve models over gRPC and an HTTP API compatible with OpenAI's
    Serve(Box<ServeArgs>),
    /// Manage the models of a server: list, register, push, unload
    Models(ModelsArgs),
    /// Live server statistics: memory by tier, the link, sessions, tokens per second
    Top(TopArgs),
    /// Show how a model would use memory, and predict its speed
    Plan(PlanArgs),
    /// Show the dimensions, tensors and hooks of a model
    Inspect(InspectArgs),
    /// Download a model from the Hugging Face hub; resumes an interrupted download
    Pull(PullArgs),
    /// List synthetic shapes, or write one as a checkpoint that any program can load
    Shape(ShapeArgs),
    /// Check this machine: driver, card, link and memory, with a remedy for each problem
    Doctor(DoctorArgs),
    /// Check every operation of a device against the processor
    Selftest(SelftestArgs),
    /// Measure this machine and a model on it
    Bench(BenchArgs),
    /// Run experiments that compare Djinn with other systems
    Eval(EvalArgs),
    /// Draw figures and tables from results of experiments, and judge them
    Report(ReportArgs),
    /// Manage sessions of a folder or of a server: list, show, save, load, delete, repair
    Sessions(SessionsArgs),
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn flags_are_consistent() {
        command().debug_assert();
    }
}
