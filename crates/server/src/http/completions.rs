//! Endpoint `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};

use super::{
    answer::ApiKind,
    body::read_json,
    error::HttpResult,
    generate::{GenerationJob, check_choices, generate},
    responses::{CompletionAnswer, ErrorAnswer},
    types::{CompletionRequest, PromptInput, TOP_LOGPROBS_MAX},
};
use crate::{ServeError, app::App, auth::Caller, engine_thread::ChatTokenizer};

/// Continues one or more prompts.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200, body = CompletionAnswer, description = "Answer in OpenAI's format, with a `djinn` object if the request had one; \
                                            server-sent events if `stream` is true"),
              (status = "4XX", body = ErrorAnswer, description = "The request is invalid or was refused"),
              (status = "5XX", body = ErrorAnswer, description = "The server failed, or does not serve now")))]
pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> HttpResult {
    let body = read_json::<CompletionRequest>(&app, &caller, request).await?;
    let request = body.value;
    request.common.check()?;
    if let Some(count) = request.logprobs
        && count > TOP_LOGPROBS_MAX
    {
        let error = format!("logprobs is {count}, but the limit is {TOP_LOGPROBS_MAX}");
        return Err(ServeError::out_of_range("logprobs", error).into());
    }
    let echo = request.echo.unwrap_or(false);
    if echo && request.logprobs.is_some() {
        let error = ServeError::Unsupported(
            "echo with logprobs: prompt log-probabilities are not available; capture `logits` instead"
                .to_owned(),
        );
        return Err(error.in_field("echo").into());
    }
    check_choices(&app, request.prompt.count(), request.common.n)?;
    let model = app.models.get(request.common.model()).await?;
    let continues_session = request.common.session().is_some();
    let (tokenizer, prompt) = (model.tokenizer.clone(), request.prompt);
    let prompts = app.offload.run(caller.name(), body.bytes, move || {
        let tokens = prompt_tokens(&tokenizer, &prompt, continues_session)?;
        let texts = match echo {
            true => prompt_texts(&tokenizer, prompt)?,
            false => Vec::new(),
        };
        Ok((tokens, texts))
    });
    let prompts: Result<_, ServeError> = prompts.await?;
    let (prompts, echo) = prompts.map_err(|error| error.in_field("prompt"))?;
    let job = GenerationJob {
        api: ApiKind::Completion,
        model,
        prompts,
        echo,
        logprobs: request.logprobs,
        common: request.common,
        bytes: body.bytes,
    };
    generate(&app, caller, job).await
}

fn prompt_tokens(
    tokenizer: &ChatTokenizer,
    prompt: &PromptInput,
    continues_session: bool,
) -> Result<Vec<Arc<[u32]>>, ServeError> {
    let encode = |text: &String| {
        let tokens = match continues_session {
            true => tokenizer.encode_more(text)?,
            false => tokenizer.encode(text)?,
        };
        Ok::<_, ServeError>(tokens.into())
    };
    let checked = |tokens: &Vec<u32>| {
        tokenizer.check_token_count(tokens.len())?;
        Ok::<_, ServeError>(tokens.as_slice().into())
    };
    let prompts: Vec<Arc<[u32]>> = match prompt {
        PromptInput::Text(text) => vec![encode(text)?],
        PromptInput::Texts(texts) => texts.iter().map(encode).collect::<Result<_, _>>()?,
        PromptInput::Tokens(tokens) => vec![checked(tokens)?],
        PromptInput::TokenLists(lists) => lists.iter().map(checked).collect::<Result<_, _>>()?,
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
