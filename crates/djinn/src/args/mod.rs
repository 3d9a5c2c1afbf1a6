//! Every flag, as typed. Commands turn them into settled requests.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use djinn_device::DeviceError;
use djinn_engine::{Backend, Memory};
use djinn_memory::Size;

mod bench;
mod device;
mod inside;
mod live;
mod memory;
mod models;
mod serve;
mod server;
mod sessions;

pub use bench::*;
pub use device::{Chosen, DeviceArgs, DeviceName};
pub use inside::*;
pub use live::{ChatArgs, TopArgs};
pub use memory::{MemoryArgs, WatchArgs};
pub use models::{LayoutArgs, Models, ModelsArgs};
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
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// All there is to type, with what goes together and what does not.
pub fn command() -> clap::Command {
    serve::with_environment(server::with_conflicts(Cli::command()))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text; without arguments, tell a story
    Run(RunArgs),
    /// Talk with a model: a terminal that remembers
    Chat(ChatArgs),
    /// Read and change activations at hooks
    Trace(TraceArgs),
    /// Stop a model at its hooks, look, change, and go on
    Debug(DebugArgs),
    /// What the model would say behind every block: the logit lens
    Lens(LensArgs),
    /// Put activations of one prompt into another, at every block and position
    Patch(PatchArgs),
    /// Make, show and measure steering vectors
    Steer(SteerArgs),
    /// Serve models to other programs and machines: gRPC and HTTP, as OpenAI's clients speak it
    Serve(Box<ServeArgs>),
    /// The models of a server: list, register, push, unload
    Models(ModelsArgs),
    /// How a server fares: memory by tier, the link, sessions, tokens a second
    Top(TopArgs),
    /// Show where a model's bytes go in some memory, and how fast that will be
    Plan(PlanArgs),
    /// Show what a model is made of
    Inspect(InspectArgs),
    /// Download a model from the Hugging Face hub; resumes where it was cut off
    Pull(PullArgs),
    /// List synthetic shapes, or write one as a checkpoint that any program can load
    Shape(ShapeArgs),
    /// Check this machine: driver, card, link, memory; with the remedy for what is amiss
    Doctor(DoctorArgs),
    /// Check every operation of a device against the processor
    Selftest(SelftestArgs),
    /// Measure this machine and a model on it
    Bench(BenchArgs),
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
    /// Tokens that go through the model together while a prompt runs
    #[arg(long, value_name = "N", default_value_t = djinn_engine::Settings::ROWS,
          value_parser = at_least_one)]
    pub rows: usize,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl ModelArgs {
    /// Takes the device and says how much memory there is on it. Once in a command.
    pub fn settled(&self) -> Result<Settled<'_>, DeviceError> {
        let device = self.device.choose()?;
        let memory = self.memory.settled(device.backend.free_memory()?);
        Ok(Settled {
            args: self,
            device,
            memory,
        })
    }
}

/// What the flags come to on this machine.
pub struct Settled<'a> {
    /// As given.
    pub args: &'a ModelArgs,
    /// The device, taken once for all that uses it.
    pub device: Chosen,
    /// How much memory there is on it, and how weights come into it.
    pub memory: Memory,
}

