//! Flags of commands that run a prompt.

use std::path::PathBuf;

use clap::Args;

use super::{
    inside::ChangeArgs, memory::WatchArgs, model::ModelArgs, parse::logit_bias, prompt::PromptArgs,
    server::ServerArgs,
};

/// Sampling of tokens. Defaults come from the model's generation_config.json; a model without one is
/// greedy.
#[derive(Clone, Debug, Args)]
pub struct SamplingArgs {
    /// Temperature: 0 takes the most likely token; 1 samples from the model's distribution
    #[arg(long, help_heading = "Sampling", value_name = "X")]
    pub temperature: Option<f32>,
    /// Sample from the K most likely tokens; 0 for all
    #[arg(long, help_heading = "Sampling", value_name = "K")]
    pub top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities add up to P
    #[arg(long, help_heading = "Sampling", value_name = "P")]
    pub top_p: Option<f32>,
    /// Exclude tokens less likely than this share of the most likely one
    #[arg(long, help_heading = "Sampling", value_name = "P")]
    pub min_p: Option<f32>,
    /// Make tokens of the prompt and of the output less likely; 1 has no effect
    #[arg(long, help_heading = "Sampling", value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Subtract X from the logits of tokens in the output
    #[arg(
        long,
        help_heading = "Sampling",
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub presence_penalty: Option<f32>,
    /// Subtract X from the logits of tokens in the output, once for each occurrence
    #[arg(
        long,
        help_heading = "Sampling",
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub frequency_penalty: Option<f32>,
    /// Add X to the logit of a token; may be repeated
    #[arg(long, help_heading = "Sampling", value_name = "ID=X", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of sampling; the same seed gives the same text [default: random, printed at the end]
    #[arg(long, help_heading = "Sampling", value_name = "N")]
    pub seed: Option<u64>,
}

/// `djinn run`
#[derive(Debug, Args)]
#[command(after_help = "\
Sampling defaults come from the model's generation_config.json; a model without one is greedy.

Examples:
  djinn run
  djinn run --prompt 'The little robot' --temperature 0.8 --top-p 0.95 --seed 7
  djinn run --model ./Llama-3.2-1B-Instruct --chat --prompt 'Why is the sky blue?'
  djinn run --model 'shape:llama-2-7b?layers=2' --tokens 1,2,3 --max-tokens 8 --json
  djinn run --model ./Llama-2-13b --memory 4GB --stats --timeline passes.json
  djinn run --state ./sessions --prompt 'Tom had a red boat.' --max-tokens 40
  djinn run --state ./sessions --session 01KA9ZJ8Q3V5T7WXR2MDGH6B4C --prompt ' One day'
  djinn run --server gpu:5556 --model big --prompt 'Tom had a red boat.' --keep
  djinn run --server gpu:5556 --session big:01KA9ZJ8Q3V5T7WXR2MDGH6B4C --prompt ' One day'")]
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
    /// Stop at this text; may be repeated
    #[arg(long, value_name = "T")]
    pub stop: Vec<String>,
    /// Continue after the model's end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Report each token's log-probability and N alternatives, with --json
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    pub json: bool,
    /// Save the session in this folder, so that it can be continued later, even after a crash
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Keep the session on the server when the command ends, so that --session can continue it
    #[arg(long, help_heading = "Server", requires = "server")]
    pub keep: bool,
    /// Continue this session of the folder or of the server with --prompt as its next input
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
Hooks, named as in TransformerLens:
  hook_embed
  blocks.I.hook_resid_pre  .hook_resid_mid  .hook_resid_post
  blocks.I.hook_attn_out   .hook_mlp_out
  blocks.I.attn.hook_q  .hook_k  .hook_v  .hook_z  .hook_pattern
  blocks.I.mlp.hook_pre  .hook_post
  ln_final.hook_normalized
  logits
A * matches any text. Captures read the positions of the prompt, after edits.

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
    /// Hooks to read.
    #[arg(
        long,
        value_name = "PATTERN",
        required = true,
        help = "Hooks to read: HOOK[PART][@POSITIONS][|REDUCTION], separated by commas; * matches any \
                text. Reductions: mean, norm, top5, lens5, likeliest5 (of logits)"
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
