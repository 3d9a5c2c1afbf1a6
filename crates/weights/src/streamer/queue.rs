//! Protocol between the link's workers and the pass.
//!
//! Workers claim chunks from two sources. *Requested* chunks come first, because a pass waits for
//! them now. All other chunks belong to the ring: piece after piece, pass after pass. A chunk of
//! the ring may be claimed as soon as the piece that it overwrites is out of use. A *visit* is
//! one use of a piece of the ring, counted over all passes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use djinn_device::DeviceError;
use djinn_model::Extent;

use crate::CopyOp;

use super::{
    sync::{Condvar, Mutex, MutexGuard, wait, wait_for},
    transfers::{ChunkedCopy, RingCopy},
};

/// Longest time without an arriving chunk while a pass waits. Disks spin up and networks recover
/// in less time.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Identifier of a request for chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Reason for the copy of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyReason {
    /// Request with this ticket.
    Request(Ticket),
    /// Visit of the ring.
    Visit(u64),
}

/// A chunk that a worker claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyJob {
    pub chunk: CopyOp<Extent>,
    pub reason: CopyReason,
}

/// Work of the link since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkMeter {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time in which at least one chunk was in flight.
    pub busy: Duration,
}

/// Queue of chunks that workers and the pass share.
pub(super) struct CopyQueue {
    state: Mutex<QueueState>,
    /// Signal to workers: a chunk may be claimed, or the queue stops.
    work: Condvar,
    /// Signal to the pass: a chunk arrived or failed.
    arrival: Condvar,
}

struct QueueState {
    ring: Arc<[RingCopy<ChunkedCopy>]>,
    requested: VecDeque<(Ticket, CopyOp<Extent>)>,
    /// Number of chunks that have not arrived, for each ticket.
    tickets: BTreeMap<Ticket, usize>,
    next_ticket: u64,
    /// Whether the ring is filled ahead of its use.
    prefetch: bool,
    /// Visit of the next chunk of the ring.
    visit: u64,
    /// Number, within its piece, of the next chunk of the ring.
    chunk: usize,
    /// Number of chunks of each piece of the ring that have not arrived in the current visit.
    missing: Vec<usize>,
    /// Number of visits that are over.
    done: u64,
    /// Number of chunks that workers are copying.
    in_flight: usize,
    failed: bool,
    /// Error of the failed copy, until it is reported.
    failure: Option<DeviceError>,
    /// Whether a copy did not return in time. Such a copy may still write to its destination.
    stuck: bool,
    stop: bool,
    meter: LinkMeter,
    busy_since: Option<Instant>,
}

impl CopyQueue {
    /// Creates a queue without requests that does not fill the ring yet.
    pub fn new(ring: Arc<[RingCopy<ChunkedCopy>]>) -> Self {
        check_ring(&ring);
        let state = QueueState {
            missing: vec![0; ring.len()],
            ring,
            requested: VecDeque::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            prefetch: false,
            visit: 0,
            chunk: 0,
            done: 0,
            in_flight: 0,
            failed: false,
            failure: None,
            stuck: false,
            stop: false,
            meter: LinkMeter::default(),
            busy_since: None,
        };
        CopyQueue {
            state: Mutex::new(state),
            work: Condvar::new(),
            arrival: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // The state is consistent even if a thread panicked, because no change of the state can
        // panic.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the next chunk to copy, and waits for one if necessary. Returns `None` when
    /// the queue stops.
    pub fn claim(&self) -> Option<CopyJob> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(job) = state.next() {
                if state.in_flight == 0 {
                    state.busy_since = Some(Instant::now());
                }
                state.in_flight += 1;
                return Some(job);
            }
            state = wait(&self.work, state);
        }
    }

    /// Reports the result of a copy.
    pub fn complete(&self, job: CopyJob, result: Result<(), DeviceError>) {
        let mut state = self.lock();
        state.in_flight -= 1;
        let idle = state.in_flight == 0;
        if let Some(since) = state.busy_since.take_if(|_| idle) {
            state.meter.busy += since.elapsed();
        }
        let whole = match result {
            Ok(()) => {
                state.meter.bytes += job.chunk.to.bytes;
                state.count_arrival(job.reason)
            }
            Err(error) => {
                state.failed = true;
                state.failure.get_or_insert(error);
                true
            }
        };
        drop(state);
        // A pass waits for a whole piece or a failure; a restart waits until the link is idle.
        if whole || idle {
            self.arrival.notify_all();
        }
    }

