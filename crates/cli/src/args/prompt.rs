//! Flags of a prompt.

use clap::Args;

/// Prompt of a model.
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
    /// System message, with --chat
    #[arg(long, value_name = "T", requires = "chat")]
    pub system: Option<String>,
}

impl PromptArgs {
    /// Prompt of plain text.
    pub fn text(text: &str) -> Self {
        PromptArgs {
            prompt: Some(text.to_owned()),
            tokens: None,
            chat: false,
            system: None,
        }
    }
}
