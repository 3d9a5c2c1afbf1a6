//! Prefetch: fills the ring ahead of the pass by a copy stream.
//!
//! The copy of a visit may begin after the end of an earlier visit (`after` visits before). The
//! end of a visit is an event of the compute stream. The prefetcher enqueues the copy as soon as
//! that event is known, and the copy stream waits for the event.

use std::collections::{BTreeMap, VecDeque};

use crate::{CopyOp, Placement};

use super::transfers::RingCopy;

/// Visits with enqueued copies, and ends of earlier visits. `E` is an event of the compute
/// stream, `C` an enqueued copy.
pub(super) struct Prefetcher<E, C> {
    ring: Vec<RingCopy<CopyOp<Placement>>>,
    /// Next visit to enqueue a copy for.
    next: u64,
    /// Number of visits that have an end event on the compute stream.
    finished: u64,
    /// Ends of the last finished visits: as many as a copy may wait for.
    ends: VecDeque<E>,
    /// Enqueued copies of visits that have not begun.
    enqueued: BTreeMap<u64, C>,
}

impl<E: Clone, C> Prefetcher<E, C> {
    pub fn new(ring: Vec<RingCopy<CopyOp<Placement>>>) -> Self {
        Prefetcher {
            ring,
            next: 0,
            finished: 0,
            ends: VecDeque::new(),
            enqueued: BTreeMap::new(),
        }
    }

    /// Number of visits of a pass.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Returns the copy of a visit, which is the same in each pass.
    pub fn copy(&self, visit: usize) -> CopyOp<Placement> {
        self.ring[visit].copy
    }

    /// Enqueues the copy of every visit if the event that frees its part of the ring is known.
    /// `enqueue` gets the copy and that event.
    pub fn run<X>(
        &mut self,
        mut enqueue: impl FnMut(CopyOp<Placement>, Option<&E>) -> Result<C, X>,
    ) -> Result<(), X> {
        while let Some(&RingCopy { copy, after }) = self.next_copy() {
            let before = self.next.checked_sub(after);
            let enqueued = enqueue(copy, before.and_then(|visit| self.end(visit)))?;
            self.enqueued.insert(self.next, enqueued);
            self.next += 1;
        }
        Ok(())
    }

    fn next_copy(&self) -> Option<&RingCopy<CopyOp<Placement>>> {
        let count = self.ring.len() as u64;
        let next = self.ring.get((self.next % count.max(1)) as usize)?;
        let free = self.next < next.after || self.next - next.after < self.finished;
        free.then_some(next)
    }

    /// Returns the end of a visit; `None` if a restart has already waited for it.
    fn end(&self, visit: u64) -> Option<&E> {
        let first = self.finished - self.ends.len() as u64;
        self.ends
            .get(usize::try_from(visit.checked_sub(first)?).ok()?)
    }

    /// Takes the enqueued copy of the visit that begins.
    pub fn take(&mut self, visit: u64) -> C {
        let copy = self.enqueued.remove(&visit);
        copy.expect("the copy was enqueued when the previous visit ended")
    }

    /// Ends a visit: its piece is out of use once the compute stream has passed `end`.
    pub fn finish(&mut self, visit: u64, end: &E) {
        assert_eq!(self.finished, visit, "visits end in order");
        self.finished = visit + 1;
        self.ends.push_back(end.clone());
        if self.ends.len() > self.ring.len() {
            self.ends.pop_front();
        }
    }

    /// Skips all visits before this one. Copies that are not enqueued yet do not run. An enqueued
    /// copy still runs; a later copy on the same stream overwrites its bytes.
    pub fn skip_to(&mut self, visit: u64, end: &E) {
        for skipped in self.finished..visit {
            self.enqueued.remove(&skipped);
            self.finish(skipped, end);
        }
        self.next = self.next.max(visit);
    }

    /// Starts again at a visit, with no copy in flight.
    pub fn restart(&mut self, visit: u64) {
        (self.next, self.finished) = (visit, visit);
        self.ends.clear();
        self.enqueued.clear();
    }

