//! Requests as OpenAI's clients write them, with Djinn's own fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::djinn::DjinnFields;
use crate::{
    ServeError,
    ask::{STOPS, SamplingAsk},
};

/// What both ways of asking have in common.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub struct Common {
    /// The model's name; the first there is when not said.
    pub model: String,
    /// Tokens to generate at most.
    pub max_tokens: Option<usize>,
    /// The same, as newer clients call it.
    pub max_completion_tokens: Option<usize>,
    /// 0 takes the likeliest token. Not said: as the model recommends, or 1.
    pub temperature: Option<f32>,
    /// Choose among the likeliest whose probabilities reach this.
    pub top_p: Option<f32>,
    /// Choose among so many of the likeliest.
    pub top_k: Option<usize>,
    /// Leave out what is less likely than this share of the likeliest.
    pub min_p: Option<f32>,
    /// Make tokens that are there less likely, prompt included.
    pub repetition_penalty: Option<f32>,
    /// Subtract from the logits of tokens already generated.
    pub presence_penalty: Option<f32>,
    /// The same, as often as they were.
    pub frequency_penalty: Option<f32>,
    /// Add to the logits of tokens, by id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The same seed gives the same text.
    pub seed: Option<i64>,
    /// Choices for each prompt.
    pub n: Option<usize>,
    /// Texts that end it.
    pub stop: Option<OneOrMore>,
    /// Tokens as they come, as server-sent events.
    pub stream: Option<bool>,
    /// What a stream tells beside them.
    pub stream_options: Option<StreamOptions>,
    /// Go on past the tokens that end a text.
    pub ignore_eos: Option<bool>,
    /// Tell the ids of tokens too, as `token_ids` of each choice.
    pub return_token_ids: Option<bool>,
    /// What only Djinn does.
    pub djinn: Option<DjinnFields>,
    /// Everything else.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// `POST /v1/completions`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct CompletionRequest {
    /// A text, several, token ids, or several lists of those.
    pub prompt: Prompt,
    /// Of each token its log-probability, and so many alternatives.
    pub logprobs: Option<usize>,
    /// The prompt before what was generated.
    pub echo: Option<bool>,
    /// The rest.
    #[serde(flatten)]
    pub common: Common,
}

/// `POST /v1/chat/completions`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ChatRequest {
    /// The chat so far.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Whether to tell log-probabilities.
    pub logprobs: Option<bool>,
    /// Of so many alternatives.
    pub top_logprobs: Option<usize>,
    /// Variables of the model's template, as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// The rest.
    #[serde(flatten)]
    pub common: Common,
}

/// A text, or several.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One.
    One(String),
    /// Several.
    More(Vec<String>),
}

/// What a prompt can be.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

/// What a stream tells beside tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub struct StreamOptions {
    /// At the end, how many tokens there were.
    pub include_usage: bool,
}

/// Fields of OpenAI's that ask for nothing that matters here.
const HARMLESS: &[&str] = &[
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

impl Common {
    /// Refuses what is not done here: nothing is ignored that was asked for.
    pub fn check(&self) -> Result<(), ServeError> {
        for (name, value) in &self.rest {
            let is_empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || name == "response_format" && value["type"] == "text"
                || name == "modalities" && value == &serde_json::json!(["text"])
                || name == "suffix" && value == "";
            let same = name == "best_of" && value.as_u64() > Some(self.n.unwrap_or(1) as u64);
            if !is_empty && (same || !HARMLESS.contains(&name.as_str())) {
                let name = name.escape_debug();
                return Err(ServeError::Unsupported(format!(
                    "'{name}' is not supported by this server"
                )));
            }
        }
        if self.stop().iter().any(String::is_empty) {
            return Err(ServeError::Invalid(
                "an empty stop string would stop nothing".to_owned(),
            ));
        }
        if self.stop().len() > STOPS {
            return Err(ServeError::TooLarge(format!(
                "{STOPS} stop strings at most"
            )));
        }
        if self.n == Some(0) {
            return Err(ServeError::Invalid("n is at least 1".to_owned()));
        }
        Ok(())
    }

    /// The model's name: a session says which it is.
    pub fn model(&self) -> &str {
        let session = self
            .djinn
            .as_ref()
            .and_then(|fields| fields.session.as_deref());
        match (
            self.model.as_str(),
            session.and_then(|name| name.rsplit_once(':')),
        ) {
            ("", Some((model, _))) => model,
            (model, _) => model,
        }
    }

    /// Texts that end it.
    pub fn stop(&self) -> Vec<String> {
        match &self.stop {
            None => Vec::new(),
            Some(OneOrMore::One(stop)) => vec![stop.clone()],
            Some(OneOrMore::More(stops)) => stops.clone(),
        }
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> Result<SamplingAsk, ServeError> {
        let bias = |(token, bias): (&String, &f32)| {
            let error = || {
                ServeError::Invalid(format!(
                    "logit_bias: '{}' is not a token id",
                    token.escape_debug()
                ))
            };
            Ok((token.parse().map_err(|_| error())?, *bias))
        };
        let logit_bias: Result<Vec<(u32, f32)>, ServeError> =
            self.logit_bias.iter().flatten().map(bias).collect();
        Ok(SamplingAsk {
            temperature: self.temperature,
            unsaid_temperature: 1.0,
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

    /// Whether a stream ends with how many tokens there were.
    pub fn wants_usage(&self) -> bool {
        self.stream_options
            .is_some_and(|options| options.include_usage)
    }
}
