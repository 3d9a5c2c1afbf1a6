//! HTTP: what OpenAI's clients speak, and what machines ask of a server.

mod chat;
mod choices;
mod completions;
mod djinn;
mod generate;
mod logprobs;
mod openapi;
mod reply;
mod stream;
mod types;

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Extension, Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower_http::timeout::TimeoutError;

use crate::{
    ServeError,
    app::{App, Caller},
};

pub use reply::Failed;

type Reply = Result<Response, Failed>;

/// Every path.
pub fn routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/capabilities", get(capabilities))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .fallback(nothing)
        .method_not_allowed_fallback(not_that_way)
        .with_state(Arc::clone(app))
}

/// The process is alive.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "`ok`: the process is alive")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Its models are there, and it does not go down.
#[utoipa::path(get, path = "/readyz", responses((status = 200, description = "`ready`: its models are there; 503 before that, and while it goes down")))]
async fn readyz(State(app): State<Arc<App>>) -> Response {
    match app.is_ready() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
    }
}

/// Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "OpenMetrics text")))]
async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(app.readings().await);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// What this server is and can do.
#[utoipa::path(get, path = "/v1/capabilities", responses((status = 200, description = "A JSON object: version, protocols, device, limits, who is asking")))]
async fn capabilities(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Json<Value> {
    let told = crate::grpc::capabilities(&app, &caller.owner.name);
    let limits = told.limits.unwrap_or_default();
    Json(json!({
        "version": told.version,
        "protocols": told.protocols,
        "node": told.node,
        "device": told.device,
        "device_detail": told.device_detail,
        "owner": told.owner,
        "durable": told.durable,
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

fn as_model(model: &djinn_wire::v1::Model) -> Value {
    let state = djinn_wire::v1::ModelState::try_from(model.state).unwrap_or_default();
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

/// Every model.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, description = "As OpenAI's, with `djinn`: state, family, routing, context")))]
async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let models = app.models.list().await;
    let data: Vec<Value> = models.iter().map(as_model).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One of them.
#[utoipa::path(get, path = "/v1/models/{name}", params(("name" = String, Path)),
    responses((status = 200, description = "One of them"), (status = 404, description = "None of that name")))]
async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Reply {
    Ok(Json(as_model(&app.models.describe(&name).await?)).into_response())
}

async fn nothing() -> Failed {
    Failed(ServeError::NotFound(
        "there is nothing here: /v1/models, /v1/completions, /v1/chat/completions, /openapi.json say more".to_owned(),
    ))
}

async fn not_that_way() -> Response {
    let told =
        json!({ "error": { "message": "not by this method", "type": "invalid_request_error" } });
    (StatusCode::METHOD_NOT_ALLOWED, Json(told)).into_response()
}

/// The body of a request, as long and as late as it may be.
async fn body(app: &App, request: axum::extract::Request) -> Result<Bytes, ServeError> {
    let limits = &app.config.limits;
    let too_large =
        || ServeError::TooLarge(format!("a request may have {} bytes", limits.body_bytes));
    // Who says so has not to be listened to first.
    let said = request.headers().get(header::CONTENT_LENGTH);
    let said = said.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if said > Some(limits.body_bytes as u64) {
        return Err(too_large());
    }
    let limited = Limited::new(request.into_body(), limits.body_bytes);
    let came = tokio::time::timeout(limits.patience, limited.collect()).await;
    let late = || ServeError::Timeout("the request did not come whole in time".to_owned());
    let came = came.map_err(|_| late())?;
    let came = came.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_large(),
        None if is_late(&*error) => late(),
        None => ServeError::Invalid("the request broke off".to_owned()),
    })?;
    Ok(came.to_bytes())
}

/// Whether an error is, or comes from, something that did not come in time.
fn is_late(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<TimeoutError>() || error.source().is_some_and(is_late)
}

/// A request as JSON.
async fn read<T: DeserializeOwned>(
    app: &App,
    request: axum::extract::Request,
) -> Result<T, ServeError> {
    let bytes = body(app, request).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        ServeError::Invalid(format!("the request is not as it should be: {error}"))
    })
}
