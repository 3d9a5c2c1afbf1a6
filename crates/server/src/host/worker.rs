//! The thread that runs an engine: jobs between passes, and what passes give to whom.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use djinn_engine::{
    DuringPass, Engine, EngineError, Finish, KvUsage, Output, PagingStats, Request, SessionId,
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};

use super::{Job, Told};
use crate::{
    ServeError,
    metrics::{Latency, Metrics},
};

/// How often the engine looks after what time brings while nobody runs.
const NAP: Duration = Duration::from_millis(20);
/// The same where there are no sessions at all.
const SLEEP: Duration = Duration::from_secs(1);
/// Passes in a row that may fail before the model is given up.
const FAILURES: usize = 8;

/// An engine, who listens to its sessions, and what it has done.
pub struct Worker {
    /// The engine.
    pub engine: Engine,
    lives: HashMap<SessionId, Life>,
    sums: Sums,
    latency: Latency,
    failures: usize,
    closing: bool,
    stops: bool,
}

/// An owner says that it is away: its session's pages are to move at once, whatever computes meanwhile.
pub struct Signal {
    owner: String,
    id: SessionId,
    expected: Option<Instant>,
    came: Instant,
    answer: oneshot::Sender<Result<Duration, ServeError>>,
}

impl Signal {
    pub(super) fn new(
        owner: &str,
        id: SessionId,
        expected: Option<Instant>,
        came: Instant,
    ) -> (Self, oneshot::Receiver<Result<Duration, ServeError>>) {
        let (answer, answered) = oneshot::channel();
        let owner = owner.to_owned();
        let signal = Signal {
            owner,
            id,
            expected,
            came,
            answer,
        };
        (signal, answered)
    }

    fn tell(self, done: Result<(), EngineError>) {
        let _ = self
            .answer
            .send(done.map(|()| self.came.elapsed()).map_err(ServeError::from));
    }

    fn act(self, engine: &mut Engine) {
        let done = engine.as_owner(&self.owner).wait(self.id, self.expected);
        self.tell(done);
    }

    /// In the middle of a pass; gives itself back where its session is in it.
    fn act_meanwhile(self, engine: &mut DuringPass<'_>) -> Option<Self> {
        match engine.wait(&self.owner, self.id, self.expected) {
            Some(done) => {
                self.tell(done);
                None
            }
            None => Some(self),
        }
    }
}

/// What is kept of a session beside what the engine has.
struct Life {
    listener: Option<UnboundedSender<Told>>,
    /// Since when its next token is waited for, and whether there was one in this turn.
    since: Instant,
    is_first: bool,
    /// How its last turn ended.
    finish: Option<Finish>,
}

/// What passes came to.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    passes: u64,
    rows: u64,
    tokens: u64,
    busy_s: f64,
    link_bytes: u64,
    link_s: f64,
    stalled_s: f64,
    ended: u64,
}

/// How an engine stands.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Passes since it was loaded, rows in them, and tokens generated.
    pub passes: u64,
    /// Those.
    pub rows: u64,
    /// Those.
    pub tokens: u64,
    /// Seconds in which passes ran.
    pub busy_s: f64,
    /// Bytes of weights over the link, the seconds they were under way, and those that passes
    /// waited for them.
    pub link_bytes: u64,
    /// Those.
    pub link_s: f64,
    /// Those.
    pub stalled_s: f64,
    /// Sessions that are over.
    pub ended: u64,
    /// Pages of KV by tier.
    pub pages: KvUsage,
    /// What paging came to.
    pub paged: PagingStats,
    /// Sessions by state.
    pub sessions: BTreeMap<&'static str, u64>,
    /// Tokens that were not computed because another session had.
    pub adopted: u64,
}

impl Worker {
    pub(super) fn new(engine: Engine, model: &str, metrics: Arc<Metrics>) -> Self {
        // Sessions that were there before: nobody listens to them.
        let there = engine.list(None).into_iter();
        let lives = there.map(|session| (session.id, Life::new())).collect();
        Worker {
            engine,
            lives,
            sums: Sums::default(),
            latency: metrics.latency(model),
            failures: 0,
            closing: false,
            stops: false,
        }
    }

