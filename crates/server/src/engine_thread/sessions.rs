//! Sessions of an engine thread: opened, subscribed to, published and closed.

use std::{collections::BTreeMap, time::Instant};

use djinn_engine::{
    Engine, EngineError, Finish, LimitKind, Output, SessionId, SessionStatus, Tensor,
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    event::SessionEvent,
    open_queue::{OpenRequest, OpenedSession},
    subscriber::Subscriber,
    worker::Worker,
};
use crate::{ServeError, config::ServerLimits, metrics::Latency};

impl Worker {
    /// Opens the sessions of a request, or lets the request wait until sessions of others end.
    pub(super) fn open_or_wait(&mut self, request: OpenRequest, limits: &ServerLimits) {
        let must_queue = self.waiting.has_requests_of(&request.owner);
        let refused = match must_queue {
            true => None,
            false => match self.open_all(&request) {
                Err(error) if is_shortage(&error) => Some(error),
                done => return drop(request.reply.send(done)),
            },
        };
        if let Some(error) = refused
            && !self.can_fit_later(&request, &error)
        {
            drop(request.reply.send(Err(error)));
        } else if self.waiting.has_room(&request.owner, limits.queue) {
            self.waiting.push(request);
        } else {
            let error = ServeError::busy("Too many requests wait for a session; retry later");
            drop(request.reply.send(Err(error)));
        }
    }

    /// Opens sessions for requests that wait, in turns of their owners, as far as there is room.
    pub(super) fn open_waiting(&mut self) {
        if !std::mem::take(&mut self.has_room) {
            return;
        }
        for _ in 0..self.waiting.owners() {
            let Some(request) = self.waiting.pop() else {
                return;
            };
            if request.reply.is_closed() {
                self.has_room = true;
                continue;
            }
            match self.open_all(&request) {
                Err(error) if is_shortage(&error) && self.can_fit_later(&request, &error) => {
                    self.waiting.put_back(request);
                }
                done => {
                    self.has_room = true;
                    // If the caller left meanwhile, the sessions are dropped here and end.
                    drop(request.reply.send(done));
                }
            }
        }
    }

    /// Opens a session for every request: all of them, or none.
    fn open_all(&mut self, open: &OpenRequest) -> Result<Vec<OpenedSession>, ServeError> {
        let mut opened = Vec::with_capacity(open.requests.len());
        for request in &open.requests {
            let since = Instant::now();
            let request = request.clone().with_owner(&open.owner);
            match self.engine.open_checked(request) {
                Ok(id) => opened.push((id, self.subscribe(id, since))),
                Err(error) => {
                    for (id, _) in opened {
                        self.end(id);
                    }
                    return Err(error.into());
                }
            }
        }
        let opened = opened.into_iter();
        let handle = |(id, events)| OpenedSession::new(id, events, &open.abandon);
        Ok(opened.map(handle).collect())
    }

    /// Whether a request that found no room may find room when sessions that run now have ended.
    fn can_fit_later(&self, request: &OpenRequest, error: &ServeError) -> bool {
        let of_owner_only = matches!(error, ServeError::Engine(EngineError::Quota { .. }));
        let limit = match error {
            ServeError::Engine(EngineError::Quota { limit, .. }) => *limit,
            _ => self.engine.blueprint().settings().open,
        };
        let runs = |status| matches!(status, SessionStatus::Ready | SessionStatus::Running);
        let owner = of_owner_only.then_some(request.owner.as_str());
        let running = self.engine.list(owner).into_iter();
        request.requests.len() <= limit
            && running.filter(|session| runs(session.status)).count() > 0
    }

    /// Sends a session's output to its subscriber.
    pub(super) fn publish(&mut self, output: Output) {
        let id = output.session;
        let subscriber = self.subscribers.entry(id).or_insert_with(Subscriber::none);
        let mut text = output.text;
        if let Some(token) = output.token {
            observe_latency(&self.latency, subscriber, output.scheduled);
            subscriber.send(SessionEvent::Token {
                token,
                text: std::mem::take(&mut text),
                index: output.index,
                logprobs: output.logprobs,
            });
        }
        if let Some(at) = output.paused {
            let took = subscriber.since.elapsed();
            subscriber.send_captures(take_captured(&mut self.engine, id));
            let shape = self
                .engine
                .view(id)
                .and_then(|session| session.activation_shape())
                .unwrap_or_default();
            subscriber.send(SessionEvent::Paused { at, shape, took });
            subscriber.disconnect();
        } else if let Some(finish) = output.finish {
            let session = self.engine.view(id);
            let kept = session.is_some_and(|session| session.status() != SessionStatus::Done);
            subscriber.send_captures(take_captured(&mut self.engine, id));
            let session = self.engine.view(id);
            subscriber.send(SessionEvent::Finished {
                finish,
                failure: output.failure,
                text,
                generated: session.map_or(0, |session| session.generated()),
                cached: session.map_or(0, |session| session.reused()),
                kept,
            });
            subscriber.disconnect();
            subscriber.finish = Some(finish);
            self.has_room = true;
            if !kept {
                self.end(id);
            }
        }
    }

