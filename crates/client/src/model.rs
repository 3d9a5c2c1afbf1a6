//! A model of a server.

use std::path::Path;

use djinn_wire::ErrorCode;
use djinn_wire::v1::{self, tokenize_request::Input};

use crate::{
    client::Client,
    create::{Create, chat},
    error::Error,
    session::{self, SessionHandle},
};

/// A model by its name, which the server loads when it is asked for something.
#[derive(Clone, Debug)]
pub struct ModelHandle {
    client: Client,
    name: String,
}

impl ModelHandle {
    pub(crate) fn new(client: Client, name: String) -> Self {
        ModelHandle { client, name }
    }

    /// Its name; empty for the server's first one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the server tells of it, once it is loaded.
    pub async fn info(&self) -> Result<v1::Model, Error> {
        let models = self.client.models().await?;
        let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
        // The first one stands for the empty name.
        let is_meant = |model: &v1::Model| self.name.is_empty() || model.name == self.name;
        models.into_iter().find(is_meant).ok_or_else(|| {
            let there = match names.is_empty() {
                true => "none".to_owned(),
                false => names.join(", "),
            };
            let text = format!("there is no model '{}' here, only {there}", self.name);
            Error::new(ErrorCode::NotFound, text)
        })
    }

    /// A session to begin.
    pub fn session(&self) -> Create {
        Create::new(self.client.clone(), self.name.clone())
    }

    /// The tokens of a prompt.
    pub async fn tokenize(&self, text: impl Into<String>) -> Result<Vec<u32>, Error> {
        self.tokens(Input::Text(text.into()), false).await
    }

    /// The tokens of what a session is told later: without one that begins a text.
    pub async fn tokenize_more(&self, text: impl Into<String>) -> Result<Vec<u32>, Error> {
        self.tokens(Input::Text(text.into()), true).await
    }

    /// The tokens of messages, each a role and what it says, up to where the answer begins.
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
        let answer = self.client.models_service().tokenize(asked).await?;
        Ok(answer.into_inner().tokens)
    }

    /// The text of tokens, with those that begin and end a text if they are wanted.
    pub async fn detokenize(&self, tokens: &[u32], special: bool) -> Result<String, Error> {
        Ok(self.words(tokens, special, false).await?.text)
    }

    /// The text of every token by itself.
    pub async fn pieces(&self, tokens: &[u32]) -> Result<Vec<String>, Error> {
        Ok(self.words(tokens, true, true).await?.pieces)
    }

    async fn words(
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
        let mut service = self.client.models_service();
        self.client.one(service.detokenize(asked)).await
    }

    /// Its hooks that a pattern matches, in the order of a pass: `*` is any text.
    pub async fn hooks(&self, pattern: impl Into<String>) -> Result<Vec<v1::Hook>, Error> {
        let asked = v1::HooksRequest {
            model: self.name.clone(),
            pattern: pattern.into(),
        };
        let mut service = self.client.white_box_service();
        Ok(self.client.one(service.hooks(asked)).await?.hooks)
    }

    /// Gives its memory back: by force also where sessions would be lost. Forgotten, it is known no more.
    pub async fn unload(&self, force: bool, forget: bool) -> Result<(), Error> {
        let asked = v1::UnloadRequest {
            name: self.name.clone(),
            force,
            forget,
        };
        let mut service = self.client.models_service();
        self.client.one(service.unload(asked)).await.map(drop)
    }

    /// A session that was saved, under a name of its own.
    pub async fn load(&self, saved: Vec<u8>) -> Result<SessionHandle, Error> {
        session::load(&self.client, &self.name, saved).await
    }

    /// The same from a file.
    pub async fn load_from(&self, path: &Path) -> Result<SessionHandle, Error> {
        let read = tokio::fs::read(path).await;
        self.load(read.map_err(|error| Error::file(path, &error))?)
            .await
    }
}