impl Settled<'_> {
    /// Where to compute.
    pub fn backend(&self) -> &Backend {
        &self.device.backend
    }

    /// Refuses a budget that a card could not give even if nobody else used it. What a
    /// processor cannot give is seen when it is taken.
    pub fn check_budget(&self, budget: u64) -> Result<(), DeviceError> {
        let Backend::Cuda { card } = self.backend() else {
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

/// What the model reads.
#[derive(Clone, Debug, Args)]
pub struct PromptArgs {
    /// Text to start from; `-` reads standard input
    #[arg(long, value_name = "T", conflicts_with = "tokens")]
    pub prompt: Option<String>,
    /// Token ids to start from, exactly as given
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// Wrap the prompt as a user's message in the model's chat template
    #[arg(long, conflicts_with = "tokens")]
    pub chat: bool,
    /// With --chat: the system message
    #[arg(long, value_name = "T", requires = "chat")]
    pub system: Option<String>,
}

/// How tokens are chosen. What is not given comes from the model's
/// generation_config.json; a model that says nothing is greedy.
#[derive(Clone, Debug, Args)]
pub struct SamplingArgs {
    /// 0 takes the likeliest token; 1 is the model's own distribution
    #[arg(long, help_heading = "Sampling", value_name = "X")]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest; 0 for all
    #[arg(long, help_heading = "Sampling", value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest whose probabilities reach P
    #[arg(long, help_heading = "Sampling", value_name = "P")]
    pub top_p: Option<f32>,
    /// Leave out what is less likely than this share of the likeliest
    #[arg(long, help_heading = "Sampling", value_name = "P")]
    pub min_p: Option<f32>,
    /// Make tokens already there less likely, prompt included (1 does nothing)
    #[arg(long, help_heading = "Sampling", value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Subtract from the logits of tokens already generated
    #[arg(
        long,
        help_heading = "Sampling",
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub presence_penalty: Option<f32>,
    /// Subtract from the logits of tokens already generated, as often as they were
    #[arg(
        long,
        help_heading = "Sampling",
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub frequency_penalty: Option<f32>,
    /// Add to a token's logit; may be repeated
    #[arg(long, help_heading = "Sampling", value_name = "ID=X", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text [default: drawn, and shown at the end]
    #[arg(long, help_heading = "Sampling", value_name = "N")]
    pub seed: Option<u64>,
}

/// `djinn run`
#[derive(Debug, Args)]
#[command(after_help = "\
Sampling that is not given comes from the model's generation_config.json; a model that
says nothing there is greedy.

Examples:
  djinn run
  djinn run --prompt 'The little robot' --temperature 0.8 --top-p 0.95 --seed 7
  djinn run --model ./Llama-3.2-1B-Instruct --chat --prompt 'Why is the sky blue?'
  djinn run --model 'shape:llama-2-7b?layers=2' --tokens 1,2,3 --max-tokens 8 --json
  djinn run --model ./Llama-2-13b --memory 4GB --stats --timeline passes.json
  djinn run --state ./sessions --prompt 'Tom had a red boat.' --max-tokens 40
  djinn run --state ./sessions --session 0 --prompt ' One day'
  djinn run --server gpu:5556 --model big --prompt 'Tom had a red boat.' --keep
  djinn run --server gpu:5556 --session big:0 --prompt ' One day'")]
pub struct RunArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Generate at most this many tokens [default: the model's own limit, or 256]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// End where this text appears; may be repeated
    #[arg(long, value_name = "T")]
    pub stop: Vec<String>,
    /// Go on past the model's end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// With --json: report each token's log-probability and N alternatives
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    pub json: bool,
    /// Keep the session in this folder, so that it can go on later, whatever happens to the
    /// process meanwhile
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// With --server: keep the session when this ends, so that --session can go on with it
    #[arg(long, help_heading = "Server", requires = "server")]
    pub keep: bool,
    /// Go on with this session of the folder or of the server: --prompt is what it is told, and
    /// nothing else changes
    #[arg(long, value_name = "ID",
          conflicts_with_all = ["chat", "system", "stop", "ignore_eos", "logprobs", "temperature",
                                "top_k", "top_p", "min_p", "repetition_penalty",
                                "presence_penalty", "frequency_penalty", "logit_bias", "seed", "edit", "steer"])]
    pub session: Option<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub changes: ChangeArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
}

/// `djinn trace`
#[derive(Debug, Args)]
#[command(after_help = "\
Hooks, in TransformerLens's words:
  hook_embed
  blocks.I.hook_resid_pre  .hook_resid_mid  .hook_resid_post
  blocks.I.hook_attn_out   .hook_mlp_out
  blocks.I.attn.hook_q  .hook_k  .hook_v  .hook_z  .hook_pattern
  blocks.I.mlp.hook_pre  .hook_post
  ln_final.hook_normalized
  logits
A * stands for any text. Captures read the prompt's positions, after any edit.

Edits: HOOK:CHANGE[@POSITIONS]
  CHANGE     scale=0.9 | zero | add=FILE[#TENSOR][*FACTOR] | replace=FILE[#TENSOR]
             | project-out=FILE[#TENSOR]      (FILE is a safetensors file)
  POSITIONS  all | prompt | generated | 0,3,-1 | 2..5

Examples:
  djinn trace --prompt 'Once upon a time' --capture 'blocks.*.hook_resid_post'
  djinn trace --tokens 0,5,7 --capture logits --edit 'blocks.4.hook_resid_post:scale=0.9' \\
              --generate 20 --out traced.safetensors
  djinn trace --server gpu:5556 --prompt 'The cat' --capture 'blocks.3.hook_resid_post@-1'")]
pub struct TraceArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// What is read.
    #[arg(
        long,
        value_name = "PATTERN",
        required = true,
        help = "Hooks to read: HOOK[PART][@POSITIONS][|REDUCTION], by name or pattern; several \
                  with commas. Reductions: mean, norm, top5, lens5, likeliest5 (of logits)"
    )]
    pub capture: Vec<String>,
    #[command(flatten)]
    pub changes: ChangeArgs,
    /// Generate N tokens after the prompt, greedily
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub generate: usize,
    /// Write tensors (f32, by hook name), input_ids and output_ids here
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: Option<PathBuf>,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub watch: WatchArgs,
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
another hub, HF_TOKEN opens gated models. What was cut off goes on where it stopped.

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

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| format!("'{text}' is not ID=X, as in 42=-1.5"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Cli, over_budget, parse_bias};

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

    #[test]
    fn biases() {
        assert_eq!(parse_bias("42=-1.5"), Ok((42, -1.5)));
        assert!(parse_bias("42").is_err());
        assert!(parse_bias("x=1").is_err());
    }
}
