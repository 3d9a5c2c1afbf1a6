//! Middleware of every request: id, origin, authentication, rate limits, time limits, metrics, access log
//! and trace. No log line and no trace contains a prompt, a key or a query string.
//!
//! The threads that serve connections run only this code and the health checks. Everything else runs on
//! the server's other runtime, so that no request can silence a health check.

mod answer_body;
mod method;
mod request_id;

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use djinn_wire::ErrorCode;
use tower_http::timeout::TimeoutBody;
use tracing::{Instrument, field};

use self::{
    method::{is_health, method_label},
    request_id::REQUEST_ID,
};
use crate::{
    ServeError,
    app::App,
    auth::Caller,
    context::{RequestContext, in_request},
    guard::{for_log, is_grpc},
    http::{HttpError, discard},
    net::ConnectionInfo,
    traces,
};

/// Admits a request, runs its handler, and records the outcome when the answer has been sent.
pub async fn handle(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if is_health(&path) {
        // Health checks run here and write no line to the access log.
        app.metrics.request_started();
        return next.run(request).await;
    }
    let id = request_id::of(request.headers());
    let peer = ConnectionInfo::of(&request).and_then(|connection| connection.peer);
    let limits = &app.config.limits;
    let context = RequestContext::new(id, peer, limits.deadline, app.closing.clone());
    let is_grpc = is_grpc(request.headers());
    let exchange = Exchange {
        app: Arc::clone(&app),
        label: method_label(&path, is_grpc),
        method: request.method().clone(),
        path,
        is_grpc,
        owner: String::new(),
        context,
        cors: app.origins.cors_headers(request.headers()),
    };
    app.metrics.request_started();
    exchange.serve(request, next).await
}

/// One request and its answer.
struct Exchange {
    app: Arc<App>,
    context: Arc<RequestContext>,
    label: &'static str,
    method: Method,
    path: String,
    is_grpc: bool,
    owner: String,
    cors: Vec<(header::HeaderName, HeaderValue)>,
}

impl Exchange {
    async fn serve(mut self, mut request: Request, next: Next) -> Response {
        if self.method == Method::OPTIONS && !self.cors.is_empty() {
            return self.with_headers(StatusCode::NO_CONTENT.into_response());
        }
        let caller = match self.admit(&request) {
            Ok(caller) => caller,
            Err(error) => return self.reject(error, request).await,
        };
        self.owner = caller.name().to_owned();
        request.extensions_mut().insert(caller);
        let span = tracing::info_span!(
            "request",
            id = self.context.id,
            path = for_log(&self.path),
            owner = self.owner,
            outcome = field::Empty
        );
        traces::adopt(&span, request.headers());
        let limits = &self.app.config.limits;
        let request = match self.path.ends_with("/Push") {
            // A push may be slow, so its handler has a timeout for each part instead.
            true => request,
            false => {
                let patience = limits.patience;
                request.map(|body| Body::new(TimeoutBody::new(patience, body)))
            }
        };
        let (id, is_grpc) = (self.context.id.clone(), self.is_grpc);
        let deadline = self.context.deadline;
        let run = async move {
            match tokio::time::timeout_at(deadline.into(), next.run(request)).await {
                Ok(response) => response,
                Err(_) => as_response(
                    ServeError::Timeout("The request reached the server's time limit".to_owned()),
                    is_grpc,
                ),
            }
        };
        let work = self.app.work.clone();
        let handled =
            work.spawn(async move { in_request(&id, run).await }.instrument(span.clone()));
        // A client that leaves drops this future, and the handler with it.
        let response = AbortOnDrop(handled).await;
        let response = response.unwrap_or_else(|| {
            let error = "The request made the server fail; its log has the details";
            as_response(ServeError::Internal(error.to_owned()), self.is_grpc)
        });
        self.finish(response, &span)
    }

