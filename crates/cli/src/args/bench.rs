//! Flags of the benchmarks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use djinn_bench::Between;
use djinn_device::DeviceName;
use djinn_engine::{KvMemory, SpillConfig};
use djinn_types::Size;

use super::{
    device::DeviceArgs,
    model::ModelArgs,
    parse::{at_least_one, gigabytes_per_second, positive_seconds, sessions_per_second},
    server::ServerArgs,
};

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
  djinn bench sessions --sessions 200 --memory 40MB --think 0.5..2
  djinn bench long --model 'shape:llama-2-13b?context=65536' --context 40000 --memory 40GB --kv 8GB")]
pub struct BenchArgs {
    /// Benchmark.
    #[command(subcommand)]
    pub benchmark: Bench,
}

/// A benchmark.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Bandwidth of the device's memory; for a processor, by number of threads
    Memory(BenchMemoryArgs),
    /// Time of a generated token, and the share of memory bandwidth it reaches
    Decode(BenchDecodeArgs),
    /// Speed of a prompt; on a processor, compared with the gemm crate if it is built in
    Prefill(BenchPrefillArgs),
    /// First-token time of a prompt that is sent again, with the prefix cache of a server
    Prefix(BenchPrefixArgs),
    /// Bandwidth for weights: from a model's files, or from host memory to a card
    Link(BenchLinkArgs),
    /// Time of every single operation at the shapes of a model
    Operations(BenchOperationsArgs),
    /// Passes of a model that does not fit, compared with link and compute alone
    Stream(BenchStreamArgs),
    /// Many sessions with pauses, in less memory than their KV cache takes
    Sessions(BenchSessionsArgs),
    /// Number of sessions that rises and falls while weights and KV pages share memory
    Elastic(BenchElasticArgs),
    /// Time to restore a session whose KV pages are in host memory
    Restore(BenchRestoreArgs),
    /// A session whose KV pages exceed the device and stream in every pass
    Long(BenchLongArgs),
    /// Two models that take turns on a device with memory for one of them
    Swap(BenchSwapArgs),
    /// Cost of captures, edits and breakpoints at hooks
    Hooks(BenchHooksArgs),
    /// Server under load, and the overhead of serving a token
    Serve(BenchServeArgs),
}

/// `djinn bench serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server and measures, in this order: tokens of one session in process and over HTTP; the same
with idle connections; the time from a `waiting` signal to the first copy of the session's KV pages;
and many clients that stream at once, with errors, tokens, memory at the start and at the end, and the
CPU time outside the engine.

Examples:
  djinn bench serve --clients 200 --seconds 120 --push ./model
  djinn bench serve --device cuda:0 --model 'shape:llama-2-13b?dtype=f16' --clients 0")]
pub struct BenchServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of a session; a quarter of them are the prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub context: usize,
    /// Sessions in one pass
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub batch: usize,
    /// Clients that stream at once; 0 for none
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub clients: usize,
    /// Duration of the load in seconds
    #[arg(long, value_name = "S", default_value_t = 20)]
    pub seconds: u64,
    /// Number of idle connections
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub silent: usize,
    /// Device memory for KV pages; a small value forces the eviction of waiting sessions [default: the server's]
    #[arg(long, value_name = "SIZE")]
    pub kv: Option<Size>,
    /// Also push this folder, twice
    #[arg(long, value_name = "DIR")]
    pub push: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench prefix`
#[derive(Debug, Args)]
#[command(after_help = "\
Sends one prompt several times, through a server in process or the server of --server, and prints the
time to the first token and the tokens that the prefix cache had. The prompt is new, so the first
request computes all of it.

Examples:
  djinn bench prefix --model 'shape:tinyllama-1.1b?layers=4&dtype=bf16'
  djinn bench prefix --server gpu:5556 --model big --tokens 8000 --json")]
pub struct BenchPrefixArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = at_least_one)]
    pub tokens: usize,
    /// Number of times that the prompt is sent again
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench swap`
#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server with the model under two names, and sends requests to them in turns. Measures the time to
the first token of a request that brings its model back to the device, and of one that finds it there.
Set --memory so that one model fits and two do not. Weights return from host memory if --host-memory has
room for both models, and from files otherwise.

Example:
  djinn bench swap --model 'shape:llama-2-13b?dtype=f16' --device cuda:0 --memory 32GB --host-memory 64GB")]
