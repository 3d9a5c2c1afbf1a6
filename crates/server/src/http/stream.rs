//! Answer as server-sent events, one chunk for each token.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use djinn_engine::{Logprob, Tensor};
use futures_util::{
    Stream, StreamExt,
    stream::{BoxStream, SelectAll},
};
use serde_json::{Value, json};

use super::{
    answer::{AnswerHead, ApiKind, PendingAnswer},
    choice::{check_finish, finish_reason, paused_error},
    djinn,
    error::error_json,
    prompts::PromptTokens,
};
use crate::{
    ServeError,
    auth::Caller,
    engine_thread::{LoadedModel, SessionEvent, TurnStream},
};

/// Interval of keep-alive comments while a client waits for a token.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Answers with server-sent events.
pub fn respond(answer: PendingAnswer, wants_usage: bool) -> Response {
    let count = answer.turns.len();
    let mut pending = VecDeque::new();
    // The first chunk has the session's name, so that a disconnected client can find the session
    // again.
    if let Some(fields) = djinn::reply_fields(answer.session, BTreeMap::new()) {
        let mut first = answer.head.json(true, json!([]));
        first["djinn"] = fields;
        pending.push_back(data(&first));
    }
    for index in 0..count {
        let echo = answer.echo.get(index).cloned().unwrap_or_default();
        let first = match answer.head.api {
            ApiKind::Chat => json!({ "role": "assistant", "content": "" }),
            ApiKind::Completion if echo.is_empty() => continue,
            ApiKind::Completion => echo.into(),
        };
        pending.push_back(data(&chunk(&answer.head, index, first, None, None)));
    }
    let tagged = |(index, turn): (usize, TurnStream)| turn.map(move |event| (index, event)).boxed();
    let stream = SseStream {
        model: Arc::clone(&answer.turns[0].model),
        head: answer.head,
        turns: answer.turns.into_iter().enumerate().map(tagged).collect(),
        unfinished: count,
        logprobs: answer.logprobs,
        token_ids: answer.token_ids,
        wants_usage,
        prompts: answer.prompts,
        cached: vec![0; count],
        completion_tokens: 0,
        captured: vec![BTreeMap::new(); count],
        pending,
        is_over: false,
        caller: answer.caller,
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(stream).keep_alive(keep_alive).into_response()
}

/// Stream of server-sent events of one answer.
struct SseStream {
    model: Arc<LoadedModel>,
    head: AnswerHead,
    /// Events of all choices, each with the choice's index.
    turns: SelectAll<BoxStream<'static, (usize, SessionEvent)>>,
    /// Number of choices that are not finished.
    unfinished: usize,
    logprobs: bool,
    token_ids: bool,
    wants_usage: bool,
    prompts: PromptTokens,
    /// Number of tokens that each choice found in the prefix cache.
    cached: Vec<usize>,
    completion_tokens: usize,
    /// Captures of each choice.
    captured: Vec<BTreeMap<String, Tensor>>,
    /// Events that are ready to send.
    pending: VecDeque<Event>,
    is_over: bool,
    caller: Caller,
}

/// JSON of one chunk of one choice.
fn chunk(
    head: &AnswerHead,
    index: usize,
    text: Value,
    logprobs: Option<Value>,
    finish: Option<&str>,
) -> Value {
    let mut choice = json!({ "index": index, "logprobs": logprobs, "finish_reason": finish });
    match (head.api, text) {
        (ApiKind::Completion, text) => choice["text"] = text,
        (ApiKind::Chat, Value::String(text)) => choice["delta"] = json!({ "content": text }),
        (ApiKind::Chat, delta) => choice["delta"] = delta,
    }
    head.json(true, json!([choice]))
}

fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

impl SseStream {
    /// Turns a session's event into chunks.
    fn add(&mut self, index: usize, event: SessionEvent) -> Result<(), ServeError> {
        match event {
            SessionEvent::Token {
                token,
                text,
                logprobs,
                ..
            } => self.add_token(index, token, text, logprobs),
            SessionEvent::Captured(name, tensor) => {
                self.captured[index].insert(name, tensor);
            }
            SessionEvent::Finished {
                finish,
                failure,
                text,
                cached,
                ..
            } => {
                check_finish(finish, failure)?;
                self.cached[index] = cached;
                let rest = match (self.head.api, text.is_empty()) {
                    (ApiKind::Chat, true) => json!({}),
                    _ => text.into(),
                };
                let last = chunk(&self.head, index, rest, None, Some(finish_reason(finish)));
                self.pending.push_back(data(&last));
                self.unfinished -= 1;
                if self.unfinished == 0 {
                    self.end();
                }
            }
            SessionEvent::Paused { at, .. } => return Err(paused_error(&at)),
            SessionEvent::Replaced => return Err(ServeError::Replaced),
            SessionEvent::Interrupted(error) => return Err(error),
        }
        Ok(())
    }

    fn add_token(&mut self, index: usize, token: u32, text: String, logprobs: Vec<Logprob>) {
        self.completion_tokens += 1;
        if text.is_empty() && !self.logprobs && !self.token_ids {
            return;
        }
        let logprobs = (self.logprobs && !logprobs.is_empty()).then(|| {
            let tokenizer = &self.model.tokenizer;
            self.head.api.logprobs(tokenizer, &[logprobs], 0)
        });
        let mut chunk = chunk(&self.head, index, text.into(), logprobs, None);
        if self.token_ids {
            chunk["choices"][0]["token_ids"] = json!([token]);
        }
        self.pending.push_back(data(&chunk));
    }

    /// Queues captures, usage and the end mark after the last choice.
    fn end(&mut self) {
        let captured = std::mem::take(&mut self.captured);
        let is_only = captured.len() == 1;
        for (index, captured) in captured.into_iter().enumerate() {
            let Some(fields) = djinn::reply_fields(None, captured) else {
                continue;
            };
            let last = match is_only {
                true => {
                    let mut last = self.head.json(true, json!([]));
                    last["djinn"] = fields;
                    last
                }
                false => {
                    let mut last = chunk(&self.head, index, "".into(), None, None);
                    last["choices"][0]["djinn"] = fields;
                    last
                }
            };
            self.pending.push_back(data(&last));
        }
        if self.wants_usage {
            let mut last = self.head.json(true, json!([]));
            last["usage"] = self.prompts.usage(&self.cached, self.completion_tokens);
            self.pending.push_back(data(&last));
        }
        self.pending.push_back(Event::default().data("[DONE]"));
        self.is_over = true;
    }

    /// Queues an error in place of the rest of the answer.
    fn fail(&mut self, error: &ServeError) {
        self.turns = SelectAll::new();
        self.caller.context.fail(error.code());
        self.pending.push_back(data(&error_json(error)));
        self.is_over = true;
    }
}

impl Stream for SseStream {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let added = match ready!(self.turns.poll_next_unpin(context)) {
                Some((index, event)) => self.add(index, event),
                None => Err(self.model.gone()),
            };
            if let Err(error) = added {
                self.fail(&error);
            }
        }
    }
}
