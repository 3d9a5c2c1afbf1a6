//! From prompt flags to token ids.

use std::io::Read;

use djinn_model::{Message, Model};

use crate::{args::PromptArgs, failure::Failure};

/// The token ids a command starts from.
pub fn tokens(model: &Model, args: &PromptArgs) -> Result<Vec<u32>, Failure> {
    if let Some(tokens) = &args.tokens {
        return Ok(tokens.clone());
    }
    let text = model.tokenizer.as_ref().ok_or_else(|| {
        Failure::Message(format!(
            "{} has no tokenizer.json: give the prompt as --tokens 1,2,3",
            model.name
        ))
    })?;
    let prompt = said(args)?.unwrap_or_default();
    if args.chat {
        if args.prompt.is_none() {
            return Err(Failure::Message(
                "--chat wants a message: give --prompt".into(),
            ));
        }
        let template = model.chat.as_ref().ok_or_else(|| {
            Failure::Message(format!(
                "{} has no chat template: leave out --chat",
                model.name
            ))
        })?;
        let message = |role: &str, content: &str| Message {
            role: role.to_owned(),
            content: content.to_owned(),
        };
        let system = args.system.iter().map(|s| message("system", s));
        let messages: Vec<Message> = system.chain([message("user", &prompt)]).collect();
        // A template writes its own special tokens.
        return Ok(text.encode_plain(&template.render(&messages, true)?)?);
    }
    let tokens = text.encode(&prompt)?;
    match (tokens.is_empty(), text.bos()) {
        (false, _) => Ok(tokens),
        (true, Some(bos)) => Ok(vec![bos]),
        (true, None) => Err(Failure::Message(
            "the prompt is empty, and this model has no token to start from: give --prompt".into(),
        )),
    }
}

/// What a session is told that goes on: as text does, without a beginning of its own.
pub fn more(model: &Model, args: &PromptArgs) -> Result<Vec<u32>, Failure> {
    if let Some(tokens) = &args.tokens {
        return Ok(tokens.clone());
    }
    let Some(prompt) = said(args)? else {
        return Ok(Vec::new());
    };
    match &model.tokenizer {
        Some(text) => Ok(text.encode_plain(&prompt)?),
        None => Err(Failure::Message(format!(
            "{} has no tokenizer.json: give what it is told as --tokens 1,2,3",
            model.name
        ))),
    }
}

/// The text of a prompt, if there is one.
pub(super) fn said(args: &PromptArgs) -> Result<Option<String>, Failure> {
    match args.prompt.as_deref() {
        Some("-") => stdin().map(Some),
        prompt => Ok(prompt.map(str::to_owned)),
    }
}

fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| Failure::Message(format!("standard input: {e}")))?;
    Ok(text)
}
