//! The HTTP interface, described for machines: made from the types that read requests.

use axum::Json;
use utoipa::OpenApi;

use super::{chat, completions};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Djinn",
        description = "OpenAI's completions and chats over models of any size, with sessions that are kept, \
                       steering and captures."
    ),
    paths(completions::completions, chat::chat)
)]
struct Described;

/// The document.
pub async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(Described::openapi())
}
