//! What becomes of a session.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use djinn_wire::{
    Assembler, ErrorCode,
    v1::{self, event::What},
};
use tokio_stream::Stream;
use tonic::Streaming;

use crate::{
    client::Client,
    error::Error,
    session::SessionHandle,
    tensor::{LARGEST, TensorData},
};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEvent {
    /// A token was generated.
    Token(v1::Token),
    /// What was read at a hook, whole.
    Captured(String, TensorData),
    /// It stopped at a breakpoint. Last.
    Paused(v1::Paused),
    /// Its turn is over, or it is. Last.
    Finished(v1::Finished),
}

/// What becomes of a session, as it does. A stream that ends without [`TurnEvent::Paused`] or
/// [`TurnEvent::Finished`] is an error.
#[derive(Debug)]
pub struct EventStream {
    session: SessionHandle,
    opened: v1::Opened,
    stream: Streaming<v1::Event>,
    tensor: Assembler,
    is_over: bool,
}

impl EventStream {
    /// Waits for the first message, which says whose events these are.
    pub(crate) async fn open(
        client: Client,
        mut stream: Streaming<v1::Event>,
    ) -> Result<Self, Error> {
        let first = stream.message().await?.and_then(|event| event.what);
        let Some(What::Opened(opened)) = first else {
            return Err(senseless("a session that does not say its name"));
        };
        Ok(EventStream {
            session: SessionHandle::new(client, opened.session.clone()),
            opened,
            stream,
            tensor: Assembler::default(),
            is_over: false,
        })
    }

    /// The session.
    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// What was said first: how many tokens the prompt has, how many were generated before, the seed.
    pub fn opened(&self) -> &v1::Opened {
        &self.opened
    }

    /// The next thing that happens; nothing once the last has.
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, Error> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context))
            .await
            .transpose()
    }

    /// Everything up to the end of the turn.
    pub async fn collect(mut self) -> Result<TurnOutput, Error> {
        let mut turn = TurnOutput::new(self.opened.clone());
        while let Some(event) = self.next().await? {
            turn.take(event);
        }
        Ok(turn)
    }

    fn take(&mut self, event: v1::Event) -> Result<Option<TurnEvent>, Error> {
        Ok(match event.what {
            Some(What::Token(token)) => Some(TurnEvent::Token(token)),
            Some(What::Captured(part)) => {
                let whole = self.tensor.push(part, LARGEST)?;
                match whole {
                    Some((name, tensor)) => Some(TurnEvent::Captured(name, (&tensor).try_into()?)),
                    None => None,
                }
            }
            Some(What::Paused(paused)) => Some(TurnEvent::Paused(paused)),
            Some(What::Finished(finished)) => Some(TurnEvent::Finished(finished)),
            Some(What::Opened(_)) => return Err(senseless("a session that begins twice")),
            // Something that this client does not know yet.
            None => None,
        })
    }
}

impl Stream for EventStream {
    type Item = Result<TurnEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            let taken = match ready!(Pin::new(&mut self.stream).poll_next(context)) {
                Some(Ok(event)) => self.take(event),
                Some(Err(status)) => Err(status.into()),
                None => Err(Error::new(
                    ErrorCode::Unavailable,
                    "the server said no more",
                )),
            };
            self.is_over = matches!(
                taken,
                Err(_) | Ok(Some(TurnEvent::Paused(_) | TurnEvent::Finished(_)))
            );
            if let Some(event) = taken.transpose() {
                return Poll::Ready(Some(event));
            }
        }
    }
}

fn senseless(what: &str) -> Error {
    Error::new(ErrorCode::Internal, format!("the server tells of {what}"))
}

/// A turn, all of it.
#[derive(Clone, Debug)]
pub struct TurnOutput {
    /// What was said first.
    pub opened: v1::Opened,
    /// What was generated.
    pub tokens: Vec<u32>,
    /// As text.
    pub text: String,
    /// Each token and its alternatives, where they were asked for.
    pub logprobs: Vec<Vec<v1::Logprob>>,
    /// What was read, by hook.
    pub captured: BTreeMap<String, TensorData>,
    /// How it ended.
    pub end: Option<TurnEnd>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEnd {
    /// At a breakpoint.
    Paused(v1::Paused),
    /// As turns do.
    Finished(v1::Finished),
}

impl TurnOutput {
    /// Nothing has happened yet.
    pub fn new(opened: v1::Opened) -> Self {
        TurnOutput {
            opened,
            tokens: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            captured: BTreeMap::new(),
            end: None,
        }
    }

    /// Adds what happened.
    pub fn take(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Token(token) => {
                self.tokens.push(token.id);
                self.text += &token.text;
                if !token.logprobs.is_empty() {
                    self.logprobs.push(token.logprobs);
                }
            }
            TurnEvent::Captured(name, tensor) => drop(self.captured.insert(name, tensor)),
            TurnEvent::Paused(paused) => self.end = Some(TurnEnd::Paused(paused)),
            TurnEvent::Finished(finished) => {
                self.text += &finished.text;
                self.end = Some(TurnEnd::Finished(finished));
            }
        }
    }

    /// Where it stopped, if it did.
    pub fn paused(&self) -> Option<&v1::Paused> {
        match &self.end {
            Some(TurnEnd::Paused(paused)) => Some(paused),
            _ => None,
        }
    }

    /// How it finished, if it did.
    pub fn finished(&self) -> Option<&v1::Finished> {
        match &self.end {
            Some(TurnEnd::Finished(finished)) => Some(finished),
            _ => None,
        }
    }
}
