//! Endpoints about the server: health, metrics, capabilities and models.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Extension, Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use djinn_wire::v1;
use serde_json::{Value, json};

use super::error::{HttpError, HttpResult};
use crate::{ServeError, app::App, auth::Caller};

/// Reports that the process is alive.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "`ok`: the process is alive")))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Reports whether the server accepts requests.
#[utoipa::path(get, path = "/readyz", responses((status = 200, description = "`ready`: the configured models are loaded. 503 before that, and during shutdown")))]
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    match app.is_ready() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
    }
}

/// Returns metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "Metrics in the OpenMetrics text format")))]
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(app.readings().await);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Returns the server's version, device and limits.
#[utoipa::path(get, path = "/v1/capabilities", responses((status = 200, description = "JSON object with version, protocols, device, limits, and the owner of the API key")))]
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
#[utoipa::path(get, path = "/v1/models", responses((status = 200, description = "List in OpenAI's format; each model has a `djinn` object with state, family, routing and context")))]
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let models = app.models.list().await;
    let data: Vec<Value> = models.iter().map(model_json).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// Returns one model.
#[utoipa::path(get, path = "/v1/models/{name}", params(("name" = String, Path)),
    responses((status = 200, description = "The model, as in the list"), (status = 404, description = "No model has this name")))]
pub async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> HttpResult {
    Ok(Json(model_json(&app.models.describe(&name).await?)).into_response())
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
