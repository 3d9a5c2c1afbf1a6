//! Flags of commands that look inside a model.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};
use djinn_engine::{BreakSpec, EditSpec};

use super::{model::ModelArgs, parse::at_least_one, prompt::PromptArgs, server::ServerArgs};

/// `djinn lens`
#[derive(Debug, Args)]
#[command(after_help = "\
Applies the model's head to the residual after each block. Prints a row for every block, the last one
first, and a column for every token of the prompt.

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
    /// Number of predictions for each block and position, with --json
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = at_least_one)]
    pub top: usize,
    /// Also draw the grid to this file
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn patch`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs --corrupt with the residual of --clean in its place, at one block and position at a time, and
prints how much of the clean answer returns: the difference between the logits of --answer and
--instead after the last token, scaled so that 0 is the corrupt prompt and 1 the clean one. Both
prompts need the same number of tokens.

Everything before a patch is computed once, because sessions branch off there. With --compare, every
patch is also computed from the first token, and logits and times are compared.

Example:
  djinn patch --clean 'Lily had a red ball. The ball was' \\
              --corrupt 'Lily had a blue ball. The ball was' --answer ' red' --instead ' blue'")]
pub struct PatchArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Prompt whose residuals are inserted
    #[arg(long, value_name = "T")]
    pub clean: String,
    /// Prompt that is patched
    #[arg(long, value_name = "T")]
    pub corrupt: String,
    /// Answer of the clean prompt; its first token counts
    #[arg(long, value_name = "T")]
    pub answer: String,
    /// Answer of the corrupt prompt; its first token counts
    #[arg(long, value_name = "T")]
    pub instead: String,
    /// Also compute every patch from the first token, and compare
    #[arg(long)]
    pub compare: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `djinn debug`
#[derive(Debug, Args)]
#[command(after_help = "\
Pauses a model at its hooks. Commands are break, run, step, print, edit, branch, undo; `help` lists
them all.

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
    /// Breakpoints.
    #[arg(
        long = "break",
        value_name = "BREAK",
        help = "Add a breakpoint: HOOK[@POSITIONS][,step=N][,token=ID][,norm>X]; may be repeated"
    )]
    pub breaks: Vec<BreakSpec>,
    /// Generate at most this many tokens
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub max_tokens: usize,
    /// Run the commands of this file; the first error ends the command
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
}

/// Edits and steering vectors.
#[derive(Clone, Debug, Default, Args)]
pub struct ChangeArgs {
    /// Edits of activations.
    #[arg(
        long,
        help_heading = "Inside",
        value_name = "EDIT",
        help = "Edit an activation: HOOK[PART]:CHANGE[@POSITIONS]; may be repeated, applied in order"
    )]
    pub edit: Vec<EditSpec>,
    /// Add a steering vector, multiplied by a factor; may be repeated, applied after edits
    #[arg(long, help_heading = "Inside", value_name = "FILE[:FACTOR]")]
    pub steer: Vec<SteerFlag>,
}

/// Value of `--steer`: a steering vector and its factor.
#[derive(Clone, Debug, PartialEq)]
pub struct SteerFlag {
    /// File of the vector.
    pub file: PathBuf,
    /// Factor that the vector is multiplied by.
    pub factor: f32,
}

impl FromStr for SteerFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (file, factor) = match text.rsplit_once(':') {
            // A colon in a path does not begin a factor.
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
            true => Err("expected FILE[:FACTOR], but the file is missing before ':'".to_owned()),
            false => Ok(SteerFlag {
                file: file.into(),
                factor,
            }),
        }
    }
}

/// `djinn steer`
#[derive(Debug, Args)]
#[command(after_help = "\
A steering vector has a direction for some blocks: the mean residual after the last token of positive
prompts, minus that of negative prompts. Files are .safetensors, or .gguf in the format of llama.cpp.

Examples:
  djinn steer make --positive happy.txt --negative sad.txt --layer 4 --out happy.safetensors
  djinn run --steer happy.safetensors:2 --prompt 'One day a dog'
  djinn steer show happy.safetensors
  djinn steer measure --edit 'blocks.4.hook_resid_post:scale=0.9' --prompt 'Once upon a time'")]
pub struct SteerArgs {
    /// Action on steering vectors to run.
    #[command(subcommand)]
    pub action: SteerAction,
}

/// Action on steering vectors.
#[derive(Debug, Subcommand)]
pub enum SteerAction {
    /// Make a steering vector from two sets of prompts
    Make(SteerMakeArgs),
    /// Show a steering vector, or convert it to the other format
    Show(SteerShowArgs),
    /// Measure how much edits and steering vectors change logits and text
    Measure(SteerMeasureArgs),
}

/// `djinn steer make`
#[derive(Debug, Args)]
pub struct SteerMakeArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positive prompt, or a file with one prompt per line; may be repeated
    #[arg(long, value_name = "T|FILE", required = true)]
    pub positive: Vec<String>,
    /// Negative prompt, or a file with one prompt per line; may be repeated
    #[arg(long, value_name = "T|FILE", required = true)]
    pub negative: Vec<String>,
    /// Blocks after which the vector is added [default: the middle block]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub layer: Vec<usize>,
    /// File to write
    #[arg(long, value_name = "FILE.safetensors|FILE.gguf")]
    pub out: PathBuf,
}

/// `djinn steer show`
#[derive(Debug, Args)]
pub struct SteerShowArgs {
    /// File of the vector
    pub file: PathBuf,
    /// Also write the vector to this file, in the format of its extension
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
    pub server: ServerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub changes: ChangeArgs,
    /// Generate N tokens greedily
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = at_least_one)]
    pub generate: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::SteerFlag;

    #[test]
    fn vectors_and_factors() {
        let read = |text: &str| text.parse::<SteerFlag>().map(|s| (s.file, s.factor));
        assert_eq!(read("a.gguf"), Ok(("a.gguf".into(), 1.0)));
        assert_eq!(read("a.gguf:-2.5"), Ok(("a.gguf".into(), -2.5)));
        assert_eq!(read("c:/x/a.gguf"), Ok(("c:/x/a.gguf".into(), 1.0)));
        assert!(read("a.gguf:much").is_err() && read("a:nan").is_err() && read(":2").is_err());
    }
}
