//! Answer in OpenAI's format: its header, its choices, and the answer that is sent in one piece.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{Json, response::IntoResponse};
use djinn_engine::Logprob;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::{
    choice::{AnswerChoice, finish_reason},
    djinn,
    error::HttpResult,
    logprobs::{chat_logprobs, completion_logprobs},
};
use crate::{
    auth::Caller,
    engine_thread::{ChatTokenizer, TurnStream},
};

/// API that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKind {
    /// API of `/v1/completions`.
    Completion,
    /// API of `/v1/chat/completions`.
    Chat,
}

impl ApiKind {
    /// Log-probabilities in the format of this API.
    pub fn logprobs(
        self,
        tokenizer: &ChatTokenizer,
        tokens: &[Vec<Logprob>],
        offset: usize,
    ) -> Value {
        match self {
            ApiKind::Completion => completion_logprobs(tokenizer, tokens, offset),
            ApiKind::Chat => chat_logprobs(tokenizer, tokens),
        }
    }
}

/// Header fields of an answer.
pub struct AnswerHead {
    id: String,
    created: u64,
    model: String,
    /// API of the request.
    pub api: ApiKind,
}

impl AnswerHead {
    /// Creates the header of a new answer.
    pub fn new(model: &str, api: ApiKind) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let prefix = match api {
            ApiKind::Completion => "cmpl",
            ApiKind::Chat => "chatcmpl",
        };
        AnswerHead {
            id: format!("{prefix}-{:x}", now.as_nanos()),
            created: now.as_secs(),
            model: model.to_owned(),
            api,
        }
    }

    /// JSON of an answer, or of one chunk of a streamed answer.
    pub fn json(&self, streams: bool, choices: Value) -> Value {
        let object = match (self.api, streams) {
            (ApiKind::Completion, _) => "text_completion",
            (ApiKind::Chat, false) => "chat.completion",
            (ApiKind::Chat, true) => "chat.completion.chunk",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// An answer with turns that still run.
pub struct PendingAnswer {
    /// Header fields.
    pub head: AnswerHead,
    /// Turn of each choice.
    pub turns: Vec<TurnStream>,
    /// Prompt text that precedes each choice, for `echo`; empty otherwise.
    pub echo: Vec<String>,
    /// Number of tokens in all prompts.
    pub prompt_tokens: usize,
    /// Whether to report log-probabilities.
    pub logprobs: bool,
    /// Whether to report token ids.
    pub token_ids: bool,
    /// Name of the session, if it is kept.
    pub session: Option<String>,
    /// Sender of the request.
    pub caller: Caller,
}

impl PendingAnswer {
    /// Waits for all turns and returns the answer in one piece.
    pub async fn collect(self) -> HttpResult {
        let tokenizer = self.turns[0].model.tokenizer.clone();
        let mut choices = try_join_all(self.turns.into_iter().map(AnswerChoice::collect)).await?;
        let completion_tokens: usize = choices.iter().map(|choice| choice.tokens.len()).sum();
        // If there is only one choice, its captures belong to the whole answer.
        let captured = match &mut choices[..] {
            [only] => std::mem::take(&mut only.captured),
            _ => BTreeMap::new(),
        };
        let mut choices_json = Vec::with_capacity(choices.len());
        for (index, choice) in choices.iter().enumerate() {
            let echo = self.echo.get(index).map_or("", String::as_str);
            let text = format!("{echo}{}", choice.text);
            let offset = echo.chars().count();
            let logprobs = self.logprobs.then(|| {
                let api = self.head.api;
                api.logprobs(&tokenizer, &choice.logprobs, offset)
            });
            let mut json = json!({
                "index": index,
                "logprobs": logprobs,
                "finish_reason": choice.finish.map(finish_reason),
            });
            if let Some(fields) = djinn::reply_fields(None, &choice.captured) {
                json["djinn"] = fields;
            }
            if self.token_ids {
                json["token_ids"] = json!(choice.tokens);
            }
            match self.head.api {
                ApiKind::Completion => json["text"] = text.into(),
                ApiKind::Chat => {
                    json["message"] =
                        json!({ "role": "assistant", "content": text, "refusal": null });
                }
            }
            choices_json.push(json);
        }
        let mut answer = self.head.json(false, choices_json.into());
        answer["usage"] = usage(self.prompt_tokens, completion_tokens);
        if let Some(fields) = djinn::reply_fields(self.session, &captured) {
            answer["djinn"] = fields;
        }
        Ok(Json(answer).into_response())
    }
}

/// Token counts of an answer.
pub fn usage(prompt: usize, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    })
}
