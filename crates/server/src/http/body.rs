//! Request bodies: read up to a size and a time limit, then parsed as JSON.

use axum::{body::Bytes, extract::Request, http::header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tower_http::timeout::TimeoutError;

use crate::{ServeError, config::ServerLimits};

/// Reads a request's body as JSON.
pub async fn read_json<T: DeserializeOwned>(
    limits: &ServerLimits,
    request: Request,
) -> Result<T, ServeError> {
    let bytes = read(limits, request).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ServeError::Invalid(format!("Invalid request: {error}")))
}

async fn read(limits: &ServerLimits, request: Request) -> Result<Bytes, ServeError> {
    let too_large = || {
        ServeError::TooLarge(format!(
            "The request body exceeds the limit of {} bytes",
            limits.body_bytes
        ))
    };
    // Rejects a body by its announced size before any of it is read.
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced > Some(limits.body_bytes as u64) {
        return Err(too_large());
    }
    let limited = Limited::new(request.into_body(), limits.body_bytes);
    let read = tokio::time::timeout(limits.patience, limited.collect()).await;
    let late = || {
        ServeError::Timeout(format!(
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

/// Whether an error is, or was caused by, a timeout.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<TimeoutError>() || error.source().is_some_and(is_timeout)
}
