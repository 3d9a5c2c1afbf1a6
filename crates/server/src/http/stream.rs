//! An answer as it comes: server-sent events.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    pin::Pin,
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
    choices::{check, reason},
    djinn,
    generate::{Answer, Head, Way, usage},
    logprobs, reply,
};
use crate::{
    ServeError,
    app::Caller,
    host::{Host, Told, Words},
};
use std::sync::Arc;

/// How often a client that waits is told that it is not forgotten.
const PULSE: Duration = Duration::from_secs(15);

/// Answers piece by piece.
pub fn respond(answer: Answer, wants_usage: bool) -> Response {
    let host = Arc::clone(&answer.turns[0].host);
    let left = answer.turns.len();
    let mut next = VecDeque::new();
    // First, so that whoever leaves early finds it again.
    if let Some(told) = djinn::told(answer.session, &BTreeMap::new()) {
        let mut first = answer.head.json(true, json!([]));
        first["djinn"] = told;
        next.push_back(data(&first));
    }
    for index in 0..left {
        let before = answer.echo.get(index).cloned().unwrap_or_default();
        let first = match answer.head.way {
            Way::Chat => json!({ "role": "assistant", "content": "" }),
            Way::Text if before.is_empty() => continue,
            Way::Text => before.into(),
        };
        next.push_back(data(&piece(&answer.head, index, first, None, None)));
    }
    let tagged =
        |(index, turn): (usize, crate::host::Turn)| turn.map(move |told| (index, told)).boxed();
    let pieces = Pieces {
        words: host.words.clone(),
        host,
        head: answer.head,
        turns: answer.turns.into_iter().enumerate().map(tagged).collect(),
        left,
        tells_logprobs: answer.logprobs,
        tells_ids: answer.token_ids,
        wants_usage,
        prompt_tokens: answer.prompt_tokens,
        completion_tokens: 0,
        captured: vec![BTreeMap::new(); left],
        next,
        is_over: false,
        _caller: answer.caller,
    };
    let alive = KeepAlive::new().interval(PULSE);
    Sse::new(pieces).keep_alive(alive).into_response()
}

/// What goes out, in order.
struct Pieces {
    host: Arc<Host>,
    words: Words,
    head: Head,
    turns: SelectAll<BoxStream<'static, (usize, Told)>>,
    /// Choices that are not over.
    left: usize,
    tells_logprobs: bool,
    tells_ids: bool,
    wants_usage: bool,
    prompt_tokens: usize,
    completion_tokens: usize,
    /// What each choice read.
    captured: Vec<BTreeMap<String, Tensor>>,
    next: VecDeque<Event>,
    is_over: bool,
    _caller: Caller,
}

/// A piece of one choice.
fn piece(
    head: &Head,
    index: usize,
    text: Value,
    logprobs: Option<Value>,
    finish: Option<&str>,
) -> Value {
    let mut choice = json!({ "index": index, "logprobs": logprobs, "finish_reason": finish });
    match (head.way, text) {
        (Way::Text, text) => choice["text"] = text,
        (Way::Chat, Value::String(text)) => choice["delta"] = json!({ "content": text }),
        (Way::Chat, delta) => choice["delta"] = delta,
    }
    head.json(true, json!([choice]))
}

fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

impl Pieces {
    fn hear(&mut self, index: usize, told: Told) -> Result<(), ServeError> {
        match told {
            Told::Token {
                token,
                text,
                logprobs,
                ..
            } => {
                self.completion_tokens += 1;
                if !text.is_empty() || self.tells_logprobs || self.tells_ids {
                    let logprobs = self.logprobs(logprobs);
                    let mut piece = piece(&self.head, index, text.into(), logprobs, None);
                    if self.tells_ids {
                        piece["choices"][0]["token_ids"] = json!([token]);
                    }
                    self.next.push_back(data(&piece));
                }
            }
            Told::Captured(name, tensor) => drop(self.captured[index].insert(name, tensor)),
            Told::Finished {
                finish,
                failure,
                text,
                ..
            } => {
                check(finish, failure)?;
                let rest = match (self.head.way, text.is_empty()) {
                    (Way::Chat, true) => json!({}),
                    _ => text.into(),
                };
                let reason = Some(reason(finish));
                let last = piece(&self.head, index, rest, None, reason);
                self.next.push_back(data(&last));
                self.left -= 1;
                if self.left == 0 {
                    self.end();
                }
            }
            Told::Paused { at, .. } => {
                return Err(ServeError::Conflict(format!(
                    "the session stopped at {}",
                    at.site
                )));
            }
            Told::Replaced => {
                return Err(ServeError::Conflict(
                    "the session is followed from elsewhere now".to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn logprobs(&self, logprobs: Vec<Logprob>) -> Option<Value> {
        let wanted = self.tells_logprobs && !logprobs.is_empty();
        let shape = self.head.way.logprobs();
        wanted.then(|| logprobs::told(shape, &self.words, &[logprobs], 0))
    }

    /// What comes after the last choice.
    fn end(&mut self) {
        let captured = std::mem::take(&mut self.captured);
        let is_only = captured.len() == 1;
        for (index, read) in captured.iter().enumerate() {
            let Some(told) = djinn::told(None, read) else {
                continue;
            };
            let mut last = match is_only {
                true => self.head.json(true, json!([])),
                false => piece(&self.head, index, "".into(), None, None),
            };
            match is_only {
                true => last["djinn"] = told,
                false => last["choices"][0]["djinn"] = told,
            }
            self.next.push_back(data(&last));
        }
        if self.wants_usage {
            let mut last = self.head.json(true, json!([]));
            last["usage"] = usage(self.prompt_tokens, self.completion_tokens);
            self.next.push_back(data(&last));
        }
        self.next.push_back(Event::default().data("[DONE]"));
        self.is_over = true;
    }

    /// What went wrong, in place of the rest.
    fn fail(&mut self, error: &ServeError) {
        self.turns = SelectAll::new();
        self.next.push_back(data(&reply::told(error)));
        self.is_over = true;
    }
}

impl Stream for Pieces {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match ready!(self.turns.poll_next_unpin(context)) {
                Some((index, told)) => {
                    if let Err(error) = self.hear(index, told) {
                        self.fail(&error);
                    }
                }
                None => {
                    let gone = self.host.gone();
                    self.fail(&gone);
                }
            }
        }
    }
}
