//! Flags of the benchmarks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use djinn_bench::Between;
use djinn_engine::{KvMemory, SpillConfig};
use djinn_types::Size;

use super::{DeviceArgs, DeviceName, ModelArgs, at_least_one};

/// `djinn bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  djinn bench memory
  djinn bench decode --model 'shape:tinyllama-1.1b?dtype=bf16'
  djinn bench prefill --model 'shape:tinyllama-1.1b?dtype=bf16' --tokens 512 --json
  djinn bench link --device cuda:0 --threshold 20
  djinn bench link --model ./Llama-2-13b --workers 4 --chunk 1MiB
  djinn bench stream --model ./Llama-2-13b --memory 6.5GB
  djinn bench sessions --sessions 200 --memory 40MB --think 0.5..2")]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub what: Bench,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Bandwidth of the device's memory; a processor's by number of threads
    Memory(BenchMemoryArgs),
    /// Time of a generated token, and the share of memory bandwidth it reaches
    Decode(BenchDecodeArgs),
    /// Speed of a prompt; with the feature yardstick, a processor is compared with the gemm crate
    Prefill(BenchPrefillArgs),
    /// Bandwidth for weights: from a model's files, or from host memory to a card
    Link(BenchLinkArgs),
    /// Every operation at the shapes of a model, by itself
    Operations(BenchOperationsArgs),
    /// A model that does not fit: its passes beside what link and compute take alone
    Stream(BenchStreamArgs),
    /// Many sessions with pauses, in less memory than their KV takes
    Sessions(BenchSessionsArgs),
    /// A session whose KV returns from host memory, block by block and all at once
    Restore(BenchRestoreArgs),
    /// Cost of captures, edits and breakpoints at hooks
    Hooks(BenchHooksArgs),
    /// A server under load, and what serving adds to a token
    Serve(BenchServeArgs),
}

/// `djinn bench serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server of its own. First the tokens of one session, in process and then over HTTP, so that
the difference is what serving adds. Then the same while connections are open that say nothing. Then an
owner that says it is away: how long until its session's KV begins to leave. Then many
clients that stream at once: errors, tokens, memory at the start and at the end, and how much of the
processor's time went elsewhere than to the engine.

Examples:
  djinn bench serve --clients 200 --seconds 120 --push ./model
  djinn bench serve --device cuda:0 --model 'shape:llama-2-13b?dtype=f16' --clients 0")]
pub struct BenchServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positions of a session, of which a quarter are the prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub context: usize,
    /// Sessions in one pass
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub batch: usize,
    /// Clients that stream at once; 0 for none
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub clients: usize,
    /// For how long
    #[arg(long, value_name = "S", default_value_t = 20)]
    pub seconds: u64,
    /// Connections that say nothing
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub silent: usize,
    /// Memory of the device for KV, so that sessions that wait have to go [default: as the server has it]
    #[arg(long, value_name = "SIZE")]
    pub kv: Option<Size>,
    /// Push this folder too, twice
    #[arg(long, value_name = "DIR")]
    pub push: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench hooks`
#[derive(Debug, Args)]
#[command(after_help = "\
First what a token takes that is scaled, added to or read at hooks, beside one that is not.
Then a session that stopped behind a block while it generates: the time of the host that a
checkpoint takes, and how long it is until the next block begins again: with its KV still on the
device, with its KV in host memory, with all of that brought back first, and by running the whole
prompt again from nothing.

Example:
  djinn bench hooks --model shape:llama-2-13b --device cuda:0 --context 2048 --rows 2048")]
pub struct BenchHooksArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the session
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub context: usize,
    /// Blocks behind which it stops, counted from 1 [default: five of them]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub blocks: Vec<usize>,
    /// Tokens timed for each way to read and change
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub tokens: usize,
    /// Times to measure each stop; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench restore`
#[derive(Debug, Args)]
#[command(after_help = "\
The KV of a session is in host memory; it is resumed, and the first blocks compute while the
pages of later ones are still on their way. Beside that: what the pages take alone, what the
token takes alone, and one after the other.

Example:
  djinn bench restore --model shape:llama-2-13b --device cuda:0 --context 1587")]
pub struct BenchRestoreArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the session
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub context: usize,
    /// Times to measure each; the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench sessions`
#[derive(Debug, Args)]
#[command(after_help = "\
Sessions arrive, run their prompt, and generate --output tokens; then they wait as an agent
does for its tool, are told --answer tokens, and go on, --turns times. While one waits its
KV makes way for others; more sessions than memory holds take turns. Lengths and times are
drawn between two bounds from --seed. Device memory that weights leave is for KV, or --kv
of it.

