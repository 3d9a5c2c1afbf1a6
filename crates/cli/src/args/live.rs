//! Flags of the commands that are looked at while they run: `djinn chat` and `djinn top`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{ModelArgs, SamplingArgs, ServerArgs, at_least_one};

/// `djinn chat`
#[derive(Debug, Args)]
#[command(after_help = "\
A line is what you say; /help lists what else can be typed. Ctrl-C ends an answer, Ctrl-D the chat.
A model without a chat template goes on with the text instead.

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
    /// Tokens of an answer at most [default: the model's own limit, or 512]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_tokens: Option<usize>,
    /// Positions of the conversation [default: the model's context, at most 4096]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Go on with a conversation that /save wrote
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
    /// Seconds between one look and the next
    #[arg(long, value_name = "S", default_value = "1", value_parser = every)]
    pub every: Duration,
    /// Look twice, so far apart, print one table and end
    #[arg(long)]
    pub once: bool,
    /// The same as one JSON object
    #[arg(long)]
    pub json: bool,
}

fn every(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|s| (0.05..=3600.0).contains(s));
    let seconds = seconds.ok_or_else(|| format!("'{text}' is not seconds, from 0.05 to 3600"))?;
    Ok(Duration::from_secs_f64(seconds))
}