    /// Panics unless every unfinished visit, and no other, has an enqueued copy.
    pub fn check_integrity(&self) {
        assert!(self.enqueued.keys().copied().eq(self.finished..self.next));
        assert!(self.next - self.finished <= self.ring.len() as u64);
        assert!(self.ends.len() <= self.ring.len());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::{CopyOp, Placement, Prefetcher, RingCopy};
    use crate::{Region, Ring, RingSlot};

    fn copies(ring_bytes: u64, sizes: &[u64]) -> Vec<RingCopy<CopyOp<Placement>>> {
        let pieces: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
        let ring = Ring::lay(0, ring_bytes, &pieces).expect("the pieces fit");
        let copy = |slot: &RingSlot| RingCopy {
            copy: CopyOp {
                from: Placement {
                    region: Region::Host,
                    offset: 0,
                    bytes: slot.placement.bytes,
                },
                to: slot.placement,
                label: slot.piece as u32,
            },
            after: slot.after as u64,
        };
        ring.slots.iter().map(copy).collect()
    }

    /// A simulated copy stream and slab.
    struct SimulatedStreams {
        /// Time until which each byte is in use.
        in_use_until: Vec<u64>,
        /// Time that the copy stream has waited for.
        waited_for: u64,
        /// Number of the copy that wrote each byte.
        written_by: Vec<u64>,
        copies: u64,
    }

    impl SimulatedStreams {
        fn enqueue(&mut self, copy: CopyOp<Placement>, after: Option<&u64>) -> u64 {
            self.waited_for = self.waited_for.max(after.copied().unwrap_or(0));
            self.copies += 1;
            for at in copy.to.offset..copy.to.end() {
                let until = self.in_use_until[at as usize];
                assert!(until <= self.waited_for, "byte {at} is overwritten in use");
                self.written_by[at as usize] = self.copies;
            }
            self.copies
        }
    }

    proptest! {
        #[test]
        fn copies_wait_for_all_pieces_that_they_overwrite(
            sizes in prop::collection::vec(1u64..40, 1..20),
            extra in 0u64..200,
            passes in prop::collection::vec((0usize..20, prop::bool::weighted(0.2)), 1..6),
        ) {
            let largest = *sizes.iter().max().expect("at least one");
            let ring = copies(largest + extra, &sizes);
            let count = ring.len();
            let bytes = (largest + extra) as usize;
            let mut streams = SimulatedStreams {
                in_use_until: vec![0; bytes],
                waited_for: 0,
                written_by: vec![0; bytes],
                copies: 0,
            };
            let mut ahead = Prefetcher::new(ring);
            let (mut clock, mut base) = (0, 0);
            for (skipped, fails) in passes {
                let uses = count - skipped.min(count - 1);
                let fill = |streams: &mut SimulatedStreams, ahead: &mut Prefetcher<u64, u64>| {
                    let Ok(()) = ahead.run(|copy, after| {
                        Ok::<_, Infallible>(streams.enqueue(copy, after))
                    });
                };
                fill(&mut streams, &mut ahead);
                for visit in 0..uses {
                    let number = base + visit as u64;
                    let copy = ahead.take(number);
                    let to = ahead.copy(visit).to;
                    let place = to.offset as usize..to.end() as usize;
                    // The whole piece is from this copy while the piece is in use.
                    prop_assert!(streams.written_by[place.clone()].iter().all(|by| *by == copy));
                    clock += 1;
                    streams.in_use_until[place].fill(clock);
                    ahead.finish(number, &clock);
                    fill(&mut streams, &mut ahead);
                }
                base += count as u64;
                if fails {
                    // A failed pass waits for all copies and starts again.
                    ahead.restart(base);
                    streams.waited_for = clock;
                } else {
                    ahead.skip_to(base, &clock);
                    fill(&mut streams, &mut ahead);
                }
                ahead.check_integrity();
            }
        }
    }
}
