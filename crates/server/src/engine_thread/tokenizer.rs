//! Tokenizer and chat template of a loaded model, usable without its engine.

use std::sync::Arc;

use djinn_model::{ChatTemplate, Generation, Model, Tokenizer};
use tokio::task::block_in_place;

use crate::ServeError;

/// Tokenizer, chat template and recommended sampling of a model.
#[derive(Clone)]
pub struct ChatTokenizer {
    model: String,
    /// Tokenizer, if the model has one.
    pub text: Option<Arc<Tokenizer>>,
    /// Chat template, if the model has one.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Sampling that the model recommends.
    pub generation: Generation,
}

impl ChatTokenizer {
    /// Takes the tokenizer and the chat template of a model.
    pub fn of(model: &Model) -> Self {
        ChatTokenizer {
            model: model.name.clone(),
            text: model.tokenizer.clone(),
            chat: model.chat.clone(),
            generation: model.generation.clone(),
        }
    }

    /// Returns the tokenizer, or an error that tells the client to send token ids.
    pub fn tokenizer(&self) -> Result<&Tokenizer, ServeError> {
        self.text.as_deref().ok_or_else(|| {
            ServeError::Invalid(format!(
                "Model {} has no tokenizer: send the prompt as token ids",
                self.model
            ))
        })
    }

    /// Encodes a prompt, with the token that begins a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ServeError> {
        let tokenizer = self.tokenizer()?;
        // A long text takes a while, so the runtime moves other tasks off this thread.
        let tokens = block_in_place(|| tokenizer.encode(text))?;
        match (tokens.is_empty(), tokenizer.bos()) {
            (true, Some(bos)) => Ok(vec![bos]),
            _ => Ok(tokens),
        }
    }

    /// Encodes text that continues a session, without special tokens.
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, ServeError> {
        let tokenizer = self.tokenizer()?;
        Ok(block_in_place(|| tokenizer.encode_plain(text))?)
    }

    /// Encodes chat messages with the model's template, up to the beginning of the answer.
    pub fn encode_chat(
        &self,
        messages: &[serde_json::Value],
        variables: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Vec<u32>, ServeError> {
        let template = self.chat.as_ref().ok_or_else(|| {
            ServeError::Invalid(format!(
                "Model {} has no chat template: send a prompt to /v1/completions instead",
                self.model
            ))
        })?;
        let text = block_in_place(|| template.render_with(messages, true, variables))?;
        // The template writes its own special tokens.
        self.encode_more(&text)
    }

    /// Decodes one token as it reads after other tokens, including a leading space.
    pub fn piece(&self, token: u32) -> String {
        let text = self.text.as_ref();
        let after_itself = text.and_then(|text| text.decoder(&[token], false).push(token));
        after_itself
            .or_else(|| text?.decode(&[token], false).ok())
            .unwrap_or_default()
    }
}