pub struct BenchSwapArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub tokens: usize,
    /// Number of times that each model returns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench hooks`
#[derive(Debug, Args)]
#[command(after_help = "\
Measures a token with scaling, addition and captures at hooks, compared with a plain token. Then pauses
a session after a block while it generates, and measures the host time of a checkpoint and the time
until the next block begins: with KV pages on the device, with KV pages in host memory, with all pages
restored first, and by computing the whole prompt again.

Example:
  djinn bench hooks --model shape:llama-2-13b --device cuda:0 --context 2048 --rows 2048")]
pub struct BenchHooksArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the session
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub context: usize,
    /// Blocks after which the session pauses, counted from 1 [default: five blocks]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub blocks: Vec<usize>,
    /// Tokens timed for each kind of capture and edit
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub tokens: usize,
    /// Measurements of each pause; the report gives the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench restore`
#[derive(Debug, Args)]
#[command(after_help = "\
Resumes a session whose KV pages are in host memory. The first blocks compute while pages of later
blocks arrive. Compares this with the pages alone, the token alone, and both one after the other.

Example:
  djinn bench restore --model shape:llama-2-13b --device cuda:0 --context 1587")]
pub struct BenchRestoreArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the session
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub context: usize,
    /// Number of measurements of each case; the report gives the median
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench long`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs the prompt of a session and generates tokens, with device memory for a part of its KV pages. The
other pages stream from host memory in every pass, layer by layer. Reports the time of a token, the
bytes of weights and KV over the link, the share of the link's bandwidth, and a hash of the tokens. The
hash does not depend on the memory: compare it with a run in which all pages fit. More --rows make the
prompt faster, because each pass of a prompt reads all pages before it.

Example:
  djinn bench long --model 'shape:llama-2-13b?context=65536' --device cuda:0 --context 40000 \
    --memory 40GB --kv 8GB --rows 2048")]
pub struct BenchLongArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    pub context: usize,
    /// Generated tokens to time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub tokens: usize,
    /// Device memory for KV pages and the window through which the others stream [default: all pages of
    /// the session if they fit beside the weights]
    #[arg(long, value_name = "SIZE")]
    pub kv: Option<Size>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench sessions`
#[derive(Debug, Args)]
#[command(after_help = "\
Sessions arrive, run their prompt and generate --output tokens. Then they wait as an agent waits for
its tool, receive --answer tokens and continue, --turns times. KV pages of waiting sessions can be
evicted, and more sessions than memory holds take turns. Lengths and times are drawn between two bounds
from --seed.

With --check, some sessions run again alone with enough memory, and their tokens are compared. The exit
status is 2 if one differs.

Examples:
  djinn bench sessions --sessions 200 --memory 40MB --prompt 20..60 --turns 3 --think 0.1..0.5
  djinn bench sessions --model shape:llama-2-13b --device cuda:0 --memory 80GB --sessions 50 \
    --prompt 1500 --output 64 --check 5")]
pub struct BenchSessionsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Number of sessions
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    pub sessions: usize,
    /// Largest number of sessions in one pass
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub batch: usize,
    /// Mean number of sessions that arrive per second [default: all at once]
    #[arg(long, value_name = "PER_S", value_parser = sessions_per_second)]
    pub arrivals: Option<f64>,
    /// Tokens of a prompt
    #[arg(long, value_name = "N|A..B", default_value = "16..64")]
    pub prompt: Between<usize>,
    /// Tokens that all prompts share at their beginning
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
    /// Device memory for KV pages; if it is smaller than the longest session, pages stream [default: all
    /// memory beside the weights, or an eighth of the memory if weights stream]
    #[arg(long, value_name = "SIZE")]
    pub kv: Option<Size>,
    /// Folder for KV pages that do not fit in host memory
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// Largest size of the file in --spill
    #[arg(long, value_name = "SIZE", default_value = "100GB", requires = "spill")]
    pub spill_size: Size,
    /// Number of sessions to run again alone and compare
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub check: usize,
    /// Seed of lengths and times; the same seed gives the same sessions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl BenchSessionsArgs {
    /// Memory for KV pages by tier.
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

/// `djinn bench elastic`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs phases with different numbers of sessions on one engine. Weights yield their memory to KV pages
when sessions need them, and return when the load falls. Each phase reports its last passes. Then the
same phases run on engines whose plan was made for their number of sessions, and on one engine with a
fixed plan (--elastic off), where sessions take turns on the device.

