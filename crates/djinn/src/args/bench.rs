//! Flags of the benchmarks.

use clap::{Args, Subcommand};
use djinn_memory::Size;

use super::{DeviceArgs, ModelArgs, at_least_one};

/// `djinn bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  djinn bench memory
  djinn bench decode --model 'shape:tinyllama-1.1b?dtype=bf16'
  djinn bench prefill --model 'shape:tinyllama-1.1b?dtype=bf16' --tokens 512 --json
  djinn bench link --model ./Llama-2-13b --workers 4 --chunk 1MiB
  djinn bench stream --model ./Llama-2-13b --memory 6.5GB")]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub what: Bench,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Read bandwidth of memory, by number of threads
    Memory(BenchMemoryArgs),
    /// Time of a generated token, and the share of memory bandwidth it reaches
    Decode(BenchDecodeArgs),
    /// Speed of a prompt, beside the gemm crate on the same shapes
    Prefill(BenchPrefillArgs),
    /// How fast a model's files are read, by number of workers and size of chunks
    Link(BenchLinkArgs),
    /// Every operation at the shapes of a model, by itself
    Operations(BenchOperationsArgs),
    /// A model that does not fit: its passes beside what link and compute take alone
    Stream(BenchStreamArgs),
}

/// `djinn bench link`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads go past the page cache, as they do when a model streams. Without --workers and
--chunk several of each are tried.")]
pub struct BenchLinkArgs {
    /// A folder, a pulled hub id, or a shape [default: the bundled story model]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// Whose link
    #[arg(long, default_value = "cpu", value_parser = ["cpu"])]
    pub device: String,
    /// Threads that read
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,
    /// Bytes read at a time
    #[arg(long, value_name = "SIZE")]
    pub chunk: Option<Size>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = positive)]
    pub seconds: f64,
    /// Times each is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench stream`
#[derive(Debug, Args)]
#[command(after_help = "\
Measures, in turns, the link alone, a generated token, and a prompt of such a length that
reading and computing take about as long, with prefetch and without. Two engines take
turns, so it takes twice --memory (by default a quarter of the weights each). Prompts
have at most --rows tokens.")]
pub struct BenchStreamArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Rounds; the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Tokens of the prompt, instead of a length at which reading and computing take
    /// about as long
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub tokens: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench memory`
#[derive(Debug, Args)]
pub struct BenchMemoryArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Bytes to read through; far more than the caches hold
    #[arg(long, default_value = "1GiB")]
    pub size: Size,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench decode`
#[derive(Debug, Args)]
pub struct BenchDecodeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens to time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub tokens: usize,
    /// Tokens before them
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub context: usize,
    /// Sessions that generate together
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub sessions: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench prefill`
#[derive(Debug, Args)]
pub struct BenchPrefillArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    pub tokens: usize,
    /// Times to run it; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench operations`
#[derive(Debug, Args)]
#[command(after_help = "\
Rows above 64 run as a prompt's, others as generated tokens do. Operands take turns in
memory, so that no cache holds them.

Example:
  djinn bench operations --device cuda:0 --model shape:llama-2-13b --rows 1,16,2048")]
pub struct BenchOperationsArgs {
    /// A folder, a pulled hub id, or a shape: only its sizes count
    #[arg(long, value_name = "M", default_value = "shape:llama-2-13b")]
    pub model: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Rows of each
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,8,16,512,2048"
    )]
    pub rows: Vec<usize>,
    /// Keys that generated tokens see
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    pub context: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x < 1e6 => Ok(x),
        _ => Err("expected seconds, above 0".to_owned()),
    }
}
