//! OpenAPI document of the HTTP interface, generated from the request types.

use axum::Json;
use utoipa::OpenApi;

use super::{chat, completions, info};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Djinn",
        description = "OpenAI's completions and chats, with kept sessions, steering and captures, for models \
                       larger than device memory."
    ),
    paths(
        completions::completions,
        chat::chat,
        info::models,
        info::model,
        info::capabilities,
        info::healthz,
        info::readyz,
        info::metrics
    )
)]
struct ApiDocument;

/// Returns the document.
pub async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(ApiDocument::openapi())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fmt::Write, fs, path::Path};

    use serde_json::{Value, json};
    use utoipa::OpenApi;

    use super::ApiDocument;

    /// Type of a field in readable form.
    fn kind(schema: &Value) -> String {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap();
            return format!("[{name}](#{})", name.to_lowercase());
        }
        for many in ["oneOf", "anyOf", "allOf"] {
            if let Some(all) = schema[many].as_array() {
                let all: Vec<String> = all.iter().map(kind).filter(|kind| kind != "null").collect();
                return all.join(" or ");
            }
        }
        match &schema["type"] {
            Value::String(kind) if kind == "array" => {
                format!("list of {}", self::kind(&schema["items"]))
            }
            Value::String(kind) => kind.clone(),
            Value::Array(kinds) => {
                let kinds = kinds
                    .iter()
                    .filter_map(Value::as_str)
                    .filter(|kind| *kind != "null");
                let kinds: Vec<&str> = kinds.collect();
                match kinds[..] {
                    ["array"] => format!("list of {}", kind(&schema["items"])),
                    _ => kinds.join(" or "),
                }
            }
            _ => "anything".to_owned(),
        }
    }

    fn fields(text: &mut String, schema: &Value) {
        for part in schema["allOf"].as_array().into_iter().flatten() {
            match part["$ref"].as_str() {
                Some(name) => {
                    writeln!(
                        text,
                        "Contains all fields of {}.\n",
                        kind(&json!({ "$ref": name }))
                    )
                    .unwrap();
                }
                None => fields(text, part),
            }
        }
        let Some(all) = schema["properties"].as_object() else {
            return;
        };
        text.push_str("| Field | Type | Description |\n|---|---|---|\n");
        for (name, field) in all {
            let about = field["description"]
                .as_str()
                .unwrap_or_default()
                .replace('\n', " ");
            writeln!(text, "| `{name}` | {} | {about} |", kind(field)).unwrap();
        }
        text.push('\n');
    }

    #[test]
    fn the_http_reference_is_up_to_date() {
        let document = serde_json::to_value(ApiDocument::openapi()).unwrap();
        let mut text =
            "# HTTP\n\nGenerated from the document that a server returns at `/openapi.json`.\n\n"
                .to_owned();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, call) in methods.as_object().unwrap() {
                let about = call["summary"]
                    .as_str()
                    .or(call["description"].as_str())
                    .unwrap_or_default();
                let body = &call["requestBody"]["content"]["application/json"]["schema"];
                writeln!(text, "## {} {path}\n\n{about}\n", method.to_uppercase()).unwrap();
                if !body.is_null() {
                    writeln!(text, "Request body: {}.\n", kind(body)).unwrap();
                }
                for (status, answer) in call["responses"].as_object().unwrap() {
                    writeln!(
                        text,
                        "- {status}: {}",
                        answer["description"].as_str().unwrap()
                    )
                    .unwrap();
                }
                text.push('\n');
            }
        }
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let about = schema["description"].as_str().unwrap_or_default();
            writeln!(text, "## {name}\n\n{about}\n").unwrap();
            fields(&mut text, schema);
            if schema["properties"].is_null() && schema["allOf"].is_null() {
                writeln!(text, "{}\n", kind(schema)).unwrap();
            }
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/http.md");
        let text = text.trim_end().to_owned() + "\n";
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "docs/reference/http.md is out of date: run the tests with UPDATE_REFERENCE=1"
        );
    }
}
