//! From prompt flags to token ids, in the words of a server's model.

use djinn_client::ModelHandle;

use crate::{args::PromptArgs, commands::prompt::said, failure::Failure};

/// The token ids a command starts from.
pub async fn tokens(model: &ModelHandle, args: &PromptArgs) -> Result<Vec<u32>, Failure> {
    if let Some(tokens) = &args.tokens {
        return Ok(tokens.clone());
    }
    let prompt = said(args)?;
    if !args.chat {
        return Ok(model.tokenize(prompt.unwrap_or_default()).await?);
    }
    let Some(prompt) = prompt else {
        return Err(Failure::Message(
            "--chat wants a message: give --prompt".into(),
        ));
    };
    let system = args.system.iter().map(|text| ("system", text.as_str()));
    let messages = system.chain([("user", prompt.as_str())]);
    Ok(model.tokenize_chat(messages).await?)
}

/// What a session is told that goes on.
pub async fn more(model: &ModelHandle, args: &PromptArgs) -> Result<Vec<u32>, Failure> {
    match (&args.tokens, said(args)?) {
        (Some(tokens), _) => Ok(tokens.clone()),
        (None, Some(prompt)) => Ok(model.tokenize_more(prompt).await?),
        (None, None) => Ok(Vec::new()),
    }
}
