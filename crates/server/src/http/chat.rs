//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use serde_json::{Map, Value};

use super::{
    Reply,
    completions::LOGPROBS,
    generate::{Job, Way, answer},
    read,
    types::ChatRequest,
};
use crate::{
    ServeError,
    app::{App, Caller},
};

/// An answer to a chat, through the model's own template.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest,
    responses((status = 200, description = "As OpenAI's, with `djinn` where it was asked for something; \
                                            server-sent events with `stream`")))]
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Reply {
    let asked: ChatRequest = read(&app, request).await?;
    asked.common.check()?;
    let host = app.models.get(asked.common.model()).await?;
    let messages: Vec<Value> = asked
        .messages
        .into_iter()
        .map(plain)
        .collect::<Result<_, _>>()?;
    if messages.is_empty() {
        return Err(ServeError::Invalid("messages are missing".to_owned()).into());
    }
    let variables = asked.chat_template_kwargs.unwrap_or_default();
    let tokens = host.words.encode_chat(&messages, variables)?;
    let logprobs = match (asked.logprobs.unwrap_or(false), asked.top_logprobs) {
        (false, Some(_)) => {
            return Err(
                ServeError::Invalid("top_logprobs wants logprobs to be true".to_owned()).into(),
            );
        }
        (false, None) => None,
        (true, top) if top > Some(LOGPROBS) => {
            return Err(ServeError::TooLarge(format!("top_logprobs: {LOGPROBS} at most")).into());
        }
        (true, top) => Some(top.unwrap_or(0)),
    };
    let job = Job {
        way: Way::Chat,
        host,
        prompts: vec![tokens],
        echo: Vec::new(),
        logprobs,
        common: asked.common,
    };
    answer(&app, caller, job).await
}

/// A message whose content is text: parts are put together.
fn plain(message: Value) -> Result<Value, ServeError> {
    let Value::Object(mut message) = message else {
        return Err(ServeError::Invalid(
            "a message is an object with role and content".to_owned(),
        ));
    };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(ServeError::Invalid("a message has no role".to_owned()));
    }
    let content = match message.remove("content") {
        Some(Value::Array(parts)) => parts
            .iter()
            .map(text)
            .collect::<Result<String, _>>()?
            .into(),
        Some(content @ Value::String(_)) => content,
        // An assistant that called tools may have said nothing.
        None | Some(Value::Null) if message["role"] == "assistant" => Value::String(String::new()),
        None | Some(Value::Null) => {
            return Err(ServeError::Invalid("a message has no content".to_owned()));
        }
        Some(_) => {
            return Err(ServeError::Invalid(
                "a message's content is text, or parts of type text".to_owned(),
            ));
        }
    };
    let mut plain = Map::new();
    plain.insert(
        "role".to_owned(),
        message.remove("role").unwrap_or_default(),
    );
    plain.insert("content".to_owned(), content);
    plain.extend(message);
    Ok(Value::Object(plain))
}

fn text(part: &Value) -> Result<&str, ServeError> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text),
        (kind, _) => Err(ServeError::Unsupported(format!(
            "parts of type '{}' are not supported: text only",
            kind.unwrap_or("none").escape_debug()
        ))),
    }
}