    /// Requests chunks. Requested chunks are copied before chunks of the ring.
    pub fn request(&self, chunks: impl IntoIterator<Item = CopyOp<Extent>>) -> Ticket {
        let mut state = self.lock();
        let ticket = Ticket(state.next_ticket);
        state.next_ticket += 1;
        let before = state.requested.len();
        state
            .requested
            .extend(chunks.into_iter().map(|chunk| (ticket, chunk)));
        let count = state.requested.len() - before;
        state.tickets.insert(ticket, count);
        drop(state);
        self.work.notify_all();
        ticket
    }

    /// Waits until all chunks of a request have arrived.
    pub fn wait_for(&self, ticket: Ticket) -> Result<(), DeviceError> {
        let mut state = self.lock();
        loop {
            state.check()?;
            match state.tickets.get(&ticket) {
                Some(0) | None => break,
                Some(_) => state = self.wait_for_arrival(state),
            }
        }
        state.tickets.remove(&ticket);
        Ok(())
    }

    /// Waits until a chunk arrives or fails. Counts a timeout as a failure.
    fn wait_for_arrival<'a>(
        &'a self,
        state: MutexGuard<'a, QueueState>,
    ) -> MutexGuard<'a, QueueState> {
        let before = state.meter.bytes;
        let (mut state, late) = wait_for(&self.arrival, state, READ_TIMEOUT);
        if late && state.meter.bytes == before {
            let seconds = READ_TIMEOUT.as_secs();
            let reason = format!(
                "reading weights timed out: no data for {seconds} s; check the disk or network \
                 that holds the model"
            );
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, reason);
            (state.failed, state.stuck) = (true, true);
            state.failure.get_or_insert(error.into());
        }
        state
    }

    /// Starts or stops filling the ring ahead of its use.
    pub fn set_prefetch(&self, prefetch: bool) {
        self.lock().prefetch = prefetch;
        self.work.notify_all();
    }

    /// Waits until the piece of a visit has arrived.
    pub fn wait_for_visit(&self, visit: u64) -> Result<(), DeviceError> {
        let mut state = self.lock();
        loop {
            state.check()?;
            if state.has_arrived(visit) {
                return Ok(());
            }
            state = self.wait_for_arrival(state);
        }
    }

    /// Whether the piece of a visit has arrived. Does not wait.
    pub fn has_arrived(&self, visit: u64) -> bool {
        self.lock().has_arrived(visit)
    }

    /// Ends a visit: its piece may be overwritten.
    pub fn finish_visit(&self, visit: u64) {
        let mut state = self.lock();
        assert_eq!(state.done, visit, "visits end in order");
        assert!(visit < state.visit, "a visit ends after it began");
        state.done = visit + 1;
        drop(state);
        self.work.notify_all();
    }

    /// Skips a visit that no operation needs. Its piece is not copied unless the copy has
    /// begun.
    pub fn skip_visit(&self, visit: u64) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if state.visit == visit && state.chunk == 0 {
            assert_eq!(state.done, visit, "visits end in order");
            state.visit = visit + 1;
            state.done = visit + 1;
            drop(state);
            self.work.notify_all();
            return Ok(());
        }
        drop(state);
        self.wait_for_visit(visit)?;
        self.finish_visit(visit);
        Ok(())
    }

    /// Fails if a copy failed since the last restart.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.lock().check()
    }

    /// Whether a copy failed since the last restart.
    pub fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// Drops all requests, waits until no chunk is in flight, and sets the next visit. Prefetch
    /// is off until [`CopyQueue::set_prefetch`]. If a read does not return, the queue stays
    /// failed, because that read may write to its destination at any time.
    pub fn restart(&self, visit: u64) {
        let mut state = self.lock();
        state.prefetch = false;
        state.requested.clear();
        state.tickets.clear();
        while state.in_flight > 0 {
            if state.stuck {
                return;
            }
            state = self.wait_for_arrival(state);
        }
        state.stuck = false;
        state.failed = false;
        state.failure = None;
        state.missing.fill(0);
        state.visit = visit;
        state.chunk = 0;
        state.done = visit;
    }

    /// Replaces the ring between two passes. Waits until no chunk is in flight; the new ring is
    /// empty, and its first visit is visit 0. Prefetch is off until [`CopyQueue::set_prefetch`].
    /// If a copy failed or does not return, the old ring stays.
    pub fn install(&self, ring: Arc<[RingCopy<ChunkedCopy>]>) -> Result<(), DeviceError> {
        check_ring(&ring);
        let mut state = self.lock();
        state.prefetch = false;
        while state.in_flight > 0 && !state.stuck {
            state = self.wait_for_arrival(state);
        }
        state.check()?;
        state.missing = vec![0; ring.len()];
        state.ring = ring;
        (state.visit, state.chunk, state.done) = (0, 0, 0);
        Ok(())
    }

    /// Stops the workers. Returns whether all threads will end.
    pub fn stop(&self) -> bool {
        let mut state = self.lock();
        state.stop = true;
        let all_end = !state.stuck;
        drop(state);
        self.work.notify_all();
        all_end
    }

    /// Returns the work of the link since the start.
    pub fn meter(&self) -> LinkMeter {
        let state = self.lock();
        let mut meter = state.meter;
        if let Some(since) = state.busy_since {
            meter.busy += since.elapsed();
        }
        meter
    }

    /// Panics unless no request is open and visits are in order.
    pub fn check_integrity(&self) {
        let state = self.lock();
        assert!(state.requested.is_empty() && state.tickets.is_empty());
        let count = state.ring.len() as u64;
        assert!(state.visit >= state.done && state.visit <= state.done + count);
    }
}

