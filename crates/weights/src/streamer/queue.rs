//! Who copies what, and when: the protocol between the link's workers and the pass.
//!
//! Chunks are handed out in two orders. *Demanded* ones come first: something waits
//! for them now. The others belong to the ring: piece after piece, pass after pass,
//! each as soon as the piece it overwrites is no longer in use. A *visit* is one use
//! of a piece, counted over all passes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use djinn_device::DeviceError;

use super::{
    copies::{Chunk, Copies},
    sync::{Condvar, Mutex, MutexGuard, wait, wait_for},
};

/// How long nothing may arrive while something is waited for. Disks that have to spin
/// up, and networks that come back, do so in less.
const PATIENCE: Duration = Duration::from_secs(120);

/// One piece of the ring.
#[derive(Clone, Debug)]
pub(crate) struct RingPiece {
    pub copies: Copies,
    /// It may arrive once the visit so many before it is no longer in use.
    pub after: u64,
}

/// Something demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Whose a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Demand(Ticket),
    Visit(u64),
}

/// A chunk a worker has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub chunk: Chunk,
    pub owner: Owner,
}

/// What the link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meter {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time in which something was under way.
    pub busy: Duration,
}

/// The state that workers and the pass share.
pub(crate) struct Queue {
    ring: Arc<[RingPiece]>,
    state: Mutex<State>,
    /// Something to copy, or to stop for: workers wait for this.
    work: Condvar,
    /// Something arrived or failed: the pass waits for this.
    news: Condvar,
}

struct State {
    demanded: VecDeque<(Ticket, Chunk)>,
    /// Chunks each ticket still waits for.
    tickets: BTreeMap<Ticket, usize>,
    next_ticket: u64,
    /// Whether the ring is filled ahead of its use.
    ahead: bool,
    /// The next chunk of the ring: of which visit, and which one.
    visit: u64,
    chunk: usize,
    /// Chunks of each piece of the ring that were handed out, or are yet to be, and have not
    /// arrived.
    missing: Vec<usize>,
    /// Visits that are no longer in use.
    done: u64,
    under_way: usize,
    failed: bool,
    failure: Option<DeviceError>,
    /// A copy did not come back in time; its place may yet be written.
    stuck: bool,
    stop: bool,
    meter: Meter,
    busy_since: Option<Instant>,
}

