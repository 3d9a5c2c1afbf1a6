//! Tokenizer and chat template of a loaded model, usable without its engine.

use std::sync::Arc;

use djinn_model::{ChatTemplate, Generation, Model, Tokenizer};

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
    /// Bytes of the longest token.
    longest_token: usize,
    /// Tokens of the longest session.
    context: usize,
}

impl ChatTokenizer {
    /// Takes the tokenizer and the chat template of a model whose sessions have up to `context` tokens.
    pub fn of(model: &Model, context: usize) -> Self {
        let longest = |text: &Arc<Tokenizer>| {
            let ids = 0..u32::try_from(text.vocab()).unwrap_or(u32::MAX);
            let lengths = ids.filter_map(|id| text.token(id)).map(|token| token.len());
            lengths.max().unwrap_or(1)
        };
        ChatTokenizer {
            model: model.name.clone(),
            text: model.tokenizer.clone(),
            chat: model.chat.clone(),
            generation: model.generation.clone(),
            longest_token: model.tokenizer.as_ref().map_or(1, longest),
            context,
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

    /// Refuses a text that cannot fit the context, because even the longest tokens would be too many. This
    /// check costs nothing, so it comes before the text is tokenized.
    pub fn check_text_bytes(&self, bytes: usize) -> Result<(), ServeError> {
        let least = bytes / self.longest_token.max(1);
        match least > self.context {
            true => Err(ServeError::ContextLength(format!(
                "The prompt has {bytes} bytes, which are at least {least} tokens, but the context is {}; \
                 shorten the prompt",
                self.context
            ))),
            false => Ok(()),
        }
    }

    /// Refuses more tokens than the context has.
    pub fn check_token_count(&self, tokens: usize) -> Result<(), ServeError> {
        match tokens > self.context {
            true => Err(ServeError::ContextLength(format!(
                "The prompt has {tokens} tokens, but the context is {}; shorten the prompt",
                self.context
            ))),
            false => Ok(()),
        }
    }

    /// Encodes a prompt, with the token that begins a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ServeError> {
        self.check_text_bytes(text.len())?;
        let tokenizer = self.tokenizer()?;
        let tokens = tokenizer.encode(text)?;
        match (tokens.is_empty(), tokenizer.bos()) {
            (true, Some(bos)) => Ok(vec![bos]),
            _ => Ok(tokens),
        }
    }

    /// Encodes text that continues a session, without special tokens.
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, ServeError> {
        self.check_text_bytes(text.len())?;
        Ok(self.tokenizer()?.encode_plain(text)?)
    }

    /// Encodes chat messages with the model's template, up to the beginning of the answer.
    pub fn encode_chat(
        &self,
        messages: &[serde_json::Value],
        variables: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Vec<u32>, ServeError> {
        self.check_text_bytes(messages.iter().map(content_bytes).sum())?;
        let template = self.chat.as_ref().ok_or_else(|| {
            ServeError::Invalid(format!(
                "Model {} has no chat template: send a prompt to /v1/completions instead",
                self.model
            ))
        })?;
        let text = template.render_with(messages, true, variables)?;
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

/// Bytes of a message's text.
fn content_bytes(message: &serde_json::Value) -> usize {
    message["content"].as_str().map_or(0, str::len)
}
