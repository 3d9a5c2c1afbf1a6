//! State of an engine thread that other threads read without waiting for it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use super::heartbeat::Heartbeat;
use crate::metrics::EngineSnapshot;

/// Heartbeat and last counters of an engine thread.
pub struct SharedState {
    /// Time that the current pass or job has taken so far.
    pub heartbeat: Heartbeat,
    is_alive: AtomicBool,
    is_busy: AtomicBool,
    is_swapped_out: AtomicBool,
    is_stopping: AtomicBool,
    /// Reason why the model cannot return to the device now, if it tried.
    return_failure: Mutex<Option<String>>,
    used: Mutex<Instant>,
    snapshot: Mutex<EngineSnapshot>,
}

impl SharedState {
    /// Creates the state of a thread that is about to start.
    pub fn new() -> Arc<Self> {
        Arc::new(SharedState {
            heartbeat: Heartbeat::new(),
            is_alive: AtomicBool::new(true),
            is_busy: AtomicBool::new(false),
            is_swapped_out: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            return_failure: Mutex::default(),
            used: Mutex::new(Instant::now()),
            snapshot: Mutex::default(),
        })
    }

    /// Whether the thread runs.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Records that the thread has ended.
    pub fn end(&self) {
        self.is_alive.store(false, Ordering::Release);
        self.heartbeat.end();
    }

    /// Whether a session has tokens to run.
    pub fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    /// Records whether a session has tokens to run.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Release);
    }

    /// Whether the model has given its device memory to others.
    pub fn is_swapped_out(&self) -> bool {
        self.is_swapped_out.load(Ordering::Acquire)
    }

    /// Records whether the model has given its device memory to others.
    pub fn set_swapped_out(&self, is_swapped_out: bool) {
        self.is_swapped_out.store(is_swapped_out, Ordering::Release);
    }

    /// Whether the thread has to end as soon as possible.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Lets the thread end as soon as possible.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Reason why the model cannot return to the device now, if it tried.
    pub fn return_failure(&self) -> Option<String> {
        let failure = self.return_failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records why the model cannot return to the device now.
    pub fn set_return_failure(&self, reason: Option<String>) {
        let failure = self.return_failure.lock();
        *failure.unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Records that a request uses the model.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Time of the last request that used the model.
    pub fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counters and gauges that the thread published last.
    pub fn snapshot(&self) -> EngineSnapshot {
        self.lock().clone()
    }

    /// Publishes counters and gauges.
    pub fn set_snapshot(&self, snapshot: EngineSnapshot) {
        *self.lock() = snapshot;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, EngineSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
