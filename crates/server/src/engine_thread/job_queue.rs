//! Queue of jobs for an engine thread, fair between owners.
//!
//! Owners take turns. Between two passes each owner may use the thread for one slice of time; the time of
//! a longer job counts against the slices after it. An owner therefore delays the passes, and the jobs of
//! others, by one of its own jobs at most.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Time that one owner's jobs may take between two passes.
const SLICE: Duration = Duration::from_millis(2);
/// Share of the time of a pass that one owner's jobs may take after it, as a divisor.
const PASS_SHARE: u32 = 8;
/// Share of the queue that one owner may fill, as a divisor.
const OWNER_SHARE: usize = 4;

/// Owner of jobs that the server itself posts. These jobs run first and have no limits. No owner of a key
/// has this name, because names have no control characters.
pub const SERVER: &str = "\0";

/// Jobs that wait for an engine thread.
pub struct JobQueue<J> {
    state: Mutex<JobQueueState<J>>,
    arrived: Condvar,
    /// Largest number of jobs that may wait.
    limit: usize,
}

struct JobQueueState<J> {
    /// Jobs of the server.
    own: VecDeque<J>,
    /// Jobs of each owner that has any, or has used up its slice.
    owners: BTreeMap<String, OwnerJobs<J>>,
    /// Owners with jobs, in the order of their turns.
    turns: VecDeque<String>,
    queued: usize,
    is_closed: bool,
}

struct OwnerJobs<J> {
    jobs: VecDeque<J>,
    /// Time used beyond earlier slices.
    used: Duration,
}

impl<J> OwnerJobs<J> {
    fn new() -> Self {
        OwnerJobs {
            jobs: VecDeque::new(),
            used: Duration::ZERO,
        }
    }
}

/// A job to run now, and the owner that its time is charged to.
pub struct NextJob<J> {
    /// Owner of the job.
    pub owner: String,
    /// Job to run.
    pub job: J,
}

impl<J> JobQueue<J> {
    /// Creates a queue for at most `limit` jobs of owners.
    pub fn new(limit: usize) -> Self {
        JobQueue {
            state: Mutex::new(JobQueueState::new(false)),
            arrived: Condvar::new(),
            limit,
        }
    }

    fn state(&self) -> MutexGuard<'_, JobQueueState<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job of an owner. Returns whether there was room for it.
    pub fn push(&self, owner: &str, job: J) -> bool {
        let mut state = self.state();
        let of_owner = state.owners.get(owner).map_or(0, |own| own.jobs.len());
        let share = (self.limit / OWNER_SHARE).max(1);
        let fits = owner == SERVER || (state.queued < self.limit && of_owner < share);
        if state.is_closed || !fits {
            return false;
        }
        state.add(owner, job);
        self.arrived.notify_one();
        true
    }

    /// Adds a job without regard to the limits, for work that an owner's earlier job left behind.
    pub fn push_unlimited(&self, owner: &str, job: J) {
        let mut state = self.state();
        if !state.is_closed {
            state.add(owner, job);
            self.arrived.notify_one();
        }
    }

    /// Takes the next job whose owner has time left before the next pass.
    pub fn next(&self) -> Option<NextJob<J>> {
        self.state().next()
    }

    /// Charges the time of a job to its owner.
    pub fn charge(&self, owner: &str, time: Duration) {
        if owner != SERVER {
            let mut state = self.state();
            state
                .owners
                .entry(owner.to_owned())
                .or_insert_with(OwnerJobs::new)
                .used += time;
        }
    }

    /// Gives every owner its next slice, after a pass that took `pass`. An idle engine passes `None`: then
    /// no owner waits for another, and all may go on.
    pub fn next_slice(&self, pass: Option<Duration>) {
        let credit = match pass {
            Some(pass) => SLICE.max(pass / PASS_SHARE),
            None => Duration::MAX,
        };
        self.state().owners.retain(|_, own| {
            own.used = own.used.saturating_sub(credit);
            !own.jobs.is_empty() || own.used > Duration::ZERO
        });
    }

