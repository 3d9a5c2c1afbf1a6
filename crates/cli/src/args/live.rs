//! Flags of the interactive commands `djinn chat` and `djinn top`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{ModelArgs, SamplingArgs, ServerArgs, at_least_one};

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
    /// The system message
    #[arg(long, value_name = "T")]
    pub system: Option<String>,
    /// Longest answer in tokens [default: the model's own limit, or 512]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_tokens: Option<usize>,
    /// Longest conversation in tokens [default: the model's context, at most 4096]
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
Without --server it is the one that DJINN_SERVER names, or this machine's own at the usual port.
q quits. Where standard output is no terminal it behaves as with --once.

Examples:
  djinn top --server gpu:5556
  djinn top --once
  djinn top --json | jq '.models[0].tokens_per_s'")]
pub struct TopArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Seconds between updates
    #[arg(long, value_name = "S", default_value = "1", value_parser = every)]
    pub every: Duration,
    /// Print one table after two updates, and end
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object after two updates, and end
    #[arg(long)]
    pub json: bool,
}

fn every(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|s| (0.05..=3600.0).contains(s));
    let seconds = seconds.ok_or_else(|| format!("'{text}' is not seconds, from 0.05 to 3600"))?;
    Ok(Duration::from_secs_f64(seconds))
}
