//! Loop of an engine thread: runs jobs between passes and publishes the outputs of each pass.

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

use djinn_engine::{Engine, EngineError, Output, PagingStats, SavedPrefixes, SessionId};
use djinn_weights::{PassStats, Timeline};

use super::{
    job_queue::{JobQueue, NextJob},
    open_queue::OpenQueue,
    shared::SharedState,
    subscriber::Subscriber,
    swap_state::SwapState,
    wait_signal::WaitSignal,
};
use crate::{
    ServeError,
    device_pool::Reservation,
    fatal::FatalSignal,
    metrics::{EngineSnapshot, Latency, PassTotals},
};

/// Interval at which an idle engine checks deadlines and leases of its sessions.
const IDLE_POLL: Duration = Duration::from_millis(20);
/// Interval at which an engine without sessions wakes up.
const EMPTY_POLL: Duration = Duration::from_secs(1);
/// Number of consecutive failed passes after which the engine thread stops.
pub(super) const FAILED_PASSES_MAX: usize = 8;
/// Interval at which a busy thread publishes its counters.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);

/// Time that a thread may take to save cached pages when it ends.
const SAVE_TIME: Duration = Duration::from_secs(5);
/// Largest number of passes in a record of statistics.
const RECORDED_PASSES_MAX: usize = 1 << 16;

/// A closure that runs on the engine thread between two passes.
pub type EngineJob = Box<dyn FnOnce(&mut Worker) + Send>;

/// State of an engine thread: the engine, the subscribers of its sessions, and counters.
pub struct Worker {
    /// Engine that the thread owns.
    pub engine: Engine,
    /// Memory of the device that the engine holds, or waits for.
    pub(super) reservation: Reservation,
    /// State of the model's turns on the device.
    pub(super) swap: SwapState,
    pub(super) subscribers: HashMap<SessionId, Subscriber>,
    /// Requests that wait for a free session.
    pub(super) waiting: OpenQueue,
    /// Whether a session has ended since requests that wait were last tried.
    pub(super) has_room: bool,
    pub(super) totals: PassTotals,
    pub(super) latency: Latency,
    pub(super) shared: Arc<SharedState>,
    /// Raised when the device is lost.
    pub(super) fatal: FatalSignal,
    /// Time of the last published counters, and whether they have changed since.
    published: Instant,
    pub(super) has_news: bool,
    /// Traffic of KV pages, as last read.
    paged: PagingStats,
    /// Number of consecutive failed passes.
    pub(super) failed_passes: usize,
    is_closing: bool,
    /// Whether the engine may be inconsistent, or its device lost.
    has_failed: bool,
    pub(super) stops: bool,
    /// Statistics of passes while a timeline is recorded.
    recorded: Option<Vec<PassStats>>,
}

