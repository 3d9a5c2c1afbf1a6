//! Loop of an engine thread: runs jobs between passes and publishes the outputs of each pass.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use djinn_engine::{Engine, Finish, Output, Request, SessionId, SessionStatus, Tensor};
use djinn_weights::{PassStats, Timeline};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{event::SessionEvent, subscriber::Subscriber, wait_signal::WaitSignal};
use crate::{
    ServeError,
    config::ServerLimits,
    metrics::{EngineSnapshot, Latency, Metrics, PassTotals},
};

/// Interval at which an idle engine checks deadlines and leases of its sessions.
const IDLE_POLL: Duration = Duration::from_millis(20);
/// Interval at which an engine without sessions wakes up.
const EMPTY_POLL: Duration = Duration::from_secs(1);
/// Number of consecutive failed passes after which the engine thread stops.
const FAILED_PASSES_MAX: usize = 8;

/// Largest number of passes in a record of statistics.
const RECORDED_PASSES_MAX: usize = 1 << 16;

/// A closure that runs on the engine thread between two passes.
pub type EngineJob = Box<dyn FnOnce(&mut Worker) + Send>;

/// State of an engine thread: the engine, the subscribers of its sessions, and counters.
pub struct Worker {
    /// Engine that the thread owns.
    pub engine: Engine,
    subscribers: HashMap<SessionId, Subscriber>,
    totals: PassTotals,
    latency: Latency,
    /// Number of consecutive failed passes.
    failed_passes: usize,
    is_closing: bool,
    stops: bool,
    /// Statistics of passes while a timeline is recorded.
    recorded: Option<Vec<PassStats>>,
}

impl Worker {
    /// Creates the state of a thread. Restored sessions have no subscriber.
    pub(super) fn new(engine: Engine, model: &str, metrics: &Metrics) -> Self {
        let restored = engine.list(None).into_iter();
        Worker {
            subscribers: restored
                .map(|session| (session.id, Subscriber::none()))
                .collect(),
            engine,
            totals: PassTotals::default(),
            latency: metrics.latency(model),
            failed_passes: 0,
            is_closing: false,
            stops: false,
            recorded: None,
        }
    }

    /// Begins to record a timeline and the statistics of passes.
    pub fn record(&mut self) {
        self.engine.record();
        self.recorded = Some(Vec::new());
    }

    /// Ends the record and returns it.
    pub fn end_record(&mut self) -> (Timeline, Vec<PassStats>) {
        let passes = self.recorded.take().unwrap_or_default();
        (self.engine.end_record(), passes)
    }

    /// Runs jobs and passes until the thread is stopped or every handle is dropped.
    pub(super) fn run(
        &mut self,
        queue: &Receiver<EngineJob>,
        signals: &Receiver<WaitSignal>,
        queued: &AtomicUsize,
    ) {
        while !self.stops {
            while let Ok(signal) = signals.try_recv() {
                signal.handle(&mut self.engine);
            }
            let next = match queue.try_recv() {
                Err(TryRecvError::Empty) if self.engine.is_idle() => {
                    queue.recv_timeout(self.idle_poll())
                }
                Err(TryRecvError::Empty) => {
                    self.pass(signals);
                    continue;
                }
                Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
                Ok(job) => Ok(job),
            };
            match next {
                Ok(job) => {
                    queued.fetch_sub(1, Ordering::Relaxed);
                    job(self);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    for output in self.engine.maintain(Instant::now()) {
                        self.publish(output);
                    }
                }
            }
        }
    }

    fn idle_poll(&self) -> Duration {
        match self.subscribers.is_empty() {
            true => EMPTY_POLL,
            false => IDLE_POLL,
        }
    }

