//! Flags of the commands that look inside.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};
use djinn_engine::{BreakSpec, EditSpec};

use super::{ModelArgs, PromptArgs, ServerArgs, at_least_one};

/// `djinn lens`
#[derive(Debug, Args)]
#[command(after_help = "\
What the model would say if it ended behind each block: the head is applied to the residual
there. A row for every block, the last on top; a column for every token of the prompt.

Examples:
  djinn lens --prompt 'Once upon a time there was a little'
  djinn lens --prompt 'The cat sat on the' --svg lens.svg
  djinn lens --tokens 1,5,7 --top 5 --json")]
pub struct LensArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// With --json: how many tokens of each place
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = at_least_one)]
    pub top: usize,
    /// Draw the grid here too
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn patch`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs --corrupt with the residual of --clean put in its place, at one block and one position at a
time, and says how much of the clean answer comes back: the difference between the logits of
--answer and --instead after the last token, 0 as corrupt and 1 as clean. Both prompts have as many
tokens.

What lies before a patch is computed once: sessions branch off there and go on. With --compare
every patch is computed from nothing as well; the logits are compared to the bit, and the times.

Example:
  djinn patch --clean 'Lily had a red ball. The ball was' \\
              --corrupt 'Lily had a blue ball. The ball was' --answer ' red' --instead ' blue'")]
pub struct PatchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt whose activations are put in place
    #[arg(long, value_name = "T")]
    pub clean: String,
    /// The prompt they are put into
    #[arg(long, value_name = "T")]
    pub corrupt: String,
    /// The clean prompt's answer: its first token counts
    #[arg(long, value_name = "T")]
    pub answer: String,
    /// The corrupt prompt's
    #[arg(long, value_name = "T")]
    pub instead: String,
    /// Compute every patch from nothing too, and compare
    #[arg(long)]
    pub compare: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn debug`
#[derive(Debug, Args)]
#[command(after_help = "\
Stops a model at its hooks: break, run, step, print, edit, branch, undo. `help` says more.

Examples:
  djinn debug --prompt 'Once upon a time'
  djinn debug --prompt 'The cat sat' --break 'blocks.3.hook_resid_post,step=0'
  djinn debug --prompt 'The cat sat' --script steps.txt")]
pub struct DebugArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Where to stop.
    #[arg(
        long = "break",
        value_name = "BREAK",
        help = "Stop here: HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]; may be repeated"
    )]
    pub breaks: Vec<BreakSpec>,
    /// Generate at most this many tokens
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub max_tokens: usize,
    /// Take commands from this file and end; the first that fails ends it too
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
}

/// What is changed on the way.
#[derive(Clone, Debug, Default, Args)]
pub struct ChangeArgs {
    /// What is changed.
    #[arg(
        long,
        help_heading = "Inside",
        value_name = "EDIT",
        help = "Change an activation on the way: HOOK[PART]:CHANGE[@POSITIONS]; may be repeated, \
                  applied in order"
    )]
    pub edit: Vec<EditSpec>,
    /// Add a steering vector, so many times; may be repeated, after edits
    #[arg(long, help_heading = "Inside", value_name = "FILE[:FACTOR]")]
    pub steer: Vec<Steer>,
}

/// A steering vector, and how much of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Steer {
    /// Its file.
    pub file: PathBuf,
    /// How often it is added.
    pub factor: f32,
}

impl FromStr for Steer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (file, factor) = match text.rsplit_once(':') {
            // A drive's letter, or a folder with a colon, is no factor.
            Some((file, factor))
                if !factor.contains(['/', '\\', '.']) || factor.parse::<f32>().is_ok() =>
            {
                let parsed = factor
                    .parse::<f32>()
                    .ok()
                    .filter(|factor| factor.is_finite());
                let factor = parsed.ok_or_else(|| format!("'{factor}' is not a finite number"))?;
                (file, factor)
            }
            _ => (text, 1.0),
        };
        match file.is_empty() {
            true => Err("the file is missing before ':'".to_owned()),
            false => Ok(Steer {
                file: file.into(),
                factor,
            }),
        }
    }
}

/// `djinn steer`
#[derive(Debug, Args)]
#[command(after_help = "\
A steering vector is a direction behind some blocks: the mean residual after the last token of some
prompts, less that of others. Files are .safetensors, or .gguf as llama.cpp reads them.

Examples:
  djinn steer make --positive happy.txt --negative sad.txt --layer 4 --out happy.safetensors
  djinn run --steer happy.safetensors:2 --prompt 'One day a dog'
  djinn steer show happy.safetensors
  djinn steer measure --edit 'blocks.4.hook_resid_post:scale=0.9' --prompt 'Once upon a time'")]
pub struct SteerArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: SteerWhat,
}

/// What can be done with steering vectors.
#[derive(Debug, Subcommand)]
pub enum SteerWhat {
    /// Make one from two sets of prompts
    Make(SteerMakeArgs),
    /// Show what is in a file, or write it in the other format
    Show(SteerShowArgs),
    /// How much a change changes: of the logits, and of the text
    Measure(SteerMeasureArgs),
}

/// `djinn steer make`
#[derive(Debug, Args)]
pub struct SteerMakeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// A prompt, or a file with one on every line; may be repeated
    #[arg(long, value_name = "T|FILE", required = true)]
    pub positive: Vec<String>,
    /// The same of what it leads away from
    #[arg(long, value_name = "T|FILE", required = true)]
    pub negative: Vec<String>,
    /// Blocks behind which it is added [default: the one in the middle]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub layer: Vec<usize>,
    /// Where it is written
    #[arg(long, value_name = "FILE.safetensors|FILE.gguf")]
    pub out: PathBuf,
}

/// `djinn steer show`
#[derive(Debug, Args)]
pub struct SteerShowArgs {
    /// The file
    pub file: PathBuf,
    /// Write it here, in the format the name says
    #[arg(long, value_name = "FILE.safetensors|FILE.gguf")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn steer measure`
#[derive(Debug, Args)]
pub struct SteerMeasureArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub changes: ChangeArgs,
    /// Generate so many tokens, greedily
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = at_least_one)]
    pub generate: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::Steer;

    #[test]
    fn vectors_and_factors() {
        let read = |text: &str| text.parse::<Steer>().map(|s| (s.file, s.factor));
        assert_eq!(read("a.gguf"), Ok(("a.gguf".into(), 1.0)));
        assert_eq!(read("a.gguf:-2.5"), Ok(("a.gguf".into(), -2.5)));
        assert_eq!(read("c:/x/a.gguf"), Ok(("c:/x/a.gguf".into(), 1.0)));
        assert!(read("a.gguf:much").is_err() && read("a:nan").is_err() && read(":2").is_err());
    }
}
