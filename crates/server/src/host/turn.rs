//! A turn of a session, as whoever asked for it follows it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use djinn_engine::SessionId;
use futures_util::Stream;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Host, Told};

/// What becomes of a session until its turn is over. Whoever drops it before has left: a session that
/// is not kept ends with it, and one that is goes on.
pub struct Turn {
    /// The model.
    pub host: Arc<Host>,
    /// The session.
    pub id: SessionId,
    keep: bool,
    /// Whether its session was just made, and nobody has heard of it yet.
    is_new: bool,
    told: UnboundedReceiver<Told>,
    is_over: bool,
    /// From when it was asked for to its end, where traces are kept.
    span: tracing::Span,
    tokens: u64,
}

impl Turn {
    /// Listens to a session.
    pub fn new(host: Arc<Host>, id: SessionId, keep: bool, told: UnboundedReceiver<Told>) -> Self {
        Turn {
            id,
            keep,
            is_new: false,
            span: tracing::info_span!(
                "turn",
                model = host.name,
                session = id.0,
                tokens = tracing::field::Empty
            ),
            tokens: 0,
            host,
            told,
            is_over: false,
        }
    }

    /// The same of a session that was just made: it ends with a turn that nobody ever followed.
    pub fn new_born(mut self) -> Self {
        self.is_new = true;
        self
    }

    /// What happens next; nothing after the last, or where the model is gone.
    pub async fn next(&mut self) -> Option<Told> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Told>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.is_new = false;
        let told = self.told.poll_recv(context);
        if let Poll::Ready(told) = &told {
            self.tokens += u64::from(matches!(told, Some(Told::Token { .. })));
            self.is_over = match told {
                Some(Told::Token { .. } | Told::Captured(..)) => false,
                Some(Told::Paused { .. } | Told::Finished { .. } | Told::Replaced) | None => true,
            };
        }
        told
    }

    /// Whether it came to its end.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Stream for Turn {
    type Item = Told;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Told>> {
        self.poll(context)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.span.record("tokens", self.tokens);
        if self.is_over {
            return;
        }
        self.told.close();
        let (id, keep) = (self.id, self.keep && !self.is_new);
        self.host.post(move |worker| worker.left(id, keep));
    }
}
