//! Token ids from the flags of a prompt.

use std::io::Read;

use djinn_model::Message;
use djinn_terminal::Failure;

use crate::args::PromptArgs;

/// Prompt of flags. A prompt of `-` is read from standard input, so that the result can be used twice.
pub fn read(args: &PromptArgs) -> Result<PromptArgs, Failure> {
    let mut args = args.clone();
    if args.prompt.as_deref() == Some("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Failure::Message(format!("standard input: {error}")))?;
        args.prompt = Some(text);
    }
    if args.chat && args.prompt.is_none() {
        return Err(Failure::Message(
            "--chat needs a message: add --prompt".into(),
        ));
    }
    Ok(args)
}

fn messages(args: &PromptArgs) -> Vec<Message> {
    let message = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
    };
    let system = args.system.iter().map(|text| message("system", text));
    let user = args.prompt.iter().map(|text| message("user", text));
    system.chain(user).collect()
}

/// Token ids that a session starts from, by the tokenizer of a server's model.
pub async fn tokens(
    model: &djinn_client::ModelHandle,
    args: &PromptArgs,
) -> Result<Vec<u32>, Failure> {
    match &args.tokens {
        Some(tokens) => Ok(tokens.clone()),
        None if args.chat => {
            let messages = messages(args);
            let pairs = messages
                .iter()
                .map(|message| (message.role.as_str(), message.content.as_str()));
            Ok(model.tokenize_chat(pairs).await?)
        }
        None => Ok(model
            .tokenize(args.prompt.clone().unwrap_or_default())
            .await?),
    }
}

/// Token ids that continue a session: text without the token that begins one.
pub async fn more_tokens(
    model: &djinn_client::ModelHandle,
    args: &PromptArgs,
) -> Result<Vec<u32>, Failure> {
    match (&args.tokens, &args.prompt) {
        (Some(tokens), _) => Ok(tokens.clone()),
        (None, Some(prompt)) => Ok(model.tokenize_more(prompt.clone()).await?),
        (None, None) => Ok(Vec::new()),
    }
}

/// Token ids of a text by a model of this process.
pub fn local_text_tokens(model: &djinn_model::Model, text: &str) -> Result<Vec<u32>, Failure> {
    local_tokens(model, &PromptArgs::text(text))
}

/// Token ids of a prompt by a model of this process. The layout of its engine depends on their number.
pub fn local_tokens(model: &djinn_model::Model, args: &PromptArgs) -> Result<Vec<u32>, Failure> {
    if let Some(tokens) = &args.tokens {
        return Ok(tokens.clone());
    }
    let lacks = |what: &str, remedy: &str| {
        Failure::Message(format!("{} has no {what}: {remedy}", model.name))
    };
    let text = model
        .tokenizer
        .as_ref()
        .ok_or_else(|| lacks("tokenizer.json", "give the prompt as --tokens 1,2,3"))?;
    if args.chat {
        let template = model.chat.as_ref();
        let template = template.ok_or_else(|| lacks("chat template", "leave out --chat"))?;
        // A template writes its own special tokens.
        return Ok(text.encode_plain(&template.render(&messages(args), true)?)?);
    }
    let tokens = text.encode(args.prompt.as_deref().unwrap_or_default())?;
    match (tokens.is_empty(), text.bos()) {
        (false, _) => Ok(tokens),
        (true, Some(bos)) => Ok(vec![bos]),
        (true, None) => Err(Failure::Message(
            "the prompt is empty, and this model has no token to start from: give --prompt".into(),
        )),
    }
}