    /// Until it is told to stop.
    pub(super) fn run(
        &mut self,
        queue: &Receiver<Job>,
        signals: &Receiver<Signal>,
        waiting: &AtomicUsize,
    ) {
        while !self.stops {
            while let Ok(signal) = signals.try_recv() {
                signal.act(&mut self.engine);
            }
            match queue.try_recv() {
                Ok(job) => {
                    waiting.fetch_sub(1, Ordering::Relaxed);
                    job(self);
                    continue;
                }
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            if self.engine.is_idle() {
                let nap = match self.lives.is_empty() {
                    true => SLEEP,
                    false => NAP,
                };
                match queue.recv_timeout(nap) {
                    Ok(job) => {
                        waiting.fetch_sub(1, Ordering::Relaxed);
                        job(self);
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                for output in self.engine.tend(Instant::now()) {
                    self.tell(output);
                }
                continue;
            }
            self.pass(signals);
        }
    }

    /// One pass, and what it gave to whom.
    fn pass(&mut self, signals: &Receiver<Signal>) {
        let before = self.engine.passes();
        let mut later = Vec::new();
        let stepped = self.engine.step_with(&mut |engine| {
            if let Ok(signal) = signals.try_recv() {
                later.extend(signal.act_meanwhile(engine));
            }
            std::hint::spin_loop();
        });
        for signal in later {
            signal.act(&mut self.engine);
        }
        match stepped {
            Ok(outputs) => {
                self.failures = 0;
                if self.engine.passes() > before {
                    self.count();
                }
                for output in outputs {
                    self.tell(output);
                }
            }
            Err(error) => {
                tracing::error!(%error, "a pass failed: its sessions are over");
                self.failures += 1;
                self.tell_failed(&error.to_string());
                self.stops = self.failures >= FAILURES;
            }
        }
    }

    fn count(&mut self) {
        let Some(pass) = self.engine.last_pass() else {
            return;
        };
        self.sums.passes += 1;
        self.sums.rows += pass.rows as u64;
        self.sums.busy_s += pass.seconds;
        self.sums.link_bytes += pass.link_bytes;
        self.sums.link_s += pass.link_s;
        self.sums.stalled_s += pass.stall_s;
    }

    /// Whoever was in a pass that failed is over, and the engine does not say so again.
    fn tell_failed(&mut self, why: &str) {
        let is_over = |id: &SessionId| self.engine.state_of(*id) == Some("done");
        let over: Vec<SessionId> = self.lives.keys().copied().filter(is_over).collect();
        for session in over {
            self.tell(Output {
                session,
                index: 0,
                token: None,
                text: String::new(),
                logprobs: Vec::new(),
                finish: Some(Finish::Failed),
                failure: Some(why.to_owned()),
                turn: None,
                paused: None,
            });
        }
    }

    /// Tells a session's listener what a pass gave it.
    fn tell(&mut self, output: Output) {
        let id = output.session;
        let life = self.lives.entry(id).or_insert_with(Life::new);
        let mut text = output.text;
        if let Some(token) = output.token {
            self.sums.tokens += 1;
            let now = Instant::now();
            let seconds = (now - life.since).as_secs_f64();
            match std::mem::take(&mut life.is_first) {
                true => {
                    let came = output.turn.unwrap_or(now);
                    let queued = came.saturating_duration_since(life.since);
                    self.latency.queue.observe(queued.as_secs_f64());
                    self.latency.first.observe(seconds);
                }
                false => self.latency.next.observe(seconds),
            }
            life.since = now;
            life.send(Told::Token {
                token,
                text: std::mem::take(&mut text),
                index: output.index,
                logprobs: output.logprobs,
            });
        }
        if let Some(at) = output.paused {
            let took = life.since.elapsed();
            let captured = self.engine.take_captured(id).tensors();
            let shape = self.engine.activation_shape(id);
            life.send_all(captured);
            let shape = shape.unwrap_or_default();
            life.send(Told::Paused { at, shape, took });
            life.listener = None;
        } else if let Some(finish) = output.finish {
            let kept = self.engine.state_of(id) == Some("waiting");
            let captured = self.engine.take_captured(id).tensors();
            let generated = self.engine.generated(id);
            life.send_all(captured);
            life.send(Told::Finished {
                finish,
                failure: output.failure,
                text,
                generated,
                kept,
            });
            life.listener = None;
            life.finish = Some(finish);
            if !kept {
                self.end(id);
            }
        }
    }

    /// A session is over, and nothing of it is needed any more.
    fn end(&mut self, id: SessionId) {
        self.engine.close(id);
        self.lives.remove(&id);
        self.sums.ended += 1;
    }

    /// Opens a session and listens to it.
    pub fn open(
        &mut self,
        owner: &str,
        request: Request,
    ) -> Result<(SessionId, UnboundedReceiver<Told>), ServeError> {
        let since = Instant::now();
        let id = self.engine.as_owner(owner).open(request)?;
        Ok((id, self.listen(id, since)))
    }

    /// Listens to a session whose turn was asked for at `since`.
    pub fn listen(&mut self, id: SessionId, since: Instant) -> UnboundedReceiver<Told> {
        let told = self.follow(id);
        let life = self.lives.entry(id).or_insert_with(Life::new);
        (life.since, life.is_first) = (since, true);
        told
    }

    /// Listens to a session from now on, in place of whoever did.
    pub fn follow(&mut self, id: SessionId) -> UnboundedReceiver<Told> {
        let (listener, told) = unbounded_channel();
        let life = self.lives.entry(id).or_insert_with(Life::new);
        life.send(Told::Replaced);
        life.listener = Some(listener);
        told
    }

    /// Refuses a turn of so many tokens in which a session would read more than it may.
    pub fn check_captures(
        &mut self,
        owner: &str,
        id: SessionId,
        tokens: usize,
        limit: u64,
    ) -> Result<(), ServeError> {
        self.engine.as_owner(owner).renew(id)?;
        let bytes = self.engine.captured_bytes(id, tokens);
        check_captured(bytes, limit)
    }

    /// Notes a session that nobody listens to.
    pub fn adopt(&mut self, id: SessionId) {
        self.lives.entry(id).or_insert_with(Life::new);
    }

    /// How a session's last turn ended.
    pub fn last_finish(&self, id: SessionId) -> Option<Finish> {
        self.lives.get(&id)?.finish
    }

    /// Ends a session, whatever it does.
    pub fn close(&mut self, owner: &str, id: SessionId) -> Result<(), ServeError> {
        self.engine.as_owner(owner).close(id)?;
        if let Some(mut life) = self.lives.remove(&id) {
            life.send(Told::Replaced);
        }
        self.sums.ended += 1;
        Ok(())
    }

    /// Whoever listened to a session has left.
    pub(super) fn left(&mut self, id: SessionId, keep: bool) {
        let Some(life) = self.lives.get_mut(&id) else {
            return;
        };
        if life
            .listener
            .as_ref()
            .is_some_and(|listener| !listener.is_closed())
        {
            return;
        }
        life.listener = None;
        if !keep {
            self.end(id);
        }
    }

    /// Whether a turn is under way.
    pub fn is_busy(&self) -> bool {
        !self.engine.is_idle()
    }

    /// Whether it can be unloaded: nothing runs, and no session would be lost.
    pub fn can_go(&self, durable: bool) -> bool {
        !self.is_busy() && (durable || self.engine.list(None).is_empty())
    }

    /// Takes nothing new from now on: it is about to be unloaded.
    pub fn close_doors(&mut self) -> bool {
        self.closing = true;
        true
    }

    /// Whether it does.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    pub(super) fn stop(&mut self) {
        self.stops = true;
    }

    /// How it stands.
    pub fn snapshot(&mut self) -> Result<Snapshot, ServeError> {
        let mut sessions = BTreeMap::new();
        for session in self.engine.list(None) {
            *sessions.entry(session.state).or_insert(0) += 1;
        }
        let sums = self.sums;
        Ok(Snapshot {
            passes: sums.passes,
            rows: sums.rows,
            tokens: sums.tokens,
            busy_s: sums.busy_s,
            link_bytes: sums.link_bytes,
            link_s: sums.link_s,
            stalled_s: sums.stalled_s,
            ended: sums.ended,
            pages: self.engine.kv_usage(),
            paged: self.engine.paging_stats()?,
            sessions,
            adopted: self.engine.adopted() as u64,
        })
    }
}

/// Refuses to read more than there may be.
pub fn check_captured(bytes: u64, limit: u64) -> Result<(), ServeError> {
    match bytes > limit {
        true => Err(ServeError::TooLarge(format!(
            "captures of up to {bytes} bytes, of which {limit} are kept at most: read fewer positions, \
             parts of the width, or a reduction"
        ))),
        false => Ok(()),
    }
}

impl Life {
    fn new() -> Self {
        Life {
            listener: None,
            since: Instant::now(),
            is_first: true,
            finish: None,
        }
    }

    fn send(&mut self, told: Told) {
        if let Some(listener) = &self.listener {
            // Whoever has left says so by itself.
            let _ = listener.send(told);
        }
    }

    fn send_all(&mut self, captured: BTreeMap<String, djinn_engine::Tensor>) {
        for (name, tensor) in captured {
            self.send(Told::Captured(name, tensor));
        }
    }
}