fn check_ring(ring: &[RingCopy<ChunkedCopy>]) {
    assert!(
        ring.iter().all(|visit| visit.copy.len() > 0),
        "a piece has at least one chunk"
    );
}

impl QueueState {
    /// Whether the piece of a visit has arrived.
    fn has_arrived(&self, visit: u64) -> bool {
        visit < self.visit && self.missing[visit as usize % self.ring.len()] == 0
    }

    /// Returns the failure: the error itself once, and a reminder in later calls.
    fn check(&mut self) -> Result<(), DeviceError> {
        if !self.failed {
            return Ok(());
        }
        let again = || {
            let reason = "reading weights failed before, and a read has still not returned; \
                          restart the server once the disk responds";
            std::io::Error::other(reason).into()
        };
        Err(self.failure.take().unwrap_or_else(again))
    }

    /// Counts a chunk. Returns whether it was the last of its piece or request.
    fn count_arrival(&mut self, reason: CopyReason) -> bool {
        let left = match reason {
            CopyReason::Request(ticket) => self.tickets.get_mut(&ticket),
            CopyReason::Visit(visit) => {
                let piece = visit as usize % self.missing.len();
                self.missing.get_mut(piece)
            }
        };
        // A missing ticket belongs to a request that a restart dropped.
        left.is_some_and(|left| {
            *left -= 1;
            *left == 0
        })
    }

    /// Returns the next chunk that may be copied now.
    fn next(&mut self) -> Option<CopyJob> {
        if self.failed {
            return None;
        }
        if let Some((ticket, chunk)) = self.requested.pop_front() {
            let reason = CopyReason::Request(ticket);
            return Some(CopyJob { chunk, reason });
        }
        if !self.prefetch || self.ring.is_empty() {
            return None;
        }
        let number = self.visit as usize % self.ring.len();
        let piece = &self.ring[number];
        let free = self.visit < piece.after || self.visit - piece.after < self.done;
        if !free {
            return None;
        }
        let job = CopyJob {
            chunk: piece.copy.chunk(self.chunk),
            reason: CopyReason::Visit(self.visit),
        };
        let count = piece.copy.len();
        if self.chunk == 0 {
            self.missing[number] = count;
        }
        self.chunk += 1;
        if self.chunk == count {
            self.visit += 1;
            self.chunk = 0;
        }
        Some(job)
    }
}
