//! What is known of a loaded model without asking its engine.

use std::sync::Arc;

use djinn_engine::Engine;
use djinn_model::{ChatTemplate, Generation, Model, Text, program::Dims};
use djinn_weights::Keep;
use djinn_wire::v1;
use tokio::task::block_in_place;

use crate::ServeError;

/// What does not change while a model is loaded.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `llama`, `gpt2`.
    pub family: &'static str,
    /// Its sizes.
    pub dims: Dims,
    /// How it was laid out, in a sentence.
    pub routing: String,
    /// Where its bytes went.
    pub memory: v1::ModelMemory,
    /// What it was laid out for.
    pub limits: v1::ModelLimits,
    /// Bytes a second that the link gives alone, where weights come over it.
    pub link_ceiling: f64,
    /// Bytes of a page of KV.
    pub page_bytes: u64,
    /// Tokens that it has room for.
    pub page_tokens: u64,
}

impl Facts {
    pub(super) fn of(engine: &Engine, link_ceiling: f64) -> Self {
        let (model, blueprint) = (engine.model(), engine.blueprint());
        Facts {
            family: model.program.family,
            dims: model.program.dims,
            routing: blueprint.reason(),
            memory: memory(blueprint),
            limits: limits(blueprint),
            link_ceiling,
            page_bytes: blueprint.page_bytes(),
            page_tokens: blueprint.settings().page_tokens as u64,
        }
    }
}

/// What a blueprint is for.
pub(crate) fn limits(blueprint: &djinn_engine::Blueprint) -> v1::ModelLimits {
    let settings = blueprint.settings();
    v1::ModelLimits {
        memory_bytes: blueprint.memory().budget,
        context: settings.context as u64,
        batch: settings.sessions as u64,
        sessions: settings.open as u64,
        rows: settings.rows as u64,
        no_prefetch: !blueprint.memory().prefetch,
        resident_bytes: match blueprint.memory().overrides.keep {
            Keep::AtMost(bytes) => bytes,
            _ => 0,
        },
    }
}

/// Where a blueprint puts a model's bytes.
pub(crate) fn memory(blueprint: &djinn_engine::Blueprint) -> v1::ModelMemory {
    let footprint = blueprint.footprint();
    v1::ModelMemory {
        resident_bytes: footprint.resident,
        ring_bytes: footprint.ring,
        experts_bytes: footprint.pool,
        kv_bytes: footprint.kv,
        activations_bytes: footprint.activations,
        total_bytes: footprint.total(),
        host_bytes: blueprint.host_bytes(),
        streamed_bytes: blueprint.plan().ring.streamed_bytes(),
    }
}

/// The same sizes as they travel.
pub(crate) fn dims(dims: &Dims) -> v1::Dims {
    v1::Dims {
        blocks: dims.blocks as u64,
        d_model: dims.d_model as u64,
        heads: dims.heads as u64,
        kv_heads: dims.kv_heads as u64,
        d_head: dims.d_head as u64,
        d_mlp: dims.d_mlp as u64,
        vocab: dims.vocab as u64,
        context: dims.context as u64,
    }
}

/// A model's words: nobody needs its engine to read and write.
#[derive(Clone)]
pub struct Words {
    model: String,
    /// Its tokenizer, where it has one.
    pub text: Option<Arc<Text>>,
    /// How chats become text, where it says so.
    pub chat: Option<Arc<ChatTemplate>>,
    /// What it recommends.
    pub generation: Generation,
}

impl Words {
    pub(super) fn of(model: &Model) -> Self {
        Words {
            model: model.name.clone(),
            text: model.text.clone(),
            chat: model.chat.clone(),
            generation: model.generation.clone(),
        }
    }

    /// Its tokenizer, or an error that says what to send instead.
    pub fn tokenizer(&self) -> Result<&Text, ServeError> {
        self.text.as_deref().ok_or_else(|| {
            ServeError::Invalid(format!(
                "{} has no tokenizer: send the prompt as token ids",
                self.model
            ))
        })
    }

    /// The tokens of a prompt.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ServeError> {
        let tokenizer = self.tokenizer()?;
        // A long text takes a while, in which others are served.
        let tokens = block_in_place(|| tokenizer.encode(text))?;
        match (tokens.is_empty(), tokenizer.bos()) {
            (true, Some(bos)) => Ok(vec![bos]),
            _ => Ok(tokens),
        }
    }

    /// The tokens of what comes after others.
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, ServeError> {
        let tokenizer = self.tokenizer()?;
        Ok(block_in_place(|| tokenizer.encode_plain(text))?)
    }

    /// The tokens of a chat, up to where the answer begins.
    pub fn encode_chat(
        &self,
        messages: &[serde_json::Value],
        variables: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Vec<u32>, ServeError> {
        let template = self.chat.as_ref().ok_or_else(|| {
            ServeError::Invalid(format!(
                "{} has no chat template: use completions with a prompt",
                self.model
            ))
        })?;
        let text = block_in_place(|| template.render_with(messages, true, variables))?;
        // A template writes its own special tokens.
        self.encode_more(&text)
    }

    /// A token by itself, as it reads behind others: with the space it may begin with.
    pub fn piece(&self, token: u32) -> String {
        let behind = self
            .text
            .as_ref()
            .and_then(|text| text.decoder(&[token], false).push(token));
        if let Some(piece) = behind {
            return piece;
        }
        let decoded = self
            .text
            .as_ref()
            .and_then(|text| text.decode(&[token], false).ok());
        decoded.unwrap_or_default()
    }
}