The exit status is 2 if a session fails, if tokens differ from those of the fixed plans, or if the
last phase has as many sessions as the first one but other resident weights.

Example:
  djinn bench elastic --model 'shape:llama-2-13b?dtype=f16' --device cuda:0 --memory 60GB")]
pub struct BenchElasticArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Sessions of each phase
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,8,60,8,1"
    )]
    pub phases: Vec<usize>,
    /// Tokens of a session, prompt included
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    pub tokens: usize,
    /// Tokens that a session generates
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = at_least_one)]
    pub output: usize,
    /// Passes to measure at the end of each phase
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub measure: usize,
    /// Measure only the elastic engine
    #[arg(long)]
    pub alone: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench link`
#[derive(Debug, Args)]
#[command(after_help = "\
Weights stream over the link. On a processor, the link is the path from a model's files to memory:
reads bypass the page cache, with several numbers of workers and chunk sizes unless flags set them. On
a card, the link is the path from host memory, pinned or pageable: in, out, and both at once. This pins
up to 4 GiB and uses no model. With --model, --workers or --seconds, auto means the processor.

With --threshold, the last line is PASS or FAIL, and the exit status is 2 if the best rate (for a card:
from pinned memory to the card) is below the threshold.

Examples:
  djinn bench link --device cuda:0
  djinn bench link --device cuda:0 --chunk 64MiB --threshold 20
  djinn bench link --device cpu --model ./Llama-2-13b --workers 4 --threshold 2")]
pub struct BenchLinkArgs {
    /// Model whose files are read: a folder, a pulled hub id, or a shape [default: the bundled model]
    #[arg(long, value_name = "M")]
    pub model: Option<String>,
    /// Device of the link: cpu, cuda:N, or auto for the card cuda:0 if it works and otherwise the
    /// processor
    #[arg(long, value_name = "D", default_value_t = DeviceName::Auto)]
    pub device: DeviceName,
    /// Threads that read files
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub workers: Option<usize>,
    /// Bytes of one read or copy
    #[arg(long, value_name = "SIZE")]
    pub chunk: Option<Size>,
    /// Duration of each measurement of files in seconds [default: 1]
    #[arg(long, value_name = "S", value_parser = positive_seconds)]
    pub seconds: Option<f64>,
    /// Number of measurements; the report gives the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Smallest rate that passes
    #[arg(long, value_name = "GB/s", value_parser = gigabytes_per_second)]
    pub threshold: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench stream`
#[derive(Debug, Args)]
#[command(after_help = "\
Measures the link alone, a generated token, and a prompt for which reading and computing take equally
long, with and without prefetch. Two engines take turns, so the command uses twice --memory (by
default a quarter of the weights each). Prompts have at most --rows tokens.")]
pub struct BenchStreamArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Number of rounds; the report gives medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeat: usize,
    /// Tokens of the prompt [default: as many as make reading and computing take equally long]
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
    /// Bytes that a processor reads; should be far larger than its caches [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench decode`
#[derive(Debug, Args)]
#[command(after_help = "\
Prompts run first and are not timed. The bandwidth of the memory is measured in the same run.

Examples:
  djinn bench decode --model 'shape:tinyllama-1.1b?dtype=bf16'
  djinn bench decode --model shape:llama-2-13b --device cuda:0 --sessions 16 --context 1024")]
pub struct BenchDecodeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens to time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub tokens: usize,
    /// Tokens of the prompt
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
    /// Number of runs; the report gives the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub repeat: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn bench operations`
#[derive(Debug, Args)]
#[command(after_help = "\
Every number of rows runs as rows of a prompt. Up to 64 rows run as generated tokens, too. The benchmark
rotates through several copies of the operands, so that no cache holds them.

Example:
  djinn bench operations --device cuda:0 --model shape:llama-2-13b --rows 1,16,2048")]
pub struct BenchOperationsArgs {
    /// Model whose sizes are used: a folder, a pulled hub id, or a shape
    #[arg(long, value_name = "M", default_value = "shape:llama-2-13b")]
    pub model: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Numbers of rows
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,8,16,512,2048"
    )]
    pub rows: Vec<usize>,
    /// Number of keys that generated tokens attend to
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    pub context: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
