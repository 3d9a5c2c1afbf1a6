//! Requests in OpenAI's format, with Djinn's additional fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::djinn::DjinnFields;
use crate::{
    ServeError,
    request::{SamplingSpec, check_stop},
};

/// Largest number of alternatives that a request may set for each token.
pub const TOP_LOGPROBS_MAX: usize = 20;

/// Fields that completions and chats have in common.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub struct CommonFields {
    /// Name of the model. Default: the server's first model.
    pub model: String,
    /// Limit of tokens to generate. Default: the model's recommendation, or 256.
    pub max_tokens: Option<usize>,
    /// Limit of tokens to generate; takes precedence over `max_tokens`.
    pub max_completion_tokens: Option<usize>,
    /// Sampling temperature; 0 always takes the most likely token. Default: the model's recommendation, or 1.
    pub temperature: Option<f32>,
    /// Samples from the most likely tokens with probabilities that sum to this value.
    pub top_p: Option<f32>,
    /// Samples from this many most likely tokens.
    pub top_k: Option<usize>,
    /// Excludes tokens with a probability below this share of the most likely token's
    /// probability.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that occur in the prompt or in the generated text.
    pub repetition_penalty: Option<f32>,
    /// Value subtracted from the logits of tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// Value subtracted from the logits of generated tokens, once for each occurrence.
    pub frequency_penalty: Option<f32>,
    /// Values added to the logits of tokens, by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the sampler. The same seed gives the same text.
    pub seed: Option<i64>,
    /// Number of choices for each prompt. Default: 1.
    pub n: Option<usize>,
    /// Texts that end the answer; at most 16.
    pub stop: Option<StopStrings>,
    /// Whether to send tokens as server-sent events while they are generated.
    pub stream: Option<bool>,
    /// Options of a streamed answer.
    pub stream_options: Option<StreamingOptions>,
    /// Whether to continue past end-of-text tokens.
    pub ignore_eos: Option<bool>,
    /// Whether to return token ids as `token_ids` of each choice.
    pub return_token_ids: Option<bool>,
    /// Fields that only Djinn has: sessions, edits, captures.
    pub djinn: Option<DjinnFields>,
    /// Unknown fields, kept so that they can be rejected by name.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// Request body of `POST /v1/completions`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct CompletionRequest {
    /// One prompt or several, as text or as token ids.
    pub prompt: PromptInput,
    /// Number of alternatives to return with the log-probability of each token; at most 20.
    pub logprobs: Option<usize>,
    /// Whether the answer repeats the prompt before the generated text.
    pub echo: Option<bool>,
    /// Fields that completions and chats have in common.
    #[serde(flatten)]
    pub common: CommonFields,
}

/// Request body of `POST /v1/chat/completions`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ChatRequest {
    /// Messages of the chat, oldest first.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Whether to return log-probabilities.
    pub logprobs: Option<bool>,
    /// Number of alternatives to return with each token; at most 20. Requires `logprobs`.
    pub top_logprobs: Option<usize>,
    /// Variables for the model's chat template, for example `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Fields that completions and chats have in common.
    #[serde(flatten)]
    pub common: CommonFields,
}

/// One stop string or several.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "stop must be a text or a list of texts")]
pub enum StopStrings {
    /// One stop string.
    One(String),
    /// Several stop strings.
    Many(Vec<String>),
}

/// One prompt or several, as text or as token ids.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(
    untagged,
    expecting = "prompt must be a text, a list of texts, a list of token ids, or a list of such lists"
)]
pub enum PromptInput {
    /// One prompt as text.
    Text(String),
    /// One prompt as token ids.
    Tokens(Vec<u32>),
    /// Several prompts as text.
    Texts(Vec<String>),
    /// Several prompts as token ids.
    TokenLists(Vec<Vec<u32>>),
}

impl PromptInput {
    /// Number of prompts.
    pub fn count(&self) -> usize {
        match self {
            PromptInput::Text(_) | PromptInput::Tokens(_) => 1,
            PromptInput::Texts(texts) => texts.len(),
            PromptInput::TokenLists(lists) => lists.len(),
        }
    }
}

/// Options of a streamed answer.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub struct StreamingOptions {
    /// Whether the last chunk reports the number of tokens.
    pub include_usage: bool,
}

/// Fields of OpenAI's API that have no effect on the answer and are accepted.
const IGNORED_FIELDS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "best_of",
    "parallel_tool_calls",
    "tool_choice",
];

impl CommonFields {
    /// Rejects unsupported fields by name. The server ignores no field that could change the
    /// answer.
    pub fn check(&self) -> Result<(), ServeError> {
        for (name, value) in &self.rest {
            let is_empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || name == "response_format" && value["type"] == "text"
                || name == "modalities" && value == &serde_json::json!(["text"])
                || name == "suffix" && value == "";
            let has_effect = name == "best_of" && value.as_u64() > Some(self.n.unwrap_or(1) as u64);
            if !is_empty && (has_effect || !IGNORED_FIELDS.contains(&name.as_str())) {
                let error = ServeError::Unsupported(format!(
                    "The field '{}' is not supported by this server; leave it out",
                    name.escape_debug()
                ));
                return Err(error.in_field(name));
            }
        }
        check_stop(&self.stop())?;
        if self.n == Some(0) {
            let error = ServeError::Invalid("n is 0, but must be at least 1".to_owned());
            return Err(error.in_field("n"));
        }
        Ok(())
    }

    /// Name of the session that the request continues, if any.
    pub fn session(&self) -> Option<&str> {
        self.djinn.as_ref()?.session.as_deref()
    }

    /// Name of the model: from `model`, or from the session's name.
    pub fn model(&self) -> &str {
        let session = self.session().and_then(|name| name.rsplit_once(':'));
        match (self.model.as_str(), session) {
            ("", Some((model, _))) => model,
            (model, _) => model,
        }
    }

    /// Limit of tokens to generate, if set.
    pub fn max_tokens(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// Stop strings.
    pub fn stop(&self) -> Vec<String> {
        match &self.stop {
            None => Vec::new(),
            Some(StopStrings::One(stop)) => vec![stop.clone()],
            Some(StopStrings::Many(stops)) => stops.clone(),
        }
    }

    /// Sampling parameters.
    pub fn sampling(&self) -> Result<SamplingSpec, ServeError> {
        let bias = |(token, bias): (&String, &f32)| {
            let invalid = || {
                let error = ServeError::Invalid(format!(
                    "logit_bias: the key '{}' is not a token id; use a number such as \"42\"",
                    token.escape_debug()
                ));
                error.in_field("logit_bias")
            };
            Ok((token.parse().map_err(|_| invalid())?, *bias))
        };
        let logit_bias: Result<Vec<(u32, f32)>, ServeError> =
            self.logit_bias.iter().flatten().map(bias).collect();
        Ok(SamplingSpec {
            temperature: self.temperature,
            default_temperature: 1.0,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: logit_bias?,
            seed: self.seed.map(i64::cast_unsigned),
            logprobs: None,
        })
    }

    /// Whether a streamed answer ends with token counts.
    pub fn wants_usage(&self) -> bool {
        self.stream_options
            .is_some_and(|options| options.include_usage)
    }
}
