//! Event stream of one turn, as the request that started the turn reads it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use djinn_engine::SessionId;
use futures_util::Stream;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{event::SessionEvent, handle::LoadedModel};

/// Events of a session until its turn ends.
///
/// Dropping the stream early unsubscribes. A session that is not kept ends; a kept session
/// continues.
pub struct TurnStream {
    /// Model of the session.
    pub model: Arc<LoadedModel>,
    /// Session that the events belong to.
    pub id: SessionId,
    keep: bool,
    /// Whether the session is new and its client has not read any event yet.
    is_unread: bool,
    events: UnboundedReceiver<SessionEvent>,
    is_over: bool,
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
    ) -> Self {
        TurnStream {
            id,
            keep,
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
        }
    }

    /// Creates the stream of a new session. If the stream is dropped unread, the session ends,
    /// even a kept one, because its client never learned its name.
    pub fn of_new_session(
        model: Arc<LoadedModel>,
        id: SessionId,
        keep: bool,
        events: UnboundedReceiver<SessionEvent>,
    ) -> Self {
        let mut turn = TurnStream::new(model, id, keep, events);
        turn.is_unread = true;
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
        let event = self.events.poll_recv(context);
        if let Poll::Ready(event) = &event {
            self.tokens += u64::from(matches!(event, Some(SessionEvent::Token { .. })));
            self.is_over = event.as_ref().is_none_or(SessionEvent::is_last);
        }
        event
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
