//! Per-session state of the engine thread: the subscriber's queue, and the clock of the current turn.

use std::{collections::BTreeMap, time::Instant};

use djinn_engine::{Finish, Tensor};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::event::SessionEvent;

/// Receiver of a session's events, and the timing of its current turn.
pub(super) struct Subscriber {
    events: Option<UnboundedSender<SessionEvent>>,
    /// Time of the turn's request, or of the turn's last token.
    pub since: Instant,
    /// Whether the turn has generated no token yet.
    pub is_first: bool,
    /// Reason for the end of the session's last turn.
    pub finish: Option<Finish>,
}

impl Subscriber {
    /// Creates the state of a session without a subscriber.
    pub fn none() -> Self {
        Subscriber {
            events: None,
            since: Instant::now(),
            is_first: true,
            finish: None,
        }
    }

    /// Replaces the subscriber, if any, with a new one.
    pub fn replace(&mut self) -> UnboundedReceiver<SessionEvent> {
        let (events, received) = unbounded_channel();
        self.send(SessionEvent::Replaced);
        self.events = Some(events);
        received
    }

    /// Sends an event. A subscriber that left has posted its own job, so this call ignores
    /// errors.
    pub fn send(&mut self, event: SessionEvent) {
        if let Some(events) = &self.events {
            let _ = events.send(event);
        }
    }

    /// Sends the captures of a turn, one event each.
    pub fn send_captures(&mut self, captures: BTreeMap<String, Tensor>) {
        for (name, tensor) in captures {
            self.send(SessionEvent::Captured(name, tensor));
        }
    }

    /// Whether a subscriber still receives events.
    pub fn is_listening(&self) -> bool {
        self.events
            .as_ref()
            .is_some_and(|events| !events.is_closed())
    }

    /// Drops the subscriber's queue.
    pub fn disconnect(&mut self) {
        self.events = None;
    }
}
