//! Heartbeat of an engine thread: how long its current pass, job or swap has been running.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Factor by which a pass may exceed the longest one so far before the thread counts as stalled.
const PATIENCE: u32 = 8;
/// Shortest time without progress after which a swap counts as stalled. The KV pages of a model leave the
/// device in one step.
const SWAP_STALL: Duration = Duration::from_secs(120);

/// Clock that an engine thread sets and that other threads read without waiting.
pub struct Heartbeat {
    created: Instant,
    /// Microseconds from the creation to the beginning of the current work, plus one; 0 between two works.
    since: AtomicU64,
    /// Microseconds of the longest pass so far.
    longest: AtomicU64,
    /// Whether the current work is a swap.
    is_swap: AtomicBool,
}

impl Heartbeat {
    /// Creates the heartbeat of a thread that does nothing yet.
    pub fn new() -> Self {
        Heartbeat {
            created: Instant::now(),
            since: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            is_swap: AtomicBool::new(false),
        }
    }

    /// Marks the beginning of a pass or a job.
    pub fn begin(&self) {
        let since = self.created.elapsed().as_micros() as u64 + 1;
        self.since.store(since, Ordering::Release);
    }

    /// Marks the beginning of a swap, or progress of one.
    pub fn begin_swap(&self) {
        self.is_swap.store(true, Ordering::Release);
        self.begin();
    }

    /// Marks the end of a job or a swap.
    pub fn end(&self) {
        self.since.store(0, Ordering::Release);
        self.is_swap.store(false, Ordering::Release);
    }

    /// Whether the thread swaps its model, and made progress within `limit`.
    pub fn is_swapping(&self, limit: Duration) -> bool {
        self.is_swap.load(Ordering::Acquire) && self.busy_for() <= limit
    }

    /// Marks the end of a pass and returns its duration.
    pub fn end_pass(&self) -> Duration {
        let took = self.busy_for();
        self.longest
            .fetch_max(took.as_micros() as u64, Ordering::AcqRel);
        self.end();
        took
    }

    /// Time since the beginning of the current pass or job, or since the last progress of a swap; zero between
    /// two.
    pub fn busy_for(&self) -> Duration {
        match self.since.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => {
                let began = Duration::from_micros(since - 1);
                self.created.elapsed().saturating_sub(began)
            }
        }
    }

    /// Whether the current pass or job has run for longer than `limit` and much longer than any pass before,
    /// or a swap has made no progress for a long time.
    pub fn is_stalled(&self, limit: Duration) -> bool {
        let longest = Duration::from_micros(self.longest.load(Ordering::Acquire));
        let least = match self.is_swap.load(Ordering::Acquire) {
            true => SWAP_STALL,
            false => longest * PATIENCE,
        };
        self.busy_for() > limit.max(least)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::Ordering,
        thread::sleep,
        time::{Duration, Instant},
    };

    use super::{Heartbeat, SWAP_STALL};

    #[test]
    fn a_swap_stalls_only_without_progress() {
        let mut heartbeat = Heartbeat::new();
        heartbeat.begin_swap();
        assert!(
            !heartbeat.is_stalled(Duration::ZERO),
            "swaps have a limit of their own"
        );
        let long_ago = Instant::now().checked_sub(2 * SWAP_STALL);
        heartbeat.created = long_ago.expect("the machine runs for longer");
        assert!(heartbeat.is_stalled(Duration::ZERO));
        assert!(!heartbeat.is_swapping(SWAP_STALL));
        heartbeat.begin_swap();
        assert!(!heartbeat.is_stalled(Duration::ZERO), "it made progress");
        assert!(heartbeat.is_swapping(SWAP_STALL));
        heartbeat.end();
        assert!(!heartbeat.is_swapping(SWAP_STALL));
    }

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