    /// Runs one pass, handles wait signals meanwhile, and publishes the outputs.
    fn pass(&mut self, signals: &Receiver<WaitSignal>) {
        let passes_before = self.engine.passes();
        let mut deferred = Vec::new();
        let stepped = self.engine.step_with(&mut |engine| {
            if let Ok(signal) = signals.try_recv() {
                deferred.extend(signal.handle_in_pass(engine));
            }
            std::hint::spin_loop();
        });
        for signal in deferred {
            signal.handle(&mut self.engine);
        }
        match stepped {
            Ok(outputs) => {
                self.failed_passes = 0;
                if self.engine.passes() > passes_before
                    && let Some(pass) = self.engine.last_pass()
                {
                    self.totals.add(&pass);
                    if let Some(passes) = self.recorded.as_mut()
                        && passes.len() < RECORDED_PASSES_MAX
                    {
                        passes.push(pass);
                    }
                }
                for output in outputs {
                    self.publish(output);
                }
            }
            Err(error) => {
                tracing::error!(%error, "pass failed; its turns end");
                self.failed_passes += 1;
                for output in self.engine.maintain(Instant::now()) {
                    self.publish(output);
                }
                self.stops = self.failed_passes >= FAILED_PASSES_MAX;
            }
        }
    }

    /// Sends a session's output to its subscriber.
    fn publish(&mut self, output: Output) {
        let id = output.session;
        let subscriber = self.subscribers.entry(id).or_insert_with(Subscriber::none);
        let mut text = output.text;
        if let Some(token) = output.token {
            self.totals.tokens += 1;
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
            subscriber.send(SessionEvent::Finished {
                finish,
                failure: output.failure,
                text,
                generated: self
                    .engine
                    .view(id)
                    .map_or(0, |session| session.generated()),
                kept,
            });
            subscriber.disconnect();
            subscriber.finish = Some(finish);
            if !kept {
                self.end(id);
            }
        }
    }

    /// Closes a session and forgets its subscriber.
    fn end(&mut self, id: SessionId) {
        self.engine.close(id);
        self.subscribers.remove(&id);
        self.totals.ended += 1;
    }

    /// Opens a session and subscribes to it.
    pub fn open(
        &mut self,
        owner: &str,
        request: Request,
    ) -> Result<(SessionId, UnboundedReceiver<SessionEvent>), ServeError> {
        let since = Instant::now();
        let id = self.engine.open(Request {
            owner: owner.to_owned(),
            ..request
        })?;
        Ok((id, self.subscribe(id, since)))
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

    /// Closes a session in any state.
    pub fn close(&mut self, owner: &str, id: SessionId) -> Result<(), ServeError> {
        self.engine.session(owner, id)?.close();
        if let Some(mut subscriber) = self.subscribers.remove(&id) {
            subscriber.send(SessionEvent::Replaced);
        }
        self.totals.ended += 1;
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

    /// Whether a turn is running.
    pub fn is_busy(&self) -> bool {
        !self.engine.is_idle()
    }

    /// Whether the model can be unloaded: no turn is running, and no session would be lost.
    pub fn can_unload(&self, durable: bool) -> bool {
        !self.is_busy() && (durable || self.engine.list(None).is_empty())
    }

    /// Stops accepting jobs if the model can be unloaded. Returns whether it can.
    pub fn close_for_unload(&mut self, durable: bool) -> bool {
        self.is_closing = self.can_unload(durable);
        self.is_closing
    }

    /// Whether the model accepts no more jobs.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Stops the thread after the current job.
    pub(super) fn stop(&mut self) {
        self.stops = true;
    }

    /// Counters and gauges of the engine.
    pub fn snapshot(&mut self) -> Result<EngineSnapshot, ServeError> {
        let mut sessions = BTreeMap::new();
        for session in self.engine.list(None) {
            *sessions.entry(session.status.name()).or_insert(0) += 1;
        }
        Ok(EngineSnapshot {
            totals: self.totals,
            pages: self.engine.kv_usage(),
            paged: self.engine.paging_stats()?,
            sessions,
            adopted: self.engine.prefix_tokens_reused() as u64,
        })
    }
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
