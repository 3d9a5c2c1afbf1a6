//! Middleware of every request: authentication, rate limits, body timeout, metrics, log and trace. No log
//! line and no trace contains a prompt, a key or a query string.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use djinn_wire::ErrorCode;
use tower_http::timeout::TimeoutBody;
use tracing::{Instrument, field};

use crate::{ServeError, app::App, auth::Caller, http::HttpError, traces};

/// Paths that need no key, because process managers send health checks without one.
const OPEN_PATHS: &[&str] = &["/healthz", "/readyz"];
/// gRPC service that needs no key.
const OPEN_SERVICE: &str = "/grpc.health.v1.Health/";

/// Authenticates and admits a request, runs its handler, and records the outcome.
pub async fn handle(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path = request.uri().path().to_owned();
    let is_grpc = is_grpc(request.headers());
    app.metrics.request(method_label(&path, is_grpc));
    let mut owner = String::new();
    if !OPEN_PATHS.contains(&path.as_str()) && !path.starts_with(OPEN_SERVICE) {
        match admit(&app, request.headers()) {
            Ok(caller) => {
                owner.clone_from(&caller.owner.name);
                request.extensions_mut().insert(caller);
            }
            Err(error) => return reject(&app, error, &path, is_grpc),
        }
    }
    let span =
        tracing::info_span!("request", path = %path.escape_debug(), owner, outcome = field::Empty);
    traces::adopt(&span, request.headers());
    let request = match path.ends_with("/Push") {
        // A push may be slow, so its handler has a timeout for each part instead.
        true => request,
        false => {
            let patience = app.config.limits.patience;
            request.map(|body| Body::new(TimeoutBody::new(patience, body)))
        }
    };
    let response = next.run(request).instrument(span.clone()).await;
    let code = error_code(&response);
    let outcome = code.map_or("ok", ErrorCode::name);
    span.record("outcome", outcome);
    if let Some(code) = code {
        app.metrics.error(code);
    }
    let (path, ms) = (
        path.escape_debug().to_string(),
        started.elapsed().as_millis() as u64,
    );
    tracing::debug!(path, owner, outcome, ms, "request");
    response
}

fn admit(app: &App, headers: &HeaderMap) -> Result<Caller, ServeError> {
    let key = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    let owner = app.keys.authenticate(key)?;
    let permit = app.keys.admit(&owner)?;
    Ok(Caller::new(owner, permit))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

fn reject(app: &App, error: ServeError, path: &str, is_grpc: bool) -> Response {
    let code = error.code();
    app.metrics.error(code);
    let path = path.escape_debug().to_string();
    tracing::warn!(path, code = code.name(), "request rejected");
    match is_grpc {
        true => tonic::Status::from(error).into_http::<Body>(),
        false => HttpError(error).into_response(),
    }
}

/// Error code of a response, as its headers give it.
fn error_code(response: &Response) -> Option<ErrorCode> {
    if let Some(code) = response.extensions().get::<ErrorCode>() {
        return Some(*code);
    }
    let status = response.headers().get("grpc-status")?;
    match tonic::Code::from_bytes(status.as_bytes()) {
        tonic::Code::Ok => None,
        code => Some(ErrorCode::from_grpc(code)),
    }
}

/// Label of a request in metrics. The set of labels is fixed and does not depend on the paths
/// that clients request.
fn method_label(path: &str, is_grpc: bool) -> &'static str {
    const GRPC_METHODS: [&str; 26] = [
        "Register",
        "List",
        "Plan",
        "Unload",
        "Offer",
        "Push",
        "Tokenize",
        "Detokenize",
        "Create",
        "Generate",
        "Follow",
        "Signal",
        "Fork",
        "Get",
        "Save",
        "Load",
        "Delete",
        "Hooks",
        "Activation",
        "Resume",
        "SetBreakpoints",
        "Branch",
        "BranchBack",
        "Recall",
        "Capabilities",
        "Watch",
    ];
    if is_grpc {
        let last = path.rsplit('/').next().unwrap_or_default();
        let known = GRPC_METHODS.into_iter().find(|name| *name == last);
        return known.unwrap_or("grpc");
    }
    match path {
        "/v1/completions" => "completions",
        "/v1/chat/completions" => "chat",
        "/metrics" => "metrics",
        "/healthz" | "/readyz" => "health",
        path if path.starts_with("/v1/models") => "models",
        _ => "other",
    }
}
