//! Endpoint `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};

use super::{
    answer::ApiKind,
    body::read_json,
    error::HttpResult,
    generate::{GenerationJob, generate},
    types::{CompletionRequest, PromptInput, TOP_LOGPROBS_MAX},
};
use crate::{ServeError, app::App, auth::Caller, engine_thread::ChatTokenizer};

/// Continues one or more prompts.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200, description = "Answer in OpenAI's format, with a `djinn` object if the request had one; \
                                            server-sent events if `stream` is true")))]
pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> HttpResult {
    let request: CompletionRequest = read_json(&app.config.limits, request).await?;
    request.common.check()?;
    let model = app.models.get(request.common.model()).await?;
    let continues_session = request.common.session().is_some();
    let prompts = prompt_tokens(&model.tokenizer, &request.prompt, continues_session)
        .map_err(|error| error.in_field("prompt"))?;
    if let Some(count) = request.logprobs
        && count > TOP_LOGPROBS_MAX
    {
        let error = ServeError::TooLarge(format!(
            "logprobs is {count}, but the limit is {TOP_LOGPROBS_MAX}"
        ));
        return Err(error.in_field("logprobs").into());
    }
    let echo = match request.echo.unwrap_or(false) {
        true if request.logprobs.is_some() => {
            let error = ServeError::Unsupported(
                "echo with logprobs: prompt log-probabilities are not available; capture `logits` instead"
                    .to_owned(),
            );
            return Err(error.in_field("echo").into());
        }
        true => prompt_texts(&model.tokenizer, request.prompt)?,
        false => Vec::new(),
    };
    let job = GenerationJob {
        api: ApiKind::Completion,
        model,
        prompts,
        echo,
        logprobs: request.logprobs,
        common: request.common,
    };
    generate(&app, caller, job).await
}

fn prompt_tokens(
    tokenizer: &ChatTokenizer,
    prompt: &PromptInput,
    continues_session: bool,
) -> Result<Vec<Vec<u32>>, ServeError> {
    let encode = |text: &String| match continues_session {
        true => tokenizer.encode_more(text),
        false => tokenizer.encode(text),
    };
    let prompts = match prompt {
        PromptInput::Text(text) => vec![encode(text)?],
        PromptInput::Texts(texts) => texts.iter().map(encode).collect::<Result<_, _>>()?,
        PromptInput::Tokens(tokens) => vec![tokens.clone()],
        PromptInput::TokenLists(lists) => lists.clone(),
    };
    match prompts.is_empty() {
        true => Err(ServeError::Invalid(
            "prompt is an empty list; send at least one prompt".to_owned(),
        )),
        false => Ok(prompts),
    }
}

/// Text of every prompt, for `echo`.
fn prompt_texts(tokenizer: &ChatTokenizer, prompt: PromptInput) -> Result<Vec<String>, ServeError> {
    let decode = |tokens: &Vec<u32>| {
        let text = tokenizer.tokenizer()?.decode(tokens, true);
        text.map_err(ServeError::from)
    };
    match prompt {
        PromptInput::Text(text) => Ok(vec![text]),
        PromptInput::Texts(texts) => Ok(texts),
        PromptInput::Tokens(tokens) => Ok(vec![decode(&tokens)?]),
        PromptInput::TokenLists(lists) => lists.iter().map(decode).collect(),
    }
}
