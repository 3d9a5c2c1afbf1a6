//! Errors in the shape that OpenAI's clients know.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{ServeError, error::Kind};

/// A request that did not get what it asked for.
pub struct Failed(pub ServeError);

impl<E: Into<ServeError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed(error.into())
    }
}

/// As it is written.
pub fn told(error: &ServeError) -> Value {
    let kind = error.kind();
    let class = match kind {
        Kind::Unauthenticated => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::Limited => "rate_limit_error",
        Kind::Internal | Kind::Unavailable | Kind::Timeout => "server_error",
        _ => "invalid_request_error",
    };
    let code = match kind {
        Kind::NotFound => "not_found",
        other => other.name(),
    };
    json!({ "error": { "message": error.to_string(), "type": class, "param": null, "code": code } })
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let kind = self.0.kind();
        let status =
            StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(told(&self.0))).into_response();
        if let ServeError::Rate { retry } = &self.0 {
            let seconds = retry.as_secs_f64().ceil() as u64;
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        if kind == Kind::Unauthenticated {
            let wants = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, wants);
        }
        response.extensions_mut().insert(kind);
        response
    }
}