impl Queue {
    /// Nothing demanded, nothing of the ring under way.
    pub fn new(ring: Arc<[RingPiece]>) -> Self {
        assert!(
            ring.iter().all(|piece| piece.copies.len() > 0),
            "a piece has something to copy"
        );
        let state = State {
            demanded: VecDeque::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            ahead: false,
            visit: 0,
            chunk: 0,
            missing: vec![0; ring.len()],
            done: 0,
            under_way: 0,
            failed: false,
            failure: None,
            stuck: false,
            stop: false,
            meter: Meter::default(),
            busy_since: None,
        };
        Queue {
            ring,
            state: Mutex::new(state),
            work: Condvar::new(),
            news: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panicked did so outside: no state is changed while something can.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The next chunk to copy; waits for one. `None` when it is time to end.
    pub(super) fn claim(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(job) = state.next(&self.ring) {
                if state.under_way == 0 {
                    state.busy_since = Some(Instant::now());
                }
                state.under_way += 1;
                return Some(job);
            }
            state = wait(&self.work, state);
        }
    }

    /// Says how a copy went.
    pub(super) fn complete(&self, job: Job, result: Result<(), DeviceError>) {
        let mut state = self.lock();
        state.under_way -= 1;
        let idle = state.under_way == 0;
        if let Some(since) = state.busy_since.take_if(|_| idle) {
            state.meter.busy += since.elapsed();
        }
        let whole = match result {
            Ok(()) => {
                state.meter.bytes += job.chunk.to.bytes;
                state.arrived(job.owner)
            }
            Err(error) => {
                state.failed = true;
                state.failure.get_or_insert(error);
                true
            }
        };
        drop(state);
        // Whoever waits does so for a whole piece, for a failure, or for silence.
        if whole || idle {
            self.news.notify_all();
        }
    }

    /// Demands chunks ahead of everything that is not demanded.
    pub fn demand(&self, chunks: impl IntoIterator<Item = Chunk>) -> Ticket {
        let mut state = self.lock();
        let ticket = Ticket(state.next_ticket);
        state.next_ticket += 1;
        let before = state.demanded.len();
        state
            .demanded
            .extend(chunks.into_iter().map(|chunk| (ticket, chunk)));
        let count = state.demanded.len() - before;
        state.tickets.insert(ticket, count);
        drop(state);
        self.work.notify_all();
        ticket
    }

    /// Waits until all that was demanded has arrived.
    pub fn wait_for(&self, ticket: Ticket) -> Result<(), DeviceError> {
        let mut state = self.lock();
        loop {
            state.check()?;
            match state.tickets.get(&ticket) {
                Some(0) | None => break,
                Some(_) => state = self.wait_for_news(state),
            }
        }
        state.tickets.remove(&ticket);
        Ok(())
    }

    /// Waits for something to arrive or fail. Where nothing does for too long, that is
    /// a failure.
    fn wait_for_news<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let before = state.meter.bytes;
        let (mut state, late) = wait_for(&self.news, state, PATIENCE);
        if late && state.meter.bytes == before {
            let seconds = PATIENCE.as_secs();
            let reason = format!("nothing was read for {seconds} s: is the disk still there?");
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, reason);
            (state.failed, state.stuck) = (true, true);
            state.failure.get_or_insert(error.into());
        }
        state
    }

    /// Starts or stops filling the ring ahead of its use.
    pub fn run_ahead(&self, ahead: bool) {
        self.lock().ahead = ahead;
        self.work.notify_all();
    }

    /// Waits until a visit's piece has arrived.
    pub fn wait_for_visit(&self, visit: u64) -> Result<(), DeviceError> {
        let piece = visit as usize % self.ring.len();
        let mut state = self.lock();
        loop {
            state.check()?;
            if visit < state.visit && state.missing[piece] == 0 {
                return Ok(());
            }
            state = self.wait_for_news(state);
        }
    }

    /// Whether a visit's piece has arrived, without waiting.
    pub fn has_arrived(&self, visit: u64) -> bool {
        let state = self.lock();
        visit < state.visit && state.missing[visit as usize % self.ring.len()] == 0
    }

    /// Says that a visit's piece is no longer in use: its place may be overwritten.
    pub fn finish_visit(&self, visit: u64) {
        let mut state = self.lock();
        assert_eq!(state.done, visit, "visits end in order");
        assert!(visit < state.visit, "a visit ends after it began");
        state.done = visit + 1;
        drop(state);
        self.work.notify_all();
    }

    /// Passes over a visit that is not needed: not copied at all, unless that has
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

    /// Whether a copy has failed since the last restart.
    pub fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// Gives up everything under way, waits until nothing is, and is ready to begin
    /// again at a visit once it is told to run ahead. Where something does not come
    /// back it stays failed: its place might be written at any time.
    pub fn restart(&self, visit: u64) {
        let mut state = self.lock();
        state.ahead = false;
        state.demanded.clear();
        state.tickets.clear();
        while state.under_way > 0 {
            if state.stuck {
                return;
            }
            state = self.wait_for_news(state);
        }
        state.stuck = false;
        state.failed = false;
        state.failure = None;
        state.missing.fill(0);
        state.visit = visit;
        state.chunk = 0;
        state.done = visit;
    }

    /// Lets the workers end, and says whether they will.
    pub fn stop(&self) -> bool {
        let mut state = self.lock();
        state.stop = true;
        let all_come_back = !state.stuck;
        drop(state);
        self.work.notify_all();
        all_come_back
    }

    /// What was done so far.
    pub fn meter(&self) -> Meter {
        let state = self.lock();
        let mut meter = state.meter;
        if let Some(since) = state.busy_since {
            meter.busy += since.elapsed();
        }
        meter
    }

    /// Panics unless nothing is demanded and only the ring can be under way.
    pub fn check_integrity(&self) {
        let state = self.lock();
        assert!(state.demanded.is_empty() && state.tickets.is_empty());
        let count = self.ring.len() as u64;
        assert!(state.visit >= state.done && state.visit <= state.done + count);
    }
}

impl State {
    fn check(&mut self) -> Result<(), DeviceError> {
        if !self.failed {
            return Ok(());
        }
        // Told once in full; whoever asks again while it lasts is told that it does.
        let again = || std::io::Error::other("a read has still not come back").into();
        Err(self.failure.take().unwrap_or_else(again))
    }

    /// Counts a chunk, and says whether it was the last of its piece or ticket.
    fn arrived(&mut self, owner: Owner) -> bool {
        let left = match owner {
            Owner::Demand(ticket) => self.tickets.get_mut(&ticket),
            Owner::Visit(visit) => {
                let piece = visit as usize % self.missing.len();
                self.missing.get_mut(piece)
            }
        };
        // A ticket nobody waits for any more was given up.
        left.is_some_and(|left| {
            *left -= 1;
            *left == 0
        })
    }

    /// What may be copied now.
    fn next(&mut self, ring: &[RingPiece]) -> Option<Job> {
        if self.failed {
            return None;
        }
        if let Some((ticket, chunk)) = self.demanded.pop_front() {
            let owner = Owner::Demand(ticket);
            return Some(Job { chunk, owner });
        }
        if !self.ahead || ring.is_empty() {
            return None;
        }
        let number = self.visit as usize % ring.len();
        let piece = &ring[number];
        let free = self.visit < piece.after || self.visit - piece.after < self.done;
        if !free {
            return None;
        }
        let job = Job {
            chunk: piece.copies.chunk(self.chunk),
            owner: Owner::Visit(self.visit),
        };
        let count = piece.copies.len();
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
