//! Request bodies: read up to a size and a time limit, then parsed as JSON.

use axum::{body::Bytes, extract::Request, http::header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower_http::timeout::TimeoutError;

use crate::{ServeError, app::App, auth::Caller, config::ServerLimits};

/// Largest body in bytes for which an error names the field that caused it.
const NAMED_FIELD_BYTES: usize = 1 << 20;

/// A request body as a value, and the number of its bytes.
pub struct JsonBody<T> {
    /// Parsed body.
    pub value: T,
    /// Bytes of the body, as a measure of the work that it asks for.
    pub bytes: usize,
}

/// Reads a request's body as JSON.
pub async fn read_json<T: DeserializeOwned + Send + 'static>(
    app: &App,
    caller: &Caller,
    request: Request,
) -> Result<JsonBody<T>, ServeError> {
    let body = read(&app.config.limits, request).await?;
    let bytes = body.len();
    let parsed = app.offload.run(caller.name(), bytes, move || parse(&body));
    let value = parsed.await??;
    Ok(JsonBody { value, bytes })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ServeError> {
    serde_json::from_slice(body).map_err(|error| {
        let invalid = ServeError::Invalid(format!("Invalid request: {}", in_words(&error)));
        match wrong_field::<T>(body) {
            Some(field) => invalid.in_field(field),
            None => invalid,
        }
    })
}

/// Error of the parser in words that do not depend on the server's types.
fn in_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let words = text
        .split(' ')
        .map(|word| match word.trim_end_matches(',') {
            "usize" | "u64" | "u32" | "i64" => {
                word.replace(word.trim_end_matches(','), "a whole number")
            }
            "f32" | "f64" => word.replace(word.trim_end_matches(','), "a number"),
            "bool" => word.replace("bool", "true or false"),
            _ => word.to_owned(),
        });
    let text = words.collect::<Vec<_>>().join(" ");
    // "struct CompletionRequest" names a type of the server.
    match text.split_once("expected struct ") {
        Some((before, after)) => {
            let rest = after.split_once(' ').map_or("", |(_, rest)| rest);
            format!("{before}expected an object {rest}")
                .trim_end()
                .to_owned()
        }
        None => text,
    }
}

/// Name of the field without which the body is valid, or fails for another reason.
fn wrong_field<T: DeserializeOwned>(body: &[u8]) -> Option<String> {
    if body.len() > NAMED_FIELD_BYTES {
        return None;
    }
    let Ok(Value::Object(object)) = serde_json::from_slice(body) else {
        return None;
    };
    let error = |object: &serde_json::Map<String, Value>| {
        serde_json::from_value::<T>(Value::Object(object.clone()))
            .err()
            .map(|e| e.to_string())
    };
    let first = error(&object)?;
    let is_wrong = |name: &&String| {
        let mut without = object.clone();
        without.remove(*name);
        let now_missing = format!("missing field `{name}`");
        match error(&without) {
            None => true,
            Some(other) => other != first && !other.starts_with(&now_missing),
        }
    };
    let missing = || first.strip_prefix("missing field `")?.split('`').next();
    match missing() {
        Some(name) => Some(name.to_owned()),
        None => object.keys().find(is_wrong).cloned(),
    }
}

async fn read(limits: &ServerLimits, request: Request) -> Result<Bytes, ServeError> {
    let too_large = || {
        ServeError::TooLarge(format!(
            "The request body exceeds the limit of {} bytes",
            limits.body_bytes
        ))
    };
    // Rejects a body by its announced size before any of it is kept.
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced > Some(limits.body_bytes as u64) {
        discard(request.into_body(), limits).await;
        return Err(too_large());
    }
    let limited = Limited::new(request.into_body(), limits.body_bytes);
    let read = tokio::time::timeout(limits.patience, limited.collect()).await;
    let late = || {
        ServeError::SlowClient(format!(
            "The request body did not arrive within {} s",
            limits.patience.as_secs_f64()
        ))
    };
    let body = read.map_err(|_| late())?.map_err(|error| {
        match error.downcast_ref::<LengthLimitError>() {
            Some(_) => too_large(),
            None if is_timeout(&*error) => late(),
            None => ServeError::Invalid(
                "The connection ended inside the request body; send the request again".to_owned(),
            ),
        }
    })?;
    Ok(body.to_bytes())
}

/// Reads a body that is not needed, up to a few times the largest allowed one, so that the client receives
/// the answer: some clients drop an answer that arrives while they still send.
pub async fn discard(mut body: axum::body::Body, limits: &ServerLimits) {
    let mut left = limits.body_bytes.saturating_mul(4);
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(bytes) else {
                return;
            };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(limits.patience, read).await;
}

/// Whether an error is, or was caused by, a timeout.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<TimeoutError>() || error.source().is_some_and(is_timeout)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::http::types::CompletionRequest;

    fn problem(body: &str) -> (String, Option<String>) {
        let error = parse::<CompletionRequest>(body.as_bytes()).err();
        let error = error.map(|error| (error.to_string(), error.field()));
        error.unwrap_or_default()
    }

    #[test]
    fn errors_name_the_field_and_no_type_of_the_server() {
        for (body, field) in [
            (
                r#"{"prompt": "x", "max_tokens": "many"}"#,
                Some("max_tokens"),
            ),
            (r#"{"prompt": {"a": 1}}"#, Some("prompt")),
            (r#"{"max_tokens": 4}"#, Some("prompt")),
            (r#"{"prompt": "x", "temperature": []}"#, Some("temperature")),
            (r#"{"prompt": "x", "stop": 7}"#, Some("stop")),
            ("[1]", None),
            ("\"text\"", None),
            ("{", None),
        ] {
            let (message, found) = problem(body);
            assert_eq!(found.as_deref(), field, "{body}: {message}");
            for word in [
                "usize",
                "u32",
                "f32",
                "struct",
                "PromptInput",
                "untagged",
                "enum",
            ] {
                assert!(!message.contains(word), "{body}: {message}");
            }
        }
    }
}
