//! Endpoints about the server: health, metrics, capabilities and models.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Extension, Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use djinn_wire::v1;
use serde_json::{Value, json};

use super::{
    error::{HttpError, HttpResult},
    responses::{CapabilitiesAnswer, ErrorAnswer, ModelAnswer, ModelList},
};
use crate::{ServeError, app::App, auth::Caller, metrics::MetricsFormat};

/// Reports that the process is alive.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "`ok`: the process is alive")))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Reports whether the server accepts requests.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "`ready`: the configured models are loaded and their engines respond"),
    (status = 503, description = "`not ready`, with the reason: models are being loaded, a model failed, an engine does not respond, or the server is shutting down")))]
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    match app.not_ready() {
        None => "ready\n".into_response(),
        Some(reason) => {
            let text = format!("not ready: {reason}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// Returns metrics for Prometheus. On the server's main address they need an admin key.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, content_type = "text/plain", description = "Metrics in the text format of Prometheus, or of OpenMetrics if the header `accept` asks for it"),
    (status = 403, body = ErrorAnswer, description = "The key is not an admin's")))]
pub async fn metrics(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> HttpResult {
    caller.check_admin()?;
    Ok(open_metrics(State(app), headers).await)
}

/// Returns metrics to everyone who reaches the address of `--metrics-addr`.
pub async fn open_metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let format = MetricsFormat::accepted(accept);
    let is_ready = app.not_ready().is_none();
    let text = app.metrics.text(app.readings(), is_ready, format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

/// Returns the server's version, device and limits.
#[utoipa::path(get, path = "/v1/capabilities", responses((status = 200, body = CapabilitiesAnswer, description = "JSON object with version, protocols, device, limits, and the owner of the API key")))]
pub async fn capabilities(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Json<Value> {
    let reply = crate::capabilities::capabilities(&app, &caller.owner.name);
    let limits = reply.limits.unwrap_or_default();
    Json(json!({
        "version": reply.version,
        "protocols": reply.protocols,
        "node": reply.node,
        "device": reply.device,
        "device_detail": reply.device_detail,
        "owner": reply.owner,
        "durable": reply.durable,
        "limits": {
            "body_bytes": app.config.limits.body_bytes,
            "message_bytes": limits.message_bytes,
            "upload_bytes": limits.upload_bytes,
            "capture_bytes": limits.capture_bytes,
            "batch": limits.branches,
            "lease_s": limits.lease_s,
        },
        "endpoints": ["/v1/models", "/v1/completions", "/v1/chat/completions"],
        "djinn": ["session", "keep", "lease_s", "edits", "steer", "captures"],
    }))
}

fn model_json(model: &v1::Model) -> Value {
    let state = v1::ModelState::try_from(model.state).unwrap_or_default();
    let state = state
        .as_str_name()
        .trim_start_matches("MODEL_STATE_")
        .to_ascii_lowercase();
    json!({
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "djinn",
        "djinn": {
            "state": state,
            "family": model.family,
            "routing": model.routing,
            "context": model.limits.map(|limits| limits.context),
            "chat": model.has_chat,
            "sessions": model.sessions,
        },
    })
}

/// Lists all models.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = ModelList, description = "List in OpenAI's format; each model has a `djinn` object with state, family, routing and context")))]
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let models = app.models.list(false);
    let data: Vec<Value> = models.iter().map(model_json).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// Returns one model.
#[utoipa::path(get, path = "/v1/models/{name}", params(("name" = String, Path)),
    responses((status = 200, body = ModelAnswer, description = "The model, as in the list"), (status = 404, body = ErrorAnswer, description = "No model has this name")))]
pub async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> HttpResult {
    Ok(Json(model_json(&app.models.describe(&name, false)?)).into_response())
}

/// Answers requests to unknown paths.
pub async fn not_found() -> HttpError {
    HttpError(ServeError::NotFound(
        "No such path; see /openapi.json for all paths of this server".to_owned(),
    ))
}

/// Answers requests with a method that the path does not support.
pub async fn method_not_allowed() -> Response {
    let body = json!({ "error": {
        "message": "Method not allowed; see /openapi.json for the methods of each path",
        "type": "invalid_request_error",
        "param": null,
        "code": "method_not_allowed",
    } });
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}
