//! The ring, filled ahead of the pass by a copy stream.
//!
//! A visit's piece may be copied once the visit so many before it (`after`) is no longer
//! in use. Here *no longer in use* is a point of the compute stream: the copy is put on
//! its stream as soon as that point is known, and waits there for it.

use std::collections::{BTreeMap, VecDeque};

use djinn_device::Event;

use super::{
    Result,
    copier::{Copied, Copier, Trip},
};

/// One piece of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingTrip {
    pub trip: Trip,
    /// It may arrive once the visit so many before it is no longer in use.
    pub after: u64,
}

/// Which visits were sent for, and where those before them ended.
pub(super) struct Ahead {
    ring: Vec<RingTrip>,
    /// The next visit to be sent for.
    next: u64,
    /// Visits that are no longer in use once the compute stream is so far.
    finished: u64,
    /// Where the last of them ended: as many as a copy may wait for.
    ends: VecDeque<Event>,
    /// Sent for and not yet in use.
    coming: BTreeMap<u64, Copied>,
}

impl Ahead {
    pub fn new(ring: Vec<RingTrip>) -> Self {
        Ahead {
            ring,
            next: 0,
            finished: 0,
            ends: VecDeque::new(),
            coming: BTreeMap::new(),
        }
    }

    /// Visits of a pass.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// What a visit of each pass copies.
    pub fn trip(&self, visit: usize) -> Trip {
        self.ring[visit].trip
    }

    /// Sends for every piece whose place is known to become free.
    pub fn run(&mut self, copier: &Copier) -> Result<()> {
        while let Some(&RingTrip { trip, after }) = self.next_piece() {
            let end = self
                .next
                .checked_sub(after)
                .and_then(|visit| self.end(visit));
            let copied = copier.send(trip, end)?;
            self.coming.insert(self.next, copied);
            self.next += 1;
        }
        Ok(())
    }

    fn next_piece(&self) -> Option<&RingTrip> {
        let count = self.ring.len() as u64;
        let piece = self.ring.get((self.next % count.max(1)) as usize)?;
        let free = self.next < piece.after || self.next - piece.after < self.finished;
        free.then_some(piece)
    }

    /// Where a visit ended; nothing where that was before everything was waited for.
    fn end(&self, visit: u64) -> Option<&Event> {
        let first = self.finished - self.ends.len() as u64;
        self.ends
            .get(usize::try_from(visit.checked_sub(first)?).ok()?)
    }

    /// The copy of a visit that is used next.
    pub fn take(&mut self, visit: u64) -> Copied {
        let copied = self.coming.remove(&visit);
        copied.expect("its place was free when the one before it ended")
    }

    /// A visit's last use, and all before it, is past where the compute stream is now.
    pub fn finish(&mut self, visit: u64, end: &Event) {
        assert_eq!(self.finished, visit, "visits end in order");
        self.finished = visit + 1;
        self.ends.push_back(end.clone());
        if self.ends.len() > self.ring.len() {
            self.ends.pop_front();
        }
    }

    /// Passes over all visits before this one: those not yet sent for are not copied.
    /// One that was is overwritten by a later copy, which comes after it by itself.
    pub fn skip_to(&mut self, visit: u64, end: &Event) {
        for skipped in self.finished..visit {
            self.coming.remove(&skipped);
            self.finish(skipped, end);
        }
        self.next = self.next.max(visit);
    }

    /// Begins again at a visit, with nothing under way.
    pub fn restart(&mut self, visit: u64) {
        (self.next, self.finished) = (visit, visit);
        self.ends.clear();
        self.coming.clear();
    }

    /// Panics unless what was sent for is what is not finished.
    pub fn check_integrity(&self) {
        assert!(self.coming.keys().copied().eq(self.finished..self.next));
        assert!(self.next - self.finished <= self.ring.len() as u64);
        assert!(self.ends.len() <= self.ring.len());
    }
}
