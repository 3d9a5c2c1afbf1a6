//! What every request passes first: whose it is, whether there were too many, and a line in the log. No
//! line has a prompt, a key or a query.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use tower_http::timeout::TimeoutBody;
use tracing::{Instrument, field};

use crate::{
    ServeError,
    app::{App, Caller},
    error::Kind,
    http::Failed,
    traces,
};

/// Paths that are for everybody: whoever looks after processes has no key.
const OPEN: &[&str] = &["/healthz", "/readyz"];
/// The same over gRPC.
const OPEN_SERVICE: &str = "/grpc.health.v1.Health/";

/// Lets a request in, or does not.
pub async fn front(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path = request.uri().path().to_owned();
    let is_grpc = is_grpc(request.headers());
    app.metrics.request(method(&path, is_grpc));
    let caller = match OPEN.contains(&path.as_str()) || path.starts_with(OPEN_SERVICE) {
        true => None,
        false => match admit(&app, request.headers()) {
            Ok(caller) => Some(caller),
            Err(error) => return refuse(&app, error, &path, is_grpc),
        },
    };
    let owner = caller
        .as_ref()
        .map(|caller| caller.owner.name.clone())
        .unwrap_or_default();
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    let span =
        tracing::info_span!("request", path = %path.escape_debug(), owner, outcome = field::Empty);
    traces::adopt(&span, request.headers());
    // What is on its way keeps coming, or the request is over.
    let patience = app.config.limits.patience;
    let request = match path.ends_with("/Push") {
        // It watches its parts by itself.
        true => request,
        false => request.map(|body| Body::new(TimeoutBody::new(patience, body))),
    };
    let response = next.run(request).instrument(span.clone()).await;
    let kind = failed(&response);
    span.record("outcome", kind.map_or("ok", Kind::name));
    if let Some(kind) = kind {
        app.metrics.error(kind);
    }
    let (ms, kind) = (
        started.elapsed().as_millis() as u64,
        kind.map_or("ok", Kind::name),
    );
    tracing::debug!(
        path = path.escape_debug().to_string(),
        owner,
        outcome = kind,
        ms,
        "request"
    );
    response
}

fn admit(app: &App, headers: &HeaderMap) -> Result<Caller, ServeError> {
    let key = headers
        .get(header::AUTHORIZATION)
        .map(axum::http::HeaderValue::as_bytes);
    let owner = app.keys.owner(key)?;
    let permit = app.keys.admit(&owner)?;
    Ok(Caller::new(owner, permit))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(axum::http::HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

fn refuse(app: &App, error: ServeError, path: &str, is_grpc: bool) -> Response {
    let kind = error.kind();
    app.metrics.error(kind);
    tracing::warn!(
        path = path.escape_debug().to_string(),
        why = kind.name(),
        "refused"
    );
    match is_grpc {
        true => tonic::Status::from(error).into_http::<Body>(),
        false => Failed(error).into_response(),
    }
}

/// What went wrong with an answer, as far as its head says.
fn failed(response: &Response) -> Option<Kind> {
    if let Some(kind) = response.extensions().get::<Kind>() {
        return Some(*kind);
    }
    let code = response.headers().get("grpc-status")?;
    let code = tonic::Code::from_bytes(code.as_bytes());
    let kinds = [
        Kind::Invalid,
        Kind::Unsupported,
        Kind::Unauthenticated,
        Kind::Forbidden,
        Kind::NotFound,
        Kind::Conflict,
        Kind::TooLarge,
        Kind::Limited,
        Kind::Timeout,
        Kind::Unavailable,
    ];
    match code {
        tonic::Code::Ok => None,
        code => Some(
            kinds
                .into_iter()
                .find(|kind| kind.code() == code)
                .unwrap_or(Kind::Internal),
        ),
    }
}

/// What metrics call a request: there are only so many names, whatever is asked.
fn method(path: &str, is_grpc: bool) -> &'static str {
    let last = path.rsplit('/').next().unwrap_or_default();
    if is_grpc {
        let methods = [
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
        return methods
            .into_iter()
            .find(|name| *name == last)
            .unwrap_or("grpc");
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
