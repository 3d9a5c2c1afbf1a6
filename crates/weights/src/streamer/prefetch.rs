//! The ring, filled ahead of the pass by a copy stream.
//!
//! A visit's piece may be copied once the visit so many before it (`after`) is no longer
//! in use. Here *no longer in use* is a point of the compute stream: the copy is put on
//! its stream as soon as that point is known, and waits there for it.

use std::collections::{BTreeMap, VecDeque};

use super::{Result, copier::Trip};

/// One piece of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingTrip {
    pub trip: Trip,
    /// It may arrive once the visit so many before it is no longer in use.
    pub after: u64,
}

/// Which visits were sent for, and where those before them ended: `E` is a point of the
/// compute stream, `C` a copy that was put on its own.
pub(super) struct Prefetcher<E, C> {
    ring: Vec<RingTrip>,
    /// The next visit to be sent for.
    next: u64,
    /// Visits that are no longer in use once the compute stream is so far.
    finished: u64,
    /// Where the last of them ended: as many as a copy may wait for.
    ends: VecDeque<E>,
    /// Sent for and not yet in use.
    coming: BTreeMap<u64, C>,
}

impl<E: Clone, C> Prefetcher<E, C> {
    pub fn new(ring: Vec<RingTrip>) -> Self {
        Prefetcher {
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
    pub fn run(&mut self, mut send: impl FnMut(Trip, Option<&E>) -> Result<C>) -> Result<()> {
        while let Some(&RingTrip { trip, after }) = self.next_piece() {
            let before = self.next.checked_sub(after);
            let copied = send(trip, before.and_then(|visit| self.end(visit)))?;
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
    fn end(&self, visit: u64) -> Option<&E> {
        let first = self.finished - self.ends.len() as u64;
        self.ends
            .get(usize::try_from(visit.checked_sub(first)?).ok()?)
    }

    /// The copy of a visit that is used next.
    pub fn take(&mut self, visit: u64) -> C {
        let copied = self.coming.remove(&visit);
        copied.expect("its place was free when the one before it ended")
    }

    /// A visit's last use, and all before it, is past where the compute stream is now.
    pub fn finish(&mut self, visit: u64, end: &E) {
        assert_eq!(self.finished, visit, "visits end in order");
        self.finished = visit + 1;
        self.ends.push_back(end.clone());
        if self.ends.len() > self.ring.len() {
            self.ends.pop_front();
        }
    }

    /// Passes over all visits before this one: those not yet sent for are not copied.
    /// One that was is overwritten by a later copy, which comes after it by itself.
    pub fn skip_to(&mut self, visit: u64, end: &E) {
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

#[cfg(test)]
mod tests {
    use djinn_device::Span;
    use proptest::prelude::*;

    use super::{Prefetcher, RingTrip, Trip};
    use crate::{Ring, Slot};

    fn pieces(ring_bytes: u64, sizes: &[u64]) -> Vec<RingTrip> {
        let segments: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
        let ring = Ring::lay(ring_bytes, &segments).expect("they fit");
        let piece = |slot: &Slot| RingTrip {
            trip: Trip {
                from: 0,
                to: Span {
                    offset: slot.offset,
                    bytes: slot.bytes,
                },
                label: slot.segment as u32,
            },
            after: slot.after as u64,
        };
        ring.slots.iter().map(piece).collect()
    }

    /// A copy stream that knows how far compute must be before its next copy, and a
    /// slab that knows until when each byte was in use.
    struct Streams {
        in_use_until: Vec<u64>,
        waited_for: u64,
        owner: Vec<u64>,
        sent: u64,
    }

    impl Streams {
        fn send(&mut self, trip: Trip, after: Option<&u64>) -> u64 {
            self.waited_for = self.waited_for.max(after.copied().unwrap_or(0));
            self.sent += 1;
            for at in trip.to.offset..trip.to.end() {
                let until = self.in_use_until[at as usize];
                assert!(until <= self.waited_for, "byte {at} is overwritten in use");
                self.owner[at as usize] = self.sent;
            }
            self.sent
        }
    }

    proptest! {
        #[test]
        fn copies_wait_for_all_that_they_overwrite(
            sizes in prop::collection::vec(1u64..40, 1..20),
            extra in 0u64..200,
            passes in prop::collection::vec((0usize..20, prop::bool::weighted(0.2)), 1..6),
        ) {
            let largest = *sizes.iter().max().expect("at least one");
            let ring = pieces(largest + extra, &sizes);
            let count = ring.len();
            let bytes = (largest + extra) as usize;
            let mut streams = Streams {
                in_use_until: vec![0; bytes],
                waited_for: 0,
                owner: vec![0; bytes],
                sent: 0,
            };
            let mut ahead = Prefetcher::new(ring);
            let (mut clock, mut base) = (0, 0);
            for (skipped, fails) in passes {
                let uses = count - skipped.min(count - 1);
                let send = |streams: &mut Streams, ahead: &mut Prefetcher<u64, u64>| {
                    ahead.run(|trip, after| Ok(streams.send(trip, after))).expect("no error");
                };
                send(&mut streams, &mut ahead);
                for visit in 0..uses {
                    let number = base + visit as u64;
                    let copy = ahead.take(number);
                    let to = ahead.trip(visit).to;
                    let place = to.offset as usize..to.end() as usize;
                    // Whole, and of this copy, until the compute stream is past it.
                    prop_assert!(streams.owner[place.clone()].iter().all(|by| *by == copy));
                    clock += 1;
                    streams.in_use_until[place].fill(clock);
                    ahead.finish(number, &clock);
                    send(&mut streams, &mut ahead);
                }
                base += count as u64;
                if fails {
                    // Everything is waited for, and begins again.
                    ahead.restart(base);
                    streams.waited_for = clock;
                } else {
                    ahead.skip_to(base, &clock);
                    send(&mut streams, &mut ahead);
                }
                ahead.check_integrity();
            }
        }
    }
}
