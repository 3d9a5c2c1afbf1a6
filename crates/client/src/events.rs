//! Events of a session's turn.

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
    tensor::{TENSOR_BYTES_MAX, TensorData},
};

/// Event of a session's turn.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEvent {
    /// The session generated a token.
    Token(v1::Token),
    /// A complete capture: name of the hook, and the values there.
    Captured(String, TensorData),
    /// The session stopped at a breakpoint. No event follows.
    Paused(v1::Paused),
    /// The turn ended. No event follows.
    Finished(v1::Finished),
}

/// Stream of a turn's events. A stream that ends without [`TurnEvent::Paused`] or
/// [`TurnEvent::Finished`] returns an error.
#[derive(Debug)]
pub struct EventStream {
    session: SessionHandle,
    opened: v1::Opened,
    stream: Streaming<v1::Event>,
    tensor: Assembler,
    is_over: bool,
}

impl EventStream {
    /// Waits for the first message, which names the session.
    pub(crate) async fn open(
        client: Client,
        mut stream: Streaming<v1::Event>,
    ) -> Result<Self, Error> {
        let first = stream.message().await?.and_then(|event| event.what);
        let Some(What::Opened(opened)) = first else {
            return Err(protocol_error(
                "the first event of the stream does not name the session",
            ));
        };
        Ok(EventStream {
            session: SessionHandle::new(client, opened.session.clone()),
            opened,
            stream,
            tensor: Assembler::default(),
            is_over: false,
        })
    }

    /// Handle of the session.
    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// First event: tokens of the prompt, tokens generated before, and the seed.
    pub fn opened(&self) -> &v1::Opened {
        &self.opened
    }

    /// Waits for the next event. Returns `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, Error> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context))
            .await
            .transpose()
    }

    /// Collects all events up to the end of the turn.
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
                let whole = self.tensor.push(part, TENSOR_BYTES_MAX)?;
                match whole {
                    Some((name, tensor)) => Some(TurnEvent::Captured(name, (&tensor).try_into()?)),
                    None => None,
                }
            }
            Some(What::Paused(paused)) => Some(TurnEvent::Paused(paused)),
            Some(What::Finished(finished)) => Some(TurnEvent::Finished(finished)),
            Some(What::Opened(_)) => {
                return Err(protocol_error("the stream names the session twice"));
            }
            // A newer server may send events that this client does not know.
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
                    "The connection to the server ended before the turn did",
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

fn protocol_error(problem: &str) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("Unexpected reply of the server: {problem}"),
    )
}

/// Result of a whole turn.
#[derive(Clone, Debug)]
pub struct TurnOutput {
    /// First event of the turn.
    pub opened: v1::Opened,
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Generated text.
    pub text: String,
    /// Log-probabilities of each token and its alternatives, if requested.
    pub logprobs: Vec<Vec<v1::Logprob>>,
    /// Captures by hook.
    pub captured: BTreeMap<String, TensorData>,
    /// How the turn ended; `None` until it does.
    pub end: Option<TurnEnd>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEnd {
    /// The session stopped at a breakpoint.
    Paused(v1::Paused),
    /// The turn finished.
    Finished(v1::Finished),
}

impl TurnOutput {
    /// Creates the result of a turn without events.
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

    /// Adds an event.
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

    /// Breakpoint where the turn stopped, if it did.
    pub fn paused(&self) -> Option<&v1::Paused> {
        match &self.end {
            Some(TurnEnd::Paused(paused)) => Some(paused),
            _ => None,
        }
    }

    /// End of the turn, if it finished.
    pub fn finished(&self) -> Option<&v1::Finished> {
        match &self.end {
            Some(TurnEnd::Finished(finished)) => Some(finished),
            _ => None,
        }
    }
}
