//! Events of a session as a stream of messages.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use djinn_engine::{Finish, Logprob, Paused, SessionFailure};
use djinn_wire::{FinishReason, parts, v1};
use futures_util::Stream;
use tonic::Status;

use crate::{
    ServeError,
    auth::Caller,
    engine_thread::{ChatTokenizer, SessionEvent, TurnStream},
};

/// Message stream of one turn.
pub struct EventMessages {
    turn: Option<TurnStream>,
    tokenizer: ChatTokenizer,
    /// Messages that are ready to send.
    pending: VecDeque<v1::Event>,
    /// Caller that counts the request as in flight until the stream ends.
    caller: Caller,
}

impl EventMessages {
    /// Creates a stream that begins with `first` and continues with the events of `turn`.
    pub fn new(
        first: impl IntoIterator<Item = v1::Event>,
        turn: Option<TurnStream>,
        tokenizer: ChatTokenizer,
        caller: Caller,
    ) -> Self {
        EventMessages {
            turn,
            tokenizer,
            pending: first.into_iter().collect(),
            caller,
        }
    }

    fn add(&mut self, event: SessionEvent) -> Result<(), ServeError> {
        match event {
            SessionEvent::Token {
                token,
                text,
                index,
                logprobs,
            } => {
                let logprobs = logprobs.iter().map(|l| logprob(&self.tokenizer, l));
                self.pending
                    .push_back(message(v1::event::What::Token(v1::Token {
                        id: token,
                        text,
                        index: index as u64,
                        logprobs: logprobs.collect(),
                    })));
            }
            SessionEvent::Captured(name, tensor) => {
                let parts = parts(&name, &tensor.shape, &tensor.data);
                let messages = parts.map(|part| message(v1::event::What::Captured(part)));
                self.pending.extend(messages);
            }
            SessionEvent::Paused { at, shape, took } => {
                let paused = v1::Paused {
                    took_us: Some(took.as_micros() as u64),
                    ..paused(&at, &shape)
                };
                self.pending
                    .push_back(message(v1::event::What::Paused(paused)));
            }
            SessionEvent::Finished {
                finish,
                failure,
                text,
                generated,
                cached,
                kept,
            } => {
                let what = finished(Some(finish), failure, text, generated, cached, kept);
                self.pending.push_back(what);
            }
            SessionEvent::Replaced => return Err(ServeError::Replaced),
            SessionEvent::Interrupted(error) => return Err(error),
        }
        Ok(())
    }
}

impl Stream for EventMessages {
    type Item = Result<v1::Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            let Some(turn) = &mut self.turn else {
                return Poll::Ready(None);
            };
            let was_over = turn.is_over();
            let added = match ready!(Pin::new(&mut *turn).poll_next(context)) {
                Some(event) => self.add(event),
                None if was_over => return Poll::Ready(None),
                None => Err(turn.model.gone()),
            };
            if let Err(error) = added {
                self.turn = None;
                self.caller.context.fail(error.code());
                return Poll::Ready(Some(Err(error.into())));
            }
        }
    }
}

/// Wraps the content of an event.
pub fn message(what: v1::event::What) -> v1::Event {
    v1::Event { what: Some(what) }
}

/// Message for the end of a turn.
pub fn finished(
    finish: Option<Finish>,
    failure: Option<SessionFailure>,
    text: String,
    generated: usize,
    cached: usize,
    kept: bool,
) -> v1::Event {
    message(v1::event::What::Finished(v1::Finished {
        why: finish.map_or_else(String::new, |finish| reason(finish).name().to_owned()),
        failure: failure.map_or_else(String::new, |failure| failure.message),
        text,
        generated: generated as u64,
        kept,
        cached_tokens: cached as u64,
    }))
}

/// Reason of the protocol for the end of a turn.
fn reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::Length => FinishReason::Length,
        Finish::Context => FinishReason::Context,
        Finish::Eos => FinishReason::Eos,
        Finish::Stop => FinishReason::Stop,
        Finish::NotANumber => FinishReason::NotANumber,
        Finish::Deadline => FinishReason::Deadline,
        Finish::Lease => FinishReason::Lease,
        Finish::Failed => FinishReason::Failed,
    }
}

/// Message for a stop at a breakpoint.
pub fn paused(at: &Paused, shape: &[usize]) -> v1::Paused {
    v1::Paused {
        hook: at.site.to_string(),
        position: at.position as u64,
        rows: at.rows as u64,
        shape: shape.iter().map(|&d| d as u64).collect(),
        took_us: None,
    }
}

fn logprob(tokenizer: &ChatTokenizer, logprob: &Logprob) -> v1::Logprob {
    v1::Logprob {
        id: logprob.token,
        logprob: logprob.logprob,
        text: tokenizer.piece(logprob.token),
    }
}
