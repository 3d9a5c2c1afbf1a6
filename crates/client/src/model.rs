//! Handle of a model on a server.

use std::path::Path;

use djinn_wire::ErrorCode;
use djinn_wire::v1::{self, tokenize_request::Input};

use crate::{
    connection::GrpcConnection,
    create::Create,
    error::Error,
    session::{self, SessionHandle},
    turn_setup::chat,
};

/// Handle of a model by its name. The server loads the model on the first request.
#[derive(Clone, Debug)]
pub struct ModelHandle {
    connection: GrpcConnection,
    name: String,
}

impl ModelHandle {
    pub(crate) fn new(connection: GrpcConnection, name: String) -> Self {
        ModelHandle { connection, name }
    }

    /// Name of the model; empty for the server's default model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Describes the model.
    pub async fn info(&self) -> Result<v1::Model, Error> {
        let models = self.listed().await?;
        let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
        // The server lists its default model first.
        let is_meant = |model: &v1::Model| self.name.is_empty() || model.name == self.name;
        models.into_iter().find(is_meant).ok_or_else(|| {
            let there = match names.is_empty() {
                true => "none".to_owned(),
                false => names.join(", "),
            };
            let text = format!(
                "No model '{}' on this server; registered models: {there}",
                self.name
            );
            Error::new(ErrorCode::NotFound, text)
        })
    }

    async fn listed(&self) -> Result<Vec<v1::Model>, Error> {
        let mut service = self.connection.models_service();
        let listed = service.list(v1::ListModelsRequest {});
        Ok(self.connection.one(listed).await?.models)
    }

    /// Sets up a new session; [`Create::open`] opens it.
    pub fn session(&self) -> Create {
        Create::new(self.connection.clone(), self.name.clone())
    }

    /// Tokens of a prompt, with the token that begins a text.
    pub async fn tokenize(&self, text: impl Into<String>) -> Result<Vec<u32>, Error> {
        self.tokens(Input::Text(text.into()), false).await
    }

    /// Tokens of text that continues a session, without the token that begins a text.
    pub async fn tokenize_more(&self, text: impl Into<String>) -> Result<Vec<u32>, Error> {
        self.tokens(Input::Text(text.into()), true).await
    }

    /// Tokens of a chat, up to the beginning of the answer. Each message is a role and a content.
    pub async fn tokenize_chat<R: Into<String>, C: Into<String>>(
        &self,
        messages: impl IntoIterator<Item = (R, C)>,
    ) -> Result<Vec<u32>, Error> {
        self.tokens(Input::Chat(chat(messages)), false).await
    }

    async fn tokens(&self, input: Input, plain: bool) -> Result<Vec<u32>, Error> {
        let asked = v1::TokenizeRequest {
            model: self.name.clone(),
            input: Some(input),
            plain,
        };
        let answer = self.connection.models_service().tokenize(asked).await?;
        Ok(answer.into_inner().tokens)
    }

    /// Text of tokens; `special` includes special tokens.
    pub async fn detokenize(&self, tokens: &[u32], special: bool) -> Result<String, Error> {
        Ok(self.detokenized(tokens, special, false).await?.text)
    }

    /// Text of each token on its own.
    pub async fn pieces(&self, tokens: &[u32]) -> Result<Vec<String>, Error> {
        Ok(self.detokenized(tokens, true, true).await?.pieces)
    }

    async fn detokenized(
        &self,
        tokens: &[u32],
        special: bool,
        each: bool,
    ) -> Result<v1::DetokenizeReply, Error> {
        let asked = v1::DetokenizeRequest {
            model: self.name.clone(),
            tokens: tokens.to_vec(),
            special,
            each,
        };
        let mut service = self.connection.models_service();
        self.connection.one(service.detokenize(asked)).await
    }

    /// Hooks that match a pattern, in the order of a pass; `*` matches any text.
    pub async fn hooks(&self, pattern: impl Into<String>) -> Result<Vec<v1::Hook>, Error> {
        let asked = v1::HooksRequest {
            model: self.name.clone(),
            pattern: pattern.into(),
        };
        let mut service = self.connection.white_box_service();
        Ok(self.connection.one(service.hooks(asked)).await?.hooks)
    }

    /// Unloads the model. `force` unloads it even if open sessions are lost; `forget` also removes it from
    /// the server's list.
    pub async fn unload(&self, force: bool, forget: bool) -> Result<(), Error> {
        let asked = v1::UnloadRequest {
            name: self.name.clone(),
            force,
            forget,
        };
        let mut service = self.connection.models_service();
        self.connection.one(service.unload(asked)).await.map(drop)
    }

    /// Opens a session from saved bytes.
    pub async fn load(&self, saved: Vec<u8>) -> Result<SessionHandle, Error> {
        session::load(&self.connection, &self.name, saved).await
    }

    /// Opens a session from a saved file.
    pub async fn load_from(&self, path: &Path) -> Result<SessionHandle, Error> {
        let read = tokio::fs::read(path).await;
        self.load(read.map_err(|error| Error::file(path, &error))?)
            .await
    }
}