    /// Waits until a job arrives, the queue is closed, or the time is over. Returns whether jobs wait.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut state = self.state();
        while state.queued == 0 && !state.is_closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.queued > 0
    }

    /// Rejects further jobs. Jobs that wait still run.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_all();
    }

    /// Whether the queue accepts no more jobs and has none.
    pub fn is_over(&self) -> bool {
        let state = self.state();
        state.is_closed && state.queued == 0
    }

    /// Drops all jobs that wait, so that their callers learn that the thread has ended.
    pub fn clear(&self) {
        *self.state() = JobQueueState::new(true);
    }

    /// Number of jobs that wait.
    pub fn len(&self) -> usize {
        self.state().queued
    }
}

impl<J> JobQueueState<J> {
    fn new(is_closed: bool) -> Self {
        JobQueueState {
            own: VecDeque::new(),
            owners: BTreeMap::new(),
            turns: VecDeque::new(),
            queued: 0,
            is_closed,
        }
    }

    fn add(&mut self, owner: &str, job: J) {
        self.queued += 1;
        if owner == SERVER {
            return self.own.push_back(job);
        }
        let own = self
            .owners
            .entry(owner.to_owned())
            .or_insert_with(OwnerJobs::new);
        own.jobs.push_back(job);
        if own.jobs.len() == 1 {
            self.turns.push_back(owner.to_owned());
        }
    }

    fn next(&mut self) -> Option<NextJob<J>> {
        if let Some(job) = self.own.pop_front() {
            self.queued -= 1;
            let owner = SERVER.to_owned();
            return Some(NextJob { owner, job });
        }
        let has_time = |owner: &String| self.owners.get(owner).is_some_and(|own| own.used < SLICE);
        let turn = self.turns.iter().position(has_time)?;
        let owner = self.turns.remove(turn)?;
        let own = self.owners.get_mut(&owner)?;
        let job = own.jobs.pop_front()?;
        self.queued -= 1;
        if !own.jobs.is_empty() {
            self.turns.push_back(owner.clone());
        }
        Some(NextJob { owner, job })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{JobQueue, SERVER, SLICE};

    fn owners(queue: &JobQueue<()>, count: usize) -> Vec<String> {
        let next = || queue.next().map(|next| next.owner);
        (0..count).map_while(|_| next()).collect()
    }

    #[test]
    fn owners_take_turns_and_the_server_comes_first() {
        let queue = JobQueue::new(100);
        for _ in 0..3 {
            assert!(queue.push("ada", ()));
        }
        assert!(queue.push("bert", ()));
        assert!(queue.push(SERVER, ()));
        assert_eq!(owners(&queue, 9), [SERVER, "ada", "bert", "ada", "ada"]);
    }

    #[test]
    fn an_owner_that_used_its_slice_waits_for_passes() {
        let queue = JobQueue::new(100);
        for owner in ["ada", "ada", "bert", "bert"] {
            assert!(queue.push(owner, ()));
        }
        assert_eq!(owners(&queue, 1), ["ada"]);
        queue.charge("ada", 3 * SLICE);
        assert_eq!(owners(&queue, 9), ["bert", "bert"]);
        queue.next_slice(Some(Duration::ZERO));
        assert!(owners(&queue, 9).is_empty(), "two slices are still owed");
        queue.next_slice(Some(Duration::ZERO));
        queue.next_slice(Some(Duration::ZERO));
        assert_eq!(owners(&queue, 9), ["ada"]);
    }

    #[test]
    fn an_idle_engine_gives_every_owner_time() {
        let queue = JobQueue::new(100);
        assert!(queue.push("ada", ()));
        queue.charge("ada", 1000 * SLICE);
        assert!(owners(&queue, 9).is_empty());
        queue.next_slice(None);
        assert_eq!(owners(&queue, 9), ["ada"]);
    }

    #[test]
    fn one_owner_cannot_fill_the_queue() {
        let queue = JobQueue::new(8);
        let filled = (0..8).filter(|_| queue.push("ada", ()));
        assert_eq!(filled.count(), 2);
        assert!(queue.push("bert", ()));
        queue.close();
        assert!(!queue.push("bert", ()));
        assert_eq!(owners(&queue, 9).len(), 3);
        assert!(queue.is_over());
    }
}
