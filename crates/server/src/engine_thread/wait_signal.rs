//! Signal of a client that its session pauses for a while. The engine handles it even in the
//! middle of a pass.

use std::time::{Duration, Instant};

use djinn_engine::{DuringPass, Engine, EngineError, SessionId};
use tokio::sync::oneshot;

use crate::ServeError;

/// Request to move a session's KV pages out of device memory at once, even during a pass.
pub struct WaitSignal {
    owner: String,
    id: SessionId,
    /// Time at which the client expects to continue.
    expected: Option<Instant>,
    received: Instant,
    reply: oneshot::Sender<Result<Duration, ServeError>>,
}

impl WaitSignal {
    /// Creates a signal, and the receiver of its reaction time.
    pub fn new(
        owner: &str,
        id: SessionId,
        expected: Option<Instant>,
        received: Instant,
    ) -> (Self, oneshot::Receiver<Result<Duration, ServeError>>) {
        let (reply, replied) = oneshot::channel();
        let signal = WaitSignal {
            owner: owner.to_owned(),
            id,
            expected,
            received,
            reply,
        };
        (signal, replied)
    }

    /// Handles the signal between two passes.
    pub fn handle(self, engine: &mut Engine) {
        let done = engine
            .session(&self.owner, self.id)
            .and_then(|mut session| session.wait(self.expected));
        self.reply(done);
    }

    /// Handles the signal during a pass. Returns the signal if its session takes part in the
    /// pass.
    pub fn handle_in_pass(self, engine: &mut DuringPass<'_>) -> Option<Self> {
        match engine.wait(&self.owner, self.id, self.expected) {
            Some(done) => {
                self.reply(done);
                None
            }
            None => Some(self),
        }
    }

    fn reply(self, done: Result<(), EngineError>) {
        let reaction = done.map(|()| self.received.elapsed());
        let _ = self.reply.send(reaction.map_err(ServeError::from));
    }
}
