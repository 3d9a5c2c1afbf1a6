//! Flags of `djinn plan`.

use std::path::PathBuf;

use clap::Args;
use djinn_types::Size;

use super::{model::ModelArgs, parse::at_least_one, server::ServerArgs};

/// `djinn plan`
#[derive(Debug, Args)]
#[command(after_help = "\
The table says where every byte goes and why. Without --context, the plan chooses: all weights stay if they
fit with a context of 4096 tokens, and the context grows into the rest. Otherwise weights stream, and the
context grows to 4096 tokens before weights stay, and further in an eighth of the memory.

Sizes alone decide. Rates only predict the speed: they are measured here, or given for a machine you do
not have.

Examples:
  djinn plan --model ./Llama-2-13b --memory 16GB
  djinn plan --model shape:llama-2-13b --memory 4GB --svg plan.svg
  djinn plan --config djinn.toml --svg server.svg
  djinn plan --model shape:llama-2-70b --memory 60GB --link 55GB --compute 4TB
  djinn plan --model shape:mixtral-8x7b --memory 24GB --sessions 4 --context 8192 --json
  djinn plan --server gpu:5556 --model shape:llama-2-70b")]
pub struct PlanArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of each session [default: the longest that fits, up to the model's context]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Configuration file of djinn serve: plans all its models, in the order in which the server loads them
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "model", "server", "context", "sessions", "rows", "memory", "host_memory", "ring",
            "resident", "kv_dtype", "chunk", "workers", "prefetch", "elastic", "device", "threads",
        ]
    )]
    pub config: Option<PathBuf>,
    /// Write a picture of the memory, to scale, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Sessions that generate together
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub sessions: u16,
    /// Bandwidth of the link in bytes per second [default: measured]
    #[arg(long, value_name = "SIZE")]
    pub link: Option<Size>,
    /// Bandwidth at which products read weights, in bytes per second [default: measured bandwidth of the
    /// device's memory]
    #[arg(long, value_name = "SIZE")]
    pub compute: Option<Size>,
    /// List every piece with its offset, instead of a line for each segment
    #[arg(long)]
    pub pieces: bool,
    /// Print JSON with the plan, the prediction and every piece
    #[arg(long)]
    pub json: bool,
}
