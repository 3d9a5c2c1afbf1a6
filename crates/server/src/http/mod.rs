//! HTTP: OpenAI's completions and chats, and endpoints about the server.

mod answer;
mod body;
mod chat;
mod choice;
mod completions;
mod djinn;
mod error;
mod generate;
mod info;
mod logprobs;
mod openapi;
mod prompts;
mod responses;
mod stream;
mod types;

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};

use crate::app::App;

pub use body::discard;
pub use error::HttpError;

/// Routes of all HTTP paths.
pub fn routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(info::healthz))
        .route("/readyz", get(info::readyz))
        .route("/metrics", get(info::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/capabilities", get(info::capabilities))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*name}", get(info::model))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .fallback(info::not_found)
        .method_not_allowed_fallback(info::method_not_allowed)
        .with_state(Arc::clone(app))
}

/// Routes of the address for operators: metrics and health checks without a key.
pub fn operator_routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(info::healthz))
        .route("/readyz", get(info::readyz))
        .route("/metrics", get(info::open_metrics))
        .fallback(info::not_found)
        .with_state(Arc::clone(app))
}
