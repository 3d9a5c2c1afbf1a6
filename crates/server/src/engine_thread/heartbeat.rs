//! Heartbeat of an engine thread: how long its current pass or job has been running.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Factor by which a pass may exceed the longest one so far before the thread counts as stalled.
const PATIENCE: u32 = 8;

/// Clock that an engine thread sets and that other threads read without waiting.
pub struct Heartbeat {
    created: Instant,
    /// Microseconds from the creation to the beginning of the current work, plus one; 0 between two works.
    since: AtomicU64,
    /// Microseconds of the longest pass so far.
    longest: AtomicU64,
}

impl Heartbeat {
    /// Creates the heartbeat of a thread that does nothing yet.
    pub fn new() -> Self {
        Heartbeat {
            created: Instant::now(),
            since: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Marks the beginning of a pass or a job.
    pub fn begin(&self) {
        let since = self.created.elapsed().as_micros() as u64 + 1;
        self.since.store(since, Ordering::Release);
    }

    /// Marks the end of a job.
    pub fn end(&self) {
        self.since.store(0, Ordering::Release);
    }

    /// Marks the end of a pass and returns its duration.
    pub fn end_pass(&self) -> Duration {
        let took = self.busy_for();
        self.longest
            .fetch_max(took.as_micros() as u64, Ordering::AcqRel);
        self.end();
        took
    }

    /// Time since the beginning of the current pass or job; zero between two.
    pub fn busy_for(&self) -> Duration {
        match self.since.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => {
                let began = Duration::from_micros(since - 1);
                self.created.elapsed().saturating_sub(began)
            }
        }
    }

    /// Whether the current pass or job has run for longer than `limit` and much longer than any pass before.
    pub fn is_stalled(&self, limit: Duration) -> bool {
        let longest = Duration::from_micros(self.longest.load(Ordering::Acquire));
        self.busy_for() > limit.max(longest * PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, thread::sleep, time::Duration};

    use super::Heartbeat;

    #[test]
    fn work_stalls_after_the_limit_and_far_beyond_earlier_passes() {
        let heartbeat = Heartbeat::new();
        assert!(!heartbeat.is_stalled(Duration::ZERO), "idle");
        heartbeat.begin();
        sleep(Duration::from_millis(5));
        assert!(heartbeat.is_stalled(Duration::from_millis(1)));
        assert!(!heartbeat.is_stalled(Duration::from_mins(1)));
        assert!(heartbeat.end_pass() >= Duration::from_millis(5));
        assert_eq!(heartbeat.busy_for(), Duration::ZERO);
        heartbeat.longest.store(60_000_000, Ordering::Release);
        heartbeat.begin();
        assert!(
            !heartbeat.is_stalled(Duration::ZERO),
            "a pass took longer before"
        );
    }
}
