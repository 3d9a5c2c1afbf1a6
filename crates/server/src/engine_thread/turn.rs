//! Event stream of one turn, as the request that started the turn reads it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use djinn_engine::SessionId;
use futures_util::Stream;
use tokio::{sync::mpsc::UnboundedReceiver, time::Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{event::SessionEvent, handle::LoadedModel};
use crate::{ServeError, context::RequestContext};

/// Time that the engine has to report the end of a session at its deadline, before the stream ends by itself.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

/// Events of a session until its turn ends, the request's deadline passes, or the server closes.
///
/// Dropping the stream early unsubscribes. A session that is not kept ends; a kept session
/// continues.
pub struct TurnStream {
    /// Model of the session.
    pub model: Arc<LoadedModel>,
    /// Session that the events belong to.
    pub id: SessionId,
    keep: bool,
    /// Whether the turn is the first one of its session.
    is_new: bool,
    /// Whether the session is new and its client has not read any event yet.
    is_unread: bool,
    events: UnboundedReceiver<SessionEvent>,
    is_over: bool,
    request: Arc<RequestContext>,
    deadline: Pin<Box<Sleep>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Trace span from the request of the turn to its end.
    span: tracing::Span,
    tokens: u64,
}

impl TurnStream {
    /// Creates the stream of an existing session.
    pub fn new(
        model: Arc<LoadedModel>,
        id: SessionId,
        keep: bool,
        events: UnboundedReceiver<SessionEvent>,
        request: &Arc<RequestContext>,
    ) -> Self {
        let deadline = tokio::time::sleep_until((request.deadline + DEADLINE_GRACE).into());
        TurnStream {
            id,
            keep,
            is_new: false,
            is_unread: false,
            span: tracing::info_span!(
                "turn",
                model = model.name,
                session = %id,
                tokens = tracing::field::Empty
            ),
            tokens: 0,
            model,
            events,
            is_over: false,
            request: Arc::clone(request),
            deadline: Box::pin(deadline),
            closing: Box::pin(request.closing.clone().cancelled_owned()),
        }
    }

    /// Creates the stream of a new session. If the stream is dropped unread, the session ends,
    /// even a kept one, because its client never learned its name.
    pub fn of_new_session(
        model: Arc<LoadedModel>,
        id: SessionId,
        keep: bool,
        events: UnboundedReceiver<SessionEvent>,
        request: &Arc<RequestContext>,
    ) -> Self {
        let mut turn = TurnStream::new(model, id, keep, events, request);
        (turn.is_new, turn.is_unread) = (true, true);
        turn
    }

    /// Waits for the next event. Returns `None` after the last event, or after the model stopped.
    pub async fn next(&mut self) -> Option<SessionEvent> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Whether the turn ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Error that ends the stream although its session has more events.
    fn interruption(&mut self, context: &mut Context<'_>) -> Option<ServeError> {
        if self.closing.as_mut().poll(context).is_ready() {
            let error = "The server is shutting down; a kept session continues after its restart";
            return Some(ServeError::unavailable(error));
        }
        if self.deadline.as_mut().poll(context).is_ready() {
            let error = "The request reached the server's time limit; a kept session continues";
            return Some(ServeError::Timeout(error.to_owned()));
        }
        None
    }
}

impl Stream for TurnStream {
    type Item = SessionEvent;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<SessionEvent>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.is_unread = false;
        match self.events.poll_recv(context) {
            Poll::Ready(event) => {
                match &event {
                    Some(SessionEvent::Token { .. }) => {
                        self.tokens += 1;
                        self.request.add_token();
                    }
                    Some(SessionEvent::Finished { cached, .. }) if self.is_new => {
                        self.request.add_cached_tokens(*cached);
                    }
                    _ => {}
                }
                self.is_over = event.as_ref().is_none_or(SessionEvent::is_last);
                Poll::Ready(event)
            }
            Poll::Pending => match self.interruption(context) {
                // The stream unsubscribes when it is dropped, so it is not over for its session.
                Some(error) => Poll::Ready(Some(SessionEvent::Interrupted(error))),
                None => Poll::Pending,
            },
        }
    }
}

impl Drop for TurnStream {
    fn drop(&mut self) {
        self.span.record("tokens", self.tokens);
        if self.is_over {
            return;
        }
        self.events.close();
        let (id, keep) = (self.id, self.keep && !self.is_unread);
        self.model
            .post(move |worker| worker.subscriber_left(id, keep));
    }
}
