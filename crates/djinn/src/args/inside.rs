//! Flags of the commands that look inside.

use std::path::PathBuf;

use clap::Args;

use super::{ModelArgs, PromptArgs, at_least_one};

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

What lies before a patch is computed once: sessions stop there, branch, and go on. With --compare
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
