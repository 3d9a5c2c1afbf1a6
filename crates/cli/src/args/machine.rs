//! Flags of commands about this machine and about model files.

use std::path::PathBuf;

use clap::Args;
use djinn_device::DeviceName;

use super::{device::DeviceArgs, parse::gigabytes_per_second};

/// `djinn shape`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  djinn shape
  djinn shape 'llama-2-7b?layers=8&dtype=bf16' --out ./llama-2-7b-of-8-layers")]
pub struct ShapeArgs {
    /// Shape to write: NAME[?layers=N&context=N&dtype=f16&seed=1]; without it, shapes are listed
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
Every operation runs on random input in every dtype and in awkward shapes. Errors are relative to
the norm of the portable code's result. The exit status is 2 if a case fails.

Example:
  djinn selftest --device cuda:0")]
pub struct SelftestArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Seed of the input; the same seed gives the same input [default: random, printed at the end]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print JSON with every case
    #[arg(long)]
    pub json: bool,
}

/// `djinn doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints a line for every check: pass, warn or fail, and a remedy. The exit status is 2 if a check
fails. A machine without a card passes, unless --device names one.

Examples:
  djinn doctor
  djinn doctor --device cuda:0 --threshold 50
  djinn doctor --json")]
pub struct DoctorArgs {
    /// Device to check: cpu, cuda:N, or auto for the card cuda:0 if there is one
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto)]
    pub device: DeviceName,
    /// Smallest bandwidth from pinned memory to the card that passes
    #[arg(long, value_name = "GB/s", default_value_t = 20.0, value_parser = gigabytes_per_second)]
    pub threshold: f64,
    /// Print JSON: an array of check, verdict, detail and remedy
    #[arg(long)]
    pub json: bool,
}

/// `djinn inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Model: a folder, a pulled hub id, or a shape [default: the bundled story model]
    #[arg(value_name = "M")]
    pub model: Option<String>,
    /// Model, as a flag
    #[arg(long = "model", value_name = "M", conflicts_with = "model")]
    pub model_flag: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn pull`
#[derive(Debug, Args)]
#[command(after_help = "\
Models are stored in $DJINN_HOME/models (by default ~/.cache/djinn/models). HF_ENDPOINT names
another hub, and HF_TOKEN gives access to gated models. An interrupted download resumes.

Example:
  djinn pull Qwen/Qwen2.5-0.5B && djinn run --model Qwen/Qwen2.5-0.5B --prompt 'Hello'")]
pub struct PullArgs {
    /// Id on the hub: org/name
    #[arg(value_name = "ID")]
    pub id: String,
    /// Branch, tag or commit
    #[arg(long, default_value = "main")]
    pub revision: String,
}
