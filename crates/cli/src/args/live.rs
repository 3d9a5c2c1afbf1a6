//! Flags of the interactive commands `djinn chat` and `djinn top`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{
    model::ModelArgs,
    parse::{at_least_one, update_interval},
    run::SamplingArgs,
    server::ServerArgs,
};

/// `djinn chat`
#[derive(Debug, Args)]
#[command(after_help = "\
Each line is a message; /help lists the commands. Ctrl-C ends an answer, Ctrl-D the chat.
A model without a chat template continues the text instead.

Examples:
  djinn chat --model ./Llama-3.2-1B-Instruct --system 'Answer in one sentence.'
  djinn chat --server gpu:5556 --model big --temperature 0.7
  djinn chat --load talk.json")]
pub struct ChatArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// System message
    #[arg(long, value_name = "T")]
    pub system: Option<String>,
    /// Longest answer in tokens [default: the model's own limit, or 512]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_tokens: Option<usize>,
    /// Longest conversation in tokens [default: the longest that fits, up to the model's context]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Continue a conversation that /save wrote
    #[arg(long, value_name = "FILE.json")]
    pub load: Option<PathBuf>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `djinn top`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --server, the command uses the server that DJINN_SERVER names, or the one on this machine at
the default port. The key q quits. If standard output is not a terminal, --once is implied.

Examples:
  djinn top --server gpu:5556
  djinn top --once
  djinn top --json | jq '.models[0].tokens_per_s'")]
pub struct TopArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Seconds between updates
    #[arg(long, value_name = "S", default_value = "1", value_parser = update_interval)]
    pub every: Duration,
    /// Print one table after two updates, then exit
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object after two updates, then exit
    #[arg(long)]
    pub json: bool,
}