    /// Checks origin, content type, connection, key and rate of a request.
    fn admit(&self, request: &Request) -> Result<Caller, ServeError> {
        let connection = ConnectionInfo::of(request);
        if connection.is_some_and(|connection| connection.peer.is_some()) {
            self.app.origins.check(request)?;
        }
        if connection.is_some_and(|connection| connection.is_reserved) {
            return Err(ServeError::unavailable(
                "The server has reached its limit of connections; retry later",
            ));
        }
        let key = request.headers().get(header::AUTHORIZATION);
        let owner = self.app.keys.authenticate(key.map(HeaderValue::as_bytes))?;
        if let Some(connection) = connection {
            connection.set_authenticated();
        }
        self.app.origins.check_json(request)?;
        let permit = self.app.keys.admit(&owner)?;
        Ok(Caller::new(owner, permit, Arc::clone(&self.context)))
    }

    /// Answers a request that is not admitted. The log gets a line at a bounded rate.
    async fn reject(self, error: ServeError, request: Request) -> Response {
        let code = error.code();
        if let Some(suppressed) = self.app.rejections.allow() {
            let peer = self.context.peer.map(|peer| peer.to_string());
            tracing::warn!(
                id = self.context.id,
                peer,
                path = for_log(&self.path),
                code = code.name(),
                suppressed,
                "request rejected"
            );
        }
        // Some clients drop an answer that arrives while they still send their request.
        discard(request.into_body(), &self.app.config.limits).await;
        let id = self.context.id.clone();
        let is_grpc = self.is_grpc;
        let response = in_request(&id, async move { as_response(error, is_grpc) }).await;
        let status = response.status().as_u16();
        let metrics = &self.app.metrics;
        metrics.error(code);
        metrics.request_ended(
            self.label,
            status,
            code.name(),
            self.context.started.elapsed(),
        );
        self.with_headers(response)
    }

    /// Adds the id and the headers for browsers to an answer.
    fn with_headers(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&self.context.id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.extend(self.cors.iter().cloned());
        response
    }

    /// Follows the answer to its end, and then counts and logs the request.
    fn finish(self, response: Response, span: &tracing::Span) -> Response {
        let response = self.with_headers(response);
        let status = response.status().as_u16();
        let code = error_code(&response);
        let (app, id) = (Arc::clone(&self.app), Arc::from(self.context.id.as_str()));
        let logged = span.clone();
        let at_end = Box::new(move || self.log(status, code, &logged));
        let _entered = span.enter();
        answer_body::follow(&app.work, &id, response, at_end)
    }

    /// Counts a request whose answer has been sent, and writes its line to the access log.
    fn log(&self, status: u16, code: Option<ErrorCode>, span: &tracing::Span) {
        let code = self.context.failure().or(code);
        let outcome = code.map_or("ok", ErrorCode::name);
        let took = Instant::now() - self.context.started;
        span.record("outcome", outcome);
        if let Some(code) = code {
            self.app.metrics.error(code);
        }
        let metrics = &self.app.metrics;
        metrics.request_ended(self.label, status, outcome, took);
        let figures = self.context.figures();
        metrics.add_prompt_tokens(figures.prompt_tokens, figures.cached_tokens);
        tracing::info!(
            parent: None,
            id = self.context.id,
            owner = self.owner,
            peer = self.context.peer.map(|peer| peer.to_string()),
            method = self.method.as_str(),
            path = for_log(&self.path),
            model = self.context.model(),
            status,
            outcome,
            tokens_in = figures.prompt_tokens,
            tokens_out = figures.generated_tokens,
            tokens_cached = figures.cached_tokens,
            first_token_ms = figures.first_token.map(|time| time.as_secs_f64() * 1e3),
            ms = took.as_secs_f64() * 1e3,
            "access"
        );
    }
}

/// Task that ends when its handle is dropped.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Option<T>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        let ended = std::pin::Pin::new(&mut self.0).poll(context);
        ended.map(|ended| match ended {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!(%error, "a request handler ended without an answer");
                None
            }
        })
    }
}

fn as_response(error: ServeError, is_grpc: bool) -> Response {
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