impl Worker {
    /// Creates the state of a thread. Restored sessions have no subscriber. A request waits `queue_wait` at
    /// most for the model to return to the device.
    pub(super) fn new(
        engine: Engine,
        reservation: Reservation,
        latency: Latency,
        shared: Arc<SharedState>,
        fatal: FatalSignal,
        queue_wait: Duration,
    ) -> Self {
        let restored = engine.list(None).into_iter();
        let subscribers = restored.map(|session| (session.id, Subscriber::none()));
        Worker {
            subscribers: subscribers.collect(),
            engine,
            reservation,
            swap: SwapState::new(queue_wait),
            waiting: OpenQueue::default(),
            has_room: false,
            totals: PassTotals::default(),
            latency,
            shared,
            fatal,
            published: Instant::now(),
            has_news: true,
            paged: PagingStats::default(),
            failed_passes: 0,
            is_closing: false,
            has_failed: false,
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
    pub(super) fn run(&mut self, jobs: &JobQueue<EngineJob>, signals: &Receiver<WaitSignal>) {
        self.publish_snapshot();
        while !self.stops && !jobs.is_over() {
            while let Ok(signal) = signals.try_recv() {
                signal.handle(&mut self.engine);
            }
            self.share_device();
            if let Some(next) = jobs.next() {
                self.run_job(next, jobs);
            } else if self.is_busy() {
                self.shared.set_busy(true);
                let took = self.pass(signals);
                jobs.next_slice(Some(took));
            } else {
                // A model that waits for its turn on the device is busy too.
                self.shared
                    .set_busy(self.engine.has_work() || !self.waiting.is_empty());
                jobs.next_slice(None);
                self.idle(jobs);
            }
            self.open_waiting();
            if self.has_news && self.published.elapsed() >= SNAPSHOT_INTERVAL {
                self.publish_snapshot();
            }
        }
    }

    /// Tells other threads that this thread ends.
    pub(super) fn announce_end(&self) {
        self.shared.end();
    }

    /// Saves cached pages of the model for the next process, unless the engine failed.
    pub(super) fn save_prefixes(&mut self, model: &str) {
        if self.has_failed {
            return;
        }
        match self.engine.save_prefixes(Instant::now() + SAVE_TIME) {
            Ok(SavedPrefixes { pages: 0, .. }) => {}
            Ok(saved) => {
                let (pages, bytes) = (saved.pages, saved.bytes);
                tracing::info!(model, pages, bytes, "prefix cache saved");
            }
            Err(error) => tracing::warn!(model, %error, "the prefix cache was not saved"),
        }
    }

    /// Runs a job. A job that panics fails alone, unless it leaves the engine inconsistent.
    fn run_job(&mut self, NextJob { owner, job }: NextJob<EngineJob>, jobs: &JobQueue<EngineJob>) {
        self.shared.heartbeat.begin();
        // The job may start a turn. The loop finds out before the thread is idle again.
        self.shared.set_busy(true);
        self.has_news = true;
        let start = Instant::now();
        let ran = catch_unwind(AssertUnwindSafe(|| job(self)));
        if ran.is_err() {
            let engine = &self.engine;
            let is_whole = catch_unwind(AssertUnwindSafe(|| engine.check_integrity())).is_ok();
            tracing::error!(owner, is_whole, "a job of the engine thread panicked");
            if !is_whole {
                self.stop_failed();
            }
        }
        jobs.charge(&owner, start.elapsed());
        self.shared.heartbeat.end();
    }

    /// Waits for jobs while no session can run, and applies deadlines and leases meanwhile.
    fn idle(&mut self, jobs: &JobQueue<EngineJob>) {
        if self.has_news {
            self.publish_snapshot();
        }
        let poll = match self.subscribers.is_empty() {
            true => EMPTY_POLL,
            false => IDLE_POLL,
        };
        if !jobs.wait(poll) {
            self.shared.heartbeat.begin();
            let split = self.engine.memory_split();
            let outputs = self.engine.maintain(Instant::now());
            // Weights may return while nothing runs.
            self.has_news |= !outputs.is_empty() || self.engine.memory_split() != split;
            self.publish_all(outputs);
            self.shared.heartbeat.end();
        }
    }

    /// Runs one pass, handles wait signals meanwhile, and publishes the outputs. Returns its duration.
    fn pass(&mut self, signals: &Receiver<WaitSignal>) -> Duration {
        self.shared.heartbeat.begin();
        self.has_news = true;
        let passes_before = self.engine.passes();
        let mut deferred = Vec::new();
        let engine = &mut self.engine;
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            engine.step_with(&mut |engine| {
                if let Ok(signal) = signals.try_recv() {
                    deferred.extend(signal.handle_in_pass(engine));
                }
                std::hint::spin_loop();
            })
        }));
        let Ok(stepped) = stepped else {
            // The sessions of the pass are gone from the engine's table; durable ones are in the log.
            tracing::error!("a pass panicked; the engine stops");
            self.stop_failed();
            return self.shared.heartbeat.end_pass();
        };
        for signal in deferred {
            signal.handle(&mut self.engine);
        }
        match stepped {
            Ok(outputs) => {
                self.failed_passes = 0;
                if self.engine.passes() > passes_before {
                    self.note_pass();
                }
                self.publish_all(outputs);
            }
            Err(error) => self.fail_pass(&error),
        }
        self.shared.heartbeat.end_pass()
    }

    /// Sends outputs to the subscribers. The counters come first, so that a client that has its answer finds
    /// its tokens in the metrics.
    fn publish_all(&mut self, outputs: Vec<Output>) {
        let tokens = outputs.iter().filter(|output| output.token.is_some());
        self.totals.tokens += tokens.count() as u64;
        if outputs.iter().any(|output| output.finish.is_some()) {
            self.publish_snapshot();
        }
        for output in outputs {
            self.has_news = true;
            self.publish(output);
        }
    }

    fn note_pass(&mut self) {
        let Some(pass) = self.engine.last_pass() else {
            return;
        };
        self.totals.add(&pass);
        if let Some(passes) = self.recorded.as_mut()
            && passes.len() < RECORDED_PASSES_MAX
        {
            passes.push(pass);
        }
    }

    /// Reports a failed pass to the subscribers of its sessions. If the device is lost, the whole process
    /// has to start again, because no later pass of this process can succeed.
    fn fail_pass(&mut self, error: &EngineError) {
        tracing::error!(%error, "pass failed; its turns end");
        self.failed_passes += 1;
        self.totals.failed += 1;
        let outputs = self.engine.maintain(Instant::now());
        self.publish_all(outputs);
        if error.is_fatal() {
            self.fatal.raise(format!("The device is lost: {error}"));
        }
        if error.is_fatal() || self.failed_passes >= FAILED_PASSES_MAX {
            self.stop_failed();
        }
    }

    /// Whether a turn can run on the device.
    pub fn is_busy(&self) -> bool {
        !self.engine.is_idle()
    }

    /// Whether the model can be unloaded: no turn is running, and no session would be lost.
    pub fn can_unload(&self, durable: bool) -> bool {
        !self.engine.has_work() && (durable || self.engine.list(None).is_empty())
    }

    /// Stops accepting jobs if the model can be unloaded. Returns whether it can.
    pub fn close_for_unload(&mut self, durable: bool) -> bool {
        self.is_closing = self.can_unload(durable);
        self.is_closing
    }

    /// Stops the thread because the engine may be inconsistent, or its device lost.
    pub(super) fn stop_failed(&mut self) {
        (self.stops, self.has_failed) = (true, true);
    }

    /// Stops the thread after the current job.
    pub(super) fn stop(&mut self) {
        self.stops = true;
    }

    /// Publishes the counters and gauges of the engine for threads that must not wait for it.
    fn publish_snapshot(&mut self) {
        let mut sessions = BTreeMap::new();
        for status in self.engine.statuses() {
            *sessions.entry(status.name()).or_insert(0) += 1;
        }
        // After an error of the device the last figures stay.
        let mut is_incomplete = false;
        if let Ok((paged, more)) = self.engine.paging_stats_so_far() {
            (self.paged, is_incomplete) = (paged, more);
        }
        self.shared.set_snapshot(EngineSnapshot {
            totals: self.totals,
            pages: self.engine.kv_usage(),
            paged: self.paged,
            split: self.engine.memory_split(),
            sessions,
            prefix: self.engine.prefix_cache_stats(),
            waiting: self.waiting.len() as u64,
            is_swapped_out: self.engine.is_swapped_out(),
        });
        (self.published, self.has_news) = (Instant::now(), is_incomplete);
    }

    /// Error of a caller whose job finds the model about to be unloaded.
    pub(super) fn check_open(&self) -> Result<(), ServeError> {
        match self.is_closing {
            true => Err(ServeError::unavailable(
                "The model is being unloaded; retry later",
            )),
            false => Ok(()),
        }
    }
}
