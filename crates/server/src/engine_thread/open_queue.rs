//! Requests that wait for a free session, fair between owners.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use djinn_engine::{CheckedRequest, SessionId};
use tokio::sync::{mpsc::UnboundedReceiver, oneshot};

use super::event::SessionEvent;
use crate::ServeError;

/// Share of the queue that one owner may fill, as a divisor.
const OWNER_SHARE: usize = 4;

/// Function that ends a session whose caller left before it learned of the session.
pub type AbandonSession = Arc<dyn Fn(SessionId) + Send + Sync>;

/// A session that was opened for a request, with its events. Dropping this value ends the session.
pub struct OpenedSession {
    id: SessionId,
    events: Option<UnboundedReceiver<SessionEvent>>,
    abandon: AbandonSession,
}

impl OpenedSession {
    /// Creates the handle of a new session.
    pub fn new(
        id: SessionId,
        events: UnboundedReceiver<SessionEvent>,
        abandon: &AbandonSession,
    ) -> Self {
        OpenedSession {
            id,
            events: Some(events),
            abandon: Arc::clone(abandon),
        }
    }

    /// Hands the session to its caller, who ends it from now on.
    pub fn take(mut self) -> Option<(SessionId, UnboundedReceiver<SessionEvent>)> {
        Some((self.id, self.events.take()?))
    }
}

impl Drop for OpenedSession {
    fn drop(&mut self) {
        if self.events.take().is_some() {
            (self.abandon)(self.id);
        }
    }
}

/// A request to open sessions: all of them, or none.
pub struct OpenRequest {
    /// Owner of the sessions.
    pub owner: String,
    /// One request for each session.
    pub requests: Vec<CheckedRequest>,
    /// Ends sessions whose caller left.
    pub abandon: AbandonSession,
    /// Receives the sessions once they are open.
    pub reply: oneshot::Sender<Result<Vec<OpenedSession>, ServeError>>,
}

/// Requests that wait until sessions of others end. Owners take turns.
#[derive(Default)]
pub struct OpenQueue {
    owners: BTreeMap<String, VecDeque<OpenRequest>>,
    /// Owners with requests, in the order of their turns.
    turns: VecDeque<String>,
    length: usize,
}

impl OpenQueue {
    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether a queue of at most `limit` requests has room for another request of an owner. Requests whose
    /// callers left do not count.
    pub fn has_room(&mut self, owner: &str, limit: usize) -> bool {
        self.remove_abandoned();
        let own = self.owners.get(owner).map_or(0, VecDeque::len);
        self.length < limit && own < (limit / OWNER_SHARE).max(1)
    }

    /// Adds a request behind the other requests of its owner.
    pub fn push(&mut self, request: OpenRequest) {
        let owner = request.owner.clone();
        let own = self.owners.entry(owner.clone()).or_default();
        own.push_back(request);
        self.length += 1;
        if own.len() == 1 {
            self.turns.push_back(owner);
        }
    }

    /// Whether an owner has requests that wait.
    pub fn has_requests_of(&self, owner: &str) -> bool {
        self.owners.contains_key(owner)
    }

    /// Number of owners with requests that wait.
    pub fn owners(&self) -> usize {
        self.turns.len()
    }

    /// Takes the first request of the owner whose turn it is.
    pub fn pop(&mut self) -> Option<OpenRequest> {
        let owner = self.turns.pop_front()?;
        let own = self.owners.get_mut(&owner)?;
        let request = own.pop_front()?;
        self.length -= 1;
        match own.is_empty() {
            true => drop(self.owners.remove(&owner)),
            false => self.turns.push_back(owner),
        }
        Some(request)
    }

    /// Puts a request back before the other requests of its owner. Its owner's turn comes last.
    pub fn put_back(&mut self, request: OpenRequest) {
        let owner = request.owner.clone();
        self.owners
            .entry(owner.clone())
            .or_default()
            .push_front(request);
        self.length += 1;
        if !self.turns.contains(&owner) {
            self.turns.push_back(owner);
        }
    }

    fn remove_abandoned(&mut self) {
        for own in self.owners.values_mut() {
            own.retain(|request| !request.reply.is_closed());
        }
        self.owners.retain(|_, own| !own.is_empty());
        self.turns.retain(|owner| self.owners.contains_key(owner));
        self.length = self.owners.values().map(VecDeque::len).sum();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::{OpenQueue, OpenRequest, OpenedSession};
    use crate::ServeError;

    type Replied = oneshot::Receiver<Result<Vec<OpenedSession>, ServeError>>;

    fn request(owner: &str) -> (OpenRequest, Replied) {
        let (reply, replied) = oneshot::channel();
        let request = OpenRequest {
            owner: owner.to_owned(),
            requests: Vec::new(),
            abandon: Arc::new(|_| {}),
            reply,
        };
        (request, replied)
    }

    #[test]
    fn owners_take_turns() {
        let mut queue = OpenQueue::default();
        let mut replies = Vec::new();
        for owner in ["ada", "ada", "ada", "bert"] {
            let (one, replied) = request(owner);
            queue.push(one);
            replies.push(replied);
        }
        let first = queue.pop().unwrap();
        assert_eq!(first.owner, "ada");
        queue.put_back(first);
        let order: Vec<String> = std::iter::from_fn(|| queue.pop().map(|one| one.owner)).collect();
        assert_eq!(order, ["bert", "ada", "ada", "ada"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_queue_is_bounded_and_forgets_callers_that_left() {
        let mut queue = OpenQueue::default();
        let mut replies = Vec::new();
        for _ in 0..2 {
            assert!(queue.has_room("ada", 8));
            let (one, replied) = request("ada");
            queue.push(one);
            replies.push(replied);
        }
        assert!(!queue.has_room("ada", 8), "a quarter of the queue is full");
        assert!(queue.has_room("bert", 8));
        replies.clear();
        assert!(queue.has_room("ada", 8));
        assert!(queue.is_empty() && !queue.has_requests_of("ada"));
    }
}
