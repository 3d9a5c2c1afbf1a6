//! Answer in OpenAI's format: its header, its choices, and the answer that is sent in one piece.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{http::header, response::IntoResponse};
use djinn_engine::Logprob;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::{
    choice::{AnswerChoice, finish_reason},
    djinn,
    error::HttpResult,
    logprobs::{chat_logprobs, completion_logprobs},
    prompts::PromptTokens,
};
use crate::{
    ServeError,
    auth::Caller,
    engine_thread::{ChatTokenizer, TurnStream},
    offload::Offload,
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
    /// Number of tokens of each prompt.
    pub prompts: PromptTokens,
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
    pub async fn collect(self, offload: &Offload) -> HttpResult {
        let PendingAnswer {
            head,
            turns,
            echo,
            prompts,
            logprobs,
            token_ids,
            session,
            caller,
        } = self;
        let tokenizer = turns[0].model.tokenizer.clone();
        let choices = try_join_all(turns.into_iter().map(AnswerChoice::collect)).await?;
        let bytes = choices.iter().map(AnswerChoice::bytes).sum();
        let encode = move || {
            let whole = WholeAnswer {
                head,
                echo,
                prompts,
                logprobs,
                token_ids,
                session,
            };
            serde_json::to_vec(&whole.json(&tokenizer, choices))
        };
        let body = offload.run(caller.name(), bytes, encode).await?;
        let body = body.map_err(|error| ServeError::Internal(error.to_string()))?;
        Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
    }
}

/// Everything about an answer except its choices.
struct WholeAnswer {
    head: AnswerHead,
    echo: Vec<String>,
    prompts: PromptTokens,
    logprobs: bool,
    token_ids: bool,
    session: Option<String>,
}

impl WholeAnswer {
    fn json(self, tokenizer: &ChatTokenizer, mut choices: Vec<AnswerChoice>) -> Value {
        let completion_tokens: usize = choices.iter().map(|choice| choice.tokens.len()).sum();
        let cached: Vec<usize> = choices.iter().map(|choice| choice.cached).collect();
        let usage = self.prompts.usage(&cached, completion_tokens);
        // If there is only one choice, its captures belong to the whole answer.
        let captured = match &mut choices[..] {
            [only] => std::mem::take(&mut only.captured),
            _ => BTreeMap::new(),
        };
        let choices = choices.into_iter().enumerate();
        let choices: Vec<Value> = choices
            .map(|(index, choice)| self.choice_json(tokenizer, index, choice))
            .collect();
        let mut answer = self.head.json(false, choices.into());
        answer["usage"] = usage;
        if let Some(fields) = djinn::reply_fields(self.session, captured) {
            answer["djinn"] = fields;
        }
        answer
    }

    fn choice_json(&self, tokenizer: &ChatTokenizer, index: usize, choice: AnswerChoice) -> Value {
        let echo = self.echo.get(index).map_or("", String::as_str);
        let text = format!("{echo}{}", choice.text);
        let logprobs = self.logprobs.then(|| {
            let offset = echo.chars().count();
            self.head.api.logprobs(tokenizer, &choice.logprobs, offset)
        });
        let mut json = json!({
            "index": index,
            "logprobs": logprobs,
            "finish_reason": choice.finish.map(finish_reason),
        });
        if let Some(fields) = djinn::reply_fields(None, choice.captured) {
            json["djinn"] = fields;
        }
        if self.token_ids {
            json["token_ids"] = json!(choice.tokens);
        }
        match self.head.api {
            ApiKind::Completion => json["text"] = text.into(),
            ApiKind::Chat => {
                json["message"] = json!({ "role": "assistant", "content": text, "refusal": null });
            }
        }
        json
    }
}
