//! Endpoint `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use serde_json::{Map, Value};

use super::{
    answer::ApiKind,
    body::read_json,
    error::HttpResult,
    generate::{GenerationJob, check_choices, generate},
    responses::{ChatAnswer, ErrorAnswer},
    types::{ChatRequest, TOP_LOGPROBS_MAX},
};
use crate::{ServeError, app::App, auth::Caller};

/// Answers a chat with the model's chat template.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest,
    responses((status = 200, body = ChatAnswer, description = "Answer in OpenAI's format, with a `djinn` object if the request had one; \
                                            server-sent events if `stream` is true"),
              (status = "4XX", body = ErrorAnswer, description = "The request is invalid or was refused"),
              (status = "5XX", body = ErrorAnswer, description = "The server failed, or does not serve now")))]
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> HttpResult {
    let body = read_json::<ChatRequest>(&app, &caller, request).await?;
    let request = body.value;
    request.common.check()?;
    let logprobs = match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (false, Some(_)) => {
            let error = ServeError::Invalid("top_logprobs requires logprobs: true".to_owned());
            return Err(error.in_field("top_logprobs").into());
        }
        (false, None) => None,
        (true, Some(top)) if top > TOP_LOGPROBS_MAX => {
            let error = format!("top_logprobs is {top}, but the limit is {TOP_LOGPROBS_MAX}");
            return Err(ServeError::out_of_range("top_logprobs", error).into());
        }
        (true, top) => Some(top.unwrap_or(0)),
    };
    if request.messages.is_empty() {
        let error = ServeError::Invalid("messages is empty; send at least one".to_owned());
        return Err(error.in_field("messages").into());
    }
    check_choices(&app, 1, request.common.n)?;
    let model = app.models.get(request.common.model()).await?;
    let (tokenizer, messages) = (model.tokenizer.clone(), request.messages);
    let variables = request.chat_template_kwargs.unwrap_or_default();
    let tokens = app.offload.run(caller.name(), body.bytes, move || {
        let messages = messages.into_iter().map(flatten_message);
        let messages = messages.collect::<Result<Vec<Value>, _>>()?;
        tokenizer.encode_chat(&messages, variables)
    });
    let tokens = tokens.await?.map_err(|error| error.in_field("messages"))?;
    let job = GenerationJob {
        api: ApiKind::Chat,
        model,
        prompts: vec![tokens.into()],
        echo: Vec::new(),
        logprobs,
        common: request.common,
        bytes: body.bytes,
    };
    generate(&app, caller, job).await
}

/// Checks a message and joins the text parts of its content.
fn flatten_message(message: Value) -> Result<Value, ServeError> {
    let invalid = |problem: &str| ServeError::Invalid(format!("Invalid message: {problem}"));
    let Value::Object(mut message) = message else {
        return Err(invalid("expected an object with role and content"));
    };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(invalid("role is missing"));
    }
    let content = match message.remove("content") {
        Some(Value::Array(parts)) => parts
            .iter()
            .map(part_text)
            .collect::<Result<String, _>>()?
            .into(),
        Some(content @ Value::String(_)) => content,
        // An assistant message that called tools may have no content.
        None | Some(Value::Null) if message["role"] == "assistant" => Value::String(String::new()),
        None | Some(Value::Null) => return Err(invalid("content is missing")),
        Some(_) => return Err(invalid("content must be text or a list of text parts")),
    };
    let mut flat = Map::new();
    flat.insert(
        "role".to_owned(),
        message.remove("role").unwrap_or_default(),
    );
    flat.insert("content".to_owned(), content);
    flat.extend(message);
    Ok(Value::Object(flat))
}

fn part_text(part: &Value) -> Result<&str, ServeError> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text),
        (kind, _) => Err(ServeError::Unsupported(format!(
            "Content parts of type '{}' are not supported; send parts of type 'text'",
            kind.unwrap_or("none").escape_debug()
        ))),
    }
}