With --check sessions are run again by themselves, with all the memory they want, and their
tokens compared: exit status 2 where one differs.

Examples:
  djinn bench sessions --sessions 200 --memory 40MB --prompt 20..60 --turns 3 --think 0.1..0.5
  djinn bench sessions --model shape:llama-2-13b --device cuda:0 --memory 80GB --sessions 50 \
    --prompt 1500 --output 64 --check 5")]
pub struct BenchSessionsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Sessions in all
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    pub sessions: usize,
    /// Sessions of one pass at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub batch: usize,
    /// Sessions that arrive in a second, by chance [default: all at once]
    #[arg(long, value_name = "PER_S", value_parser = arrivals)]
    pub arrivals: Option<f64>,
    /// Tokens of a prompt
    #[arg(long, value_name = "N|A..B", default_value = "16..64")]
    pub prompt: Between<usize>,
    /// Tokens that all prompts begin with; they are computed and kept once
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub prefix: usize,
    /// Tokens generated in a turn
    #[arg(long, value_name = "N|A..B", default_value = "8..32")]
    pub output: Between<usize>,
    /// Input tokens of each turn after the first
    #[arg(long, value_name = "N|A..B", default_value = "4..16")]
    pub answer: Between<usize>,
    /// Turns of a session
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    pub turns: usize,
    /// Seconds that a session waits between turns
    #[arg(long, value_name = "S|A..B", default_value = "0.2..1")]
    pub think: Between<f64>,
    /// Let sessions announce when they will return
    #[arg(long)]
    pub announce: bool,
    /// Memory of the device for KV, at least that of the longest session [default: what
    /// weights leave; an eighth of all where they do not fit]
    #[arg(long, value_name = "SIZE")]
    pub kv: Option<Size>,
    /// A folder for KV that host memory has no room for; a file there is taken while the
    /// command runs
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// Bytes of it at most
    #[arg(long, value_name = "SIZE", default_value = "100GB", requires = "spill")]
    pub spill_size: Size,
    /// Sessions to run again by themselves, whose tokens have to be the same
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub check: usize,
    /// The same seed gives the same sessions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl BenchSessionsArgs {
    /// Where KV may be.
    pub fn kv(&self) -> KvMemory {
        KvMemory {
            device: self.kv.map(|size| size.0),
            spill: self.spill.clone().map(|folder| SpillConfig {
                folder,
                bytes: self.spill_size.0,
            }),
        }
    }
}

/// `djinn bench link`
#[derive(Debug, Args)]
#[command(after_help = "\
The link is what weights stream over. A processor's leads from a model's files into memory:
reads go past the page cache, with several numbers of workers and sizes of chunks unless
they are given. A card's leads from host memory, pinned or pageable, in and out and both at
once; it pins up to 4 GiB, and a model has no part in it. With --model, --workers or
--seconds, auto is the processor.

With --threshold the last line says PASS or FAIL, and the exit status is 2 where the best
rate (of a card: from pinned memory to the card) stays below it.

Examples:
  djinn bench link --device cuda:0
  djinn bench link --device cuda:0 --chunk 64MiB --threshold 20
  djinn bench link --device cpu --model ./Llama-2-13b --workers 4 --threshold 2")]
pub struct BenchLinkArgs {
    /// Whose files: a folder, a pulled hub id, or a shape [default: the bundled story model]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// Whose link: cpu, cuda:N, or auto for the card cuda:0 if it works and else the processor
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto)]
    pub device: DeviceName,
    /// Threads that read files
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,
    /// Bytes moved at a time
    #[arg(long, value_name = "SIZE")]
    pub chunk: Option<Size>,
    /// Seconds that files are read for each measurement [default: 1]
    #[arg(long, value_name = "S", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Times each is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Fail below this rate
    #[arg(long, value_name = "GB/s", value_parser = rate)]
    pub threshold: Option<f64>,
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
    /// Bytes a processor reads through; far more than its caches hold [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench decode`
#[derive(Debug, Args)]
#[command(after_help = "\
Prompts run first and do not count. The memory's bandwidth is measured in the same run.

Examples:
  djinn bench decode --model 'shape:tinyllama-1.1b?dtype=bf16'
  djinn bench decode --model shape:llama-2-13b --device cuda:0 --sessions 16 --context 1024")]
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

/// GB a second.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x < 1e6 => Ok(x),
        _ => Err("expected GB/s, above 0".to_owned()),
    }
}

fn arrivals(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x < 1e6 => Ok(x),
        _ => Err("expected sessions a second, above 0".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x < 1e6 => Ok(x),
        _ => Err("expected seconds, above 0".to_owned()),
    }
}
