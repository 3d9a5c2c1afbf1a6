//! Errors in the JSON shape of OpenAI's API.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use djinn_wire::ErrorCode;
use serde_json::{Value, json};

use crate::{ServeError, context::current_request_id};

/// Result of an HTTP handler.
pub type HttpResult = Result<Response, HttpError>;

/// Error of an HTTP request.
pub struct HttpError(pub ServeError);

impl<E: Into<ServeError>> From<E> for HttpError {
    fn from(error: E) -> Self {
        HttpError(error.into())
    }
}

/// Error body: message, type, field of the request that caused the error, and machine-readable
/// code.
pub fn error_json(error: &ServeError) -> Value {
    let code = error.code();
    let class = match code {
        ErrorCode::Unauthenticated => "authentication_error",
        ErrorCode::Forbidden => "permission_error",
        ErrorCode::Limited => "rate_limit_error",
        ErrorCode::Internal | ErrorCode::Unavailable | ErrorCode::Timeout => "server_error",
        _ => "invalid_request_error",
    };
    // OpenAI's clients know these codes.
    let code = match code {
        _ if error.is_context_length() => "context_length_exceeded",
        ErrorCode::NotFound => "not_found",
        other => other.name(),
    };
    json!({ "error": {
        "message": error.public_message(),
        "type": class,
        "param": error.field(),
        "code": code,
        "request_id": current_request_id(),
    } })
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let code = self.0.code();
        let status =
            StatusCode::from_u16(self.0.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(error_json(&self.0))).into_response();
        if let Some(retry) = self.0.retry_after() {
            let seconds = retry.as_secs_f64().ceil() as u64;
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if code == ErrorCode::Unauthenticated {
            let scheme = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        // The middleware counts the error by its code.
        response.extensions_mut().insert(code);
        response
    }
}