    /// Closes a session and forgets its subscriber.
    pub(super) fn end(&mut self, id: SessionId) {
        self.engine.close(id);
        self.subscribers.remove(&id);
        self.totals.ended += 1;
        self.has_room = true;
    }

    /// Subscribes to a session in place of its current subscriber. `since` is the time of the
    /// turn's request.
    pub fn subscribe(&mut self, id: SessionId, since: Instant) -> UnboundedReceiver<SessionEvent> {
        let events = self.follow(id);
        let subscriber = self.subscriber(id);
        (subscriber.since, subscriber.is_first) = (since, true);
        events
    }

    /// Subscribes to a running turn, in place of its current subscriber.
    pub fn follow(&mut self, id: SessionId) -> UnboundedReceiver<SessionEvent> {
        self.subscriber(id).replace()
    }

    /// Registers a session that has no subscriber yet.
    pub fn adopt(&mut self, id: SessionId) {
        self.subscriber(id);
    }

    fn subscriber(&mut self, id: SessionId) -> &mut Subscriber {
        self.subscribers.entry(id).or_insert_with(Subscriber::none)
    }

    /// Returns an error if a turn of `tokens` tokens would capture more bytes than a session may.
    pub fn check_captures(
        &mut self,
        owner: &str,
        id: SessionId,
        tokens: usize,
        limits: &ServerLimits,
    ) -> Result<(), ServeError> {
        self.engine.session(owner, id)?.renew();
        limits.check_captured(
            self.engine
                .view(id)
                .map_or(0, |session| session.captured_bytes(tokens)),
        )
    }

    /// Reason for the end of a session's last turn.
    pub fn last_finish(&self, id: SessionId) -> Option<Finish> {
        self.subscribers.get(&id)?.finish
    }

    /// Closes a session in any state. `None` closes a session of any owner.
    pub fn close(&mut self, owner: Option<&str>, id: SessionId) -> Result<(), ServeError> {
        match owner {
            Some(owner) => self.engine.session(owner, id)?.close(),
            None => self.engine.any_session(id)?.close(),
        };
        if let Some(mut subscriber) = self.subscribers.remove(&id) {
            subscriber.send(SessionEvent::Replaced);
        }
        self.totals.ended += 1;
        self.has_room = true;
        Ok(())
    }

    /// Handles a subscriber that dropped its stream: a session that is not kept ends.
    pub(super) fn subscriber_left(&mut self, id: SessionId, keep: bool) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else {
            return;
        };
        if subscriber.is_listening() {
            return;
        }
        subscriber.disconnect();
        if !keep {
            self.end(id);
        }
    }
}

/// Whether an error says that the engine has no free session for its caller now.
fn is_shortage(error: &ServeError) -> bool {
    matches!(
        error,
        ServeError::Engine(
            EngineError::Quota { .. }
                | EngineError::FairShare { .. }
                | EngineError::Limit {
                    kind: LimitKind::Sessions | LimitKind::ProbeBytes,
                    ..
                }
        )
    )
}

/// Records the latency of a token. `began` is the time at which the turn left the queue.
fn observe_latency(latency: &Latency, subscriber: &mut Subscriber, began: Option<Instant>) {
    let now = Instant::now();
    let seconds = (now - subscriber.since).as_secs_f64();
    match std::mem::take(&mut subscriber.is_first) {
        true => {
            let queued = began
                .unwrap_or(now)
                .saturating_duration_since(subscriber.since);
            latency.queue.observe(queued.as_secs_f64());
            latency.first.observe(seconds);
        }
        false => latency.next.observe(seconds),
    }
    subscriber.since = now;
}

/// Takes the activations that a session has captured since the last call.
fn take_captured(engine: &mut Engine, id: SessionId) -> BTreeMap<String, Tensor> {
    let session = engine.any_session(id);
    let captured = session.map(|mut session| session.take_captured());
    captured
        .map(|captured| captured.tensors())
        .unwrap_or_default()
}
