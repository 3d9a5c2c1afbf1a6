//! `POST /v1/completions`

use std::sync::Arc;

use axum::extract::{Extension, Request, State};

use super::{
    Reply,
    generate::{Job, Way, answer},
    read,
    types::{CompletionRequest, Prompt},
};
use crate::{
    ServeError,
    app::{App, Caller},
    host::Words,
};

/// Alternatives of a token at most.
pub const LOGPROBS: usize = 20;

/// Text that goes on from a prompt.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200, description = "As OpenAI's, with `djinn` where it was asked for something; \
                                            server-sent events with `stream`")))]
pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Reply {
    let asked: CompletionRequest = read(&app, request).await?;
    asked.common.check()?;
    let host = app.models.get(asked.common.model()).await?;
    let goes_on = asked
        .common
        .djinn
        .as_ref()
        .is_some_and(|fields| fields.session.is_some());
    let prompts = prompts(&host.words, asked.prompt.clone(), goes_on)?;
    if asked.logprobs > Some(LOGPROBS) {
        return Err(
            ServeError::TooLarge(format!("logprobs: {LOGPROBS} alternatives at most")).into(),
        );
    }
    let echo = match asked.echo.unwrap_or(false) {
        true if asked.logprobs.is_some() => {
            return Err(ServeError::Unsupported(
                "echo with logprobs: those of a prompt are not told; capture logits instead"
                    .to_owned(),
            )
            .into());
        }
        true => texts(&host.words, asked.prompt)?,
        false => Vec::new(),
    };
    let job = Job {
        way: Way::Text,
        host,
        prompts,
        echo,
        logprobs: asked.logprobs,
        common: asked.common,
    };
    answer(&app, caller, job).await
}

fn prompts(words: &Words, prompt: Prompt, goes_on: bool) -> Result<Vec<Vec<u32>>, ServeError> {
    let encode = |text: &String| match goes_on {
        true => words.encode_more(text),
        false => words.encode(text),
    };
    let prompts = match prompt {
        Prompt::Text(text) => vec![encode(&text)?],
        Prompt::Texts(texts) => texts.iter().map(encode).collect::<Result<_, _>>()?,
        Prompt::Tokens(tokens) => vec![tokens],
        Prompt::TokenLists(lists) => lists,
    };
    match prompts.is_empty() {
        true => Err(ServeError::Invalid("the prompt is empty".to_owned())),
        false => Ok(prompts),
    }
}

/// The prompts as text.
fn texts(words: &Words, prompt: Prompt) -> Result<Vec<String>, ServeError> {
    let decode = |tokens: &Vec<u32>| {
        words
            .tokenizer()?
            .decode(tokens, true)
            .map_err(ServeError::from)
    };
    match prompt {
        Prompt::Text(text) => Ok(vec![text]),
        Prompt::Texts(texts) => Ok(texts),
        Prompt::Tokens(tokens) => Ok(vec![decode(&tokens)?]),
        Prompt::TokenLists(lists) => lists.iter().map(decode).collect(),
    }
}
