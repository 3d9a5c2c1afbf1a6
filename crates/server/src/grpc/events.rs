//! What becomes of a session, as a stream of messages.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use djinn_engine::{Finish, Logprob, Paused};
use djinn_wire::{parts, v1};
use futures_util::Stream;
use tonic::Status;

use crate::{
    app::Caller,
    host::{Told, Turn, Words},
};

/// A turn as messages, for as long as somebody listens.
pub struct Events {
    turn: Option<Turn>,
    words: Words,
    next: VecDeque<v1::Event>,
    /// Under way until the last message is out.
    _caller: Caller,
}

impl Events {
    /// Begins with some, and goes on with what the turn comes to.
    pub fn new(
        first: impl IntoIterator<Item = v1::Event>,
        turn: Option<Turn>,
        words: Words,
        caller: Caller,
    ) -> Self {
        Events {
            turn,
            words,
            next: first.into_iter().collect(),
            _caller: caller,
        }
    }

    fn take(&mut self, told: Told) -> Result<(), Status> {
        match told {
            Told::Token {
                token,
                text,
                index,
                logprobs,
            } => {
                let logprobs = logprobs.iter().map(|l| logprob(&self.words, l)).collect();
                self.next.push_back(event(v1::event::What::Token(v1::Token {
                    id: token,
                    text,
                    index: index as u64,
                    logprobs,
                })));
            }
            Told::Captured(name, tensor) => {
                let parts = parts(&name, &tensor.shape, &tensor.data);
                self.next
                    .extend(parts.map(|part| event(v1::event::What::Captured(part))));
            }
            Told::Paused { at, shape, took } => {
                let paused = v1::Paused {
                    took_us: Some(took.as_micros() as u64),
                    ..paused(&at, &shape)
                };
                self.next.push_back(event(v1::event::What::Paused(paused)));
            }
            Told::Finished {
                finish,
                failure,
                text,
                generated,
                kept,
            } => self
                .next
                .push_back(finished(Some(finish), failure, text, generated, kept)),
            Told::Replaced => {
                return Err(Status::aborted(
                    "the session was closed, or is followed from elsewhere now",
                ));
            }
        }
        Ok(())
    }
}

impl Stream for Events {
    type Item = Result<v1::Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let Some(turn) = &mut self.turn else {
                return Poll::Ready(None);
            };
            let was_over = turn.is_over();
            match ready!(Pin::new(&mut *turn).poll_next(context)) {
                Some(told) => {
                    if let Err(status) = self.take(told) {
                        self.turn = None;
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                None if was_over => return Poll::Ready(None),
                None => {
                    let gone = turn.host.gone();
                    self.turn = None;
                    return Poll::Ready(Some(Err(gone.into())));
                }
            }
        }
    }
}

/// One thing that happened.
pub fn event(what: v1::event::What) -> v1::Event {
    v1::Event { what: Some(what) }
}

/// The end of a turn.
pub fn finished(
    finish: Option<Finish>,
    failure: Option<String>,
    text: String,
    generated: usize,
    kept: bool,
) -> v1::Event {
    event(v1::event::What::Finished(v1::Finished {
        why: finish.map(|finish| finish.to_string()).unwrap_or_default(),
        failure: failure.unwrap_or_default(),
        text,
        generated: generated as u64,
        kept,
    }))
}

/// Where a session stands.
pub fn paused(at: &Paused, shape: &[usize]) -> v1::Paused {
    v1::Paused {
        hook: at.site.to_string(),
        position: at.position as u64,
        rows: at.rows as u64,
        shape: shape.iter().map(|&d| d as u64).collect(),
        took_us: None,
    }
}

fn logprob(words: &Words, logprob: &Logprob) -> v1::Logprob {
    v1::Logprob {
        id: logprob.token,
        logprob: logprob.logprob,
        text: words.piece(logprob.token),
    }
}
