//! Flags of `djinn plan`.

use clap::Args;
use djinn_types::Size;

use super::{model::ModelArgs, parse::at_least_one, server::ServerArgs};

/// `djinn plan`
#[derive(Debug, Args)]
#[command(after_help = "\
Sizes alone decide which weights stay in memory and which stream. Rates only predict the speed: they
are measured here, or given for a machine you do not have.

Examples:
  djinn plan --model ./Llama-2-13b --memory 16GB
  djinn plan --model shape:llama-2-70b --memory 60GB --link 55GB --compute 4TB
  djinn plan --model shape:mixtral-8x7b --memory 24GB --sessions 4 --context 8192 --json
  djinn plan --server gpu:5556 --model shape:llama-2-70b")]
pub struct PlanArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of each session [default: the model's context, at most 4096]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
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
