//! The skip-end ring: streamed segments take turns in a few slots.
//!
//! A segment lies in one piece. Segments are placed one after the other; one that
//! does not fit before the end skips the rest and starts the next *lap* at the
//! front. Every pass uses the same segments in the same order, so each has one
//! offset for good, known before the first pass, and the last segment of a pass is
//! followed by the first of the next.

/// A segment's place in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which segment, by its number among all.
    pub segment: usize,
    /// Where it starts in the ring.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// It may arrive once the segment used this many places before it, counted over
    /// passes, is no longer in use: until then it would overwrite something.
    pub after: usize,
}

impl Slot {
    /// The byte after its last.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Where every streamed segment lands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Bytes from the first slot to the end of the furthest.
    pub bytes: u64,
    /// In order of use.
    pub slots: Vec<Slot>,
    /// How many bytes, at the worst moment, can be on their way or waiting while a
    /// segment is in use.
    pub ahead: u64,
}

/// How many numbers of laps are tried above the fewest possible.
const TRIES: u64 = 4;

impl Ring {
    /// Places `segments` (number and bytes, in order of use) in at most `bytes`;
    /// `None` if one of them is larger than that.
    pub fn lay(bytes: u64, segments: &[(usize, u64)]) -> Option<Ring> {
        if segments.iter().any(|&(_, size)| size > bytes) {
            return None;
        }
        let total: u64 = segments.iter().map(|&(_, size)| size).sum();
        let fewest = total.div_ceil(bytes.max(1)).max(1);
        let rings = (fewest..fewest + TRIES).rev().map(|laps| {
            let share = total.div_ceil(laps);
            Self::with_laps(bytes, share, segments)
        });
        // Of equals the fewest laps, the last one looked at.
        rings.max_by_key(|ring| {
            (
                ring.ahead,
                ring.slots.iter().map(|s| s.after).sum::<usize>(),
            )
        })
    }

    /// Laps of about `share` bytes each, so that none is left short at the end of a
    /// pass: behind a short lap little can be under way.
    fn with_laps(limit: u64, share: u64, segments: &[(usize, u64)]) -> Ring {
        let mut slots: Vec<Slot> = Vec::with_capacity(segments.len());
        let mut laps = Vec::new();
        let (mut end, mut sum) = (0, 0);
        for &(segment, bytes) in segments {
            // The lap ends at the boundary nearest to its share of the whole.
            let due = sum + bytes / 2 >= share * laps.len() as u64;
            if slots.is_empty() || due || end + bytes > limit {
                laps.push(slots.len());
                end = 0;
            }
            slots.push(Slot {
                segment,
                offset: end,
                bytes,
                after: 0,
            });
            end += bytes;
            sum += bytes;
        }
        set_after(&mut slots, &laps);
        Ring {
            bytes: slots.iter().map(Slot::end).max().unwrap_or(0),
            ahead: ahead(&slots),
            slots,
        }
    }

    /// Bytes of all streamed segments: what a pass brings over the link.
    pub fn streamed_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.bytes).sum()
    }
}

/// Finds, for every slot, the last segment of the lap before that lies where it will
/// lie, or further in front: laps are used from front to back, so all others are
/// done by then.
fn set_after(slots: &mut [Slot], laps: &[usize]) {
    let count = slots.len();
    for (lap, &start) in laps.iter().enumerate() {
        let stop = laps.get(lap + 1).copied().unwrap_or(count);
        // The first lap follows the last one of the pass before.
        let (first, last, back) = match lap.checked_sub(1) {
            Some(before) => (laps[before], start, 0),
            None => (laps[laps.len() - 1], count, count),
        };
        let mut under = first;
        for v in start..stop {
            while under + 1 < last && slots[under + 1].offset < slots[v].end() {
                under += 1;
            }
            slots[v].after = v + back - under;
        }
    }
}

/// The least that can be under way behind a segment in use.
fn ahead(slots: &[Slot]) -> u64 {
    let count = slots.len();
    let bytes = |visit: usize| slots[visit % count].bytes;
    // Visits are counted over passes; in the second one nothing lies before the first.
    let (mut next, mut sum, mut least) = (count + 1, 0, u64::MAX);
    for used in count..2 * count {
        while next < used + count && next - slots[next % count].after < used {
            sum += bytes(next);
            next += 1;
        }
        least = least.min(sum);
        if next > used + 1 {
            sum -= bytes(used + 1);
        } else {
            next = used + 2;
        }
    }
    if count == 0 { 0 } else { least }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Ring;

    fn ring(bytes: u64, sizes: &[u64]) -> Ring {
        let segments: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
        Ring::lay(bytes, &segments).expect("they fit")
    }

    #[test]
    fn offsets_and_order() {
        let check = |bytes: u64, sizes: &[u64], offsets: &[u64], after: &[usize]| {
            let ring = ring(bytes, sizes);
            let found: Vec<u64> = ring.slots.iter().map(|s| s.offset).collect();
            assert_eq!(found, offsets, "{sizes:?} in {bytes}");
            let found: Vec<usize> = ring.slots.iter().map(|s| s.after).collect();
            assert_eq!(found, after, "{sizes:?} in {bytes}");
        };
        // Everything in one lap: each waits only for itself in the pass before.
        check(30, &[10, 10, 10], &[0, 10, 20], &[3, 3, 3]);
        // One at a time.
        check(10, &[10, 10, 10], &[0, 0, 0], &[1, 1, 1]);
        // Two laps of two.
        check(25, &[10, 10, 10, 10], &[0, 10, 0, 10], &[2, 2, 2, 2]);
        // The end is skipped rather than wrapped around.
        check(25, &[20, 10, 10], &[0, 0, 10], &[1, 1, 2]);
        check(5, &[], &[], &[]);
    }

    #[test]
    fn even_laps_are_preferred() {
        // Laps of 3, 3 and 1 would leave nothing under way at the end of a pass.
        let ring = ring(30, &[10; 7]);
        assert_eq!((ring.ahead, ring.bytes), (10, 30));
        let ring = Ring::lay(10, &[(0, 10), (1, 11)]);
        assert_eq!(ring, None, "a segment larger than the ring");
    }

    /// The bytes of the ring at work: who wrote each last.
    fn replay(ring: &Ring, passes: usize) -> Result<(), TestCaseError> {
        let count = ring.slots.len();
        let mut owner: Vec<Option<usize>> = vec![None; ring.bytes as usize];
        let mut arrived = 0;
        for used in 0..passes * count {
            // As far ahead as allowed while `used` is in use.
            loop {
                let slot = ring.slots[arrived % count];
                if arrived > used
                    && arrived.saturating_sub(slot.after) >= used
                    && arrived >= slot.after
                {
                    break;
                }
                prop_assert!(slot.end() <= ring.bytes, "nothing wraps");
                for byte in &mut owner[slot.offset as usize..slot.end() as usize] {
                    prop_assert!(
                        byte.is_none_or(|before| before < used || arrived <= used),
                        "visit {} overwrites {:?} while {} is in use",
                        arrived,
                        byte,
                        used
                    );
                    *byte = Some(arrived);
                }
                arrived += 1;
            }
            prop_assert!(arrived > used, "it arrived before it is used");
            let slot = ring.slots[used % count];
            let whole = owner[slot.offset as usize..slot.end() as usize]
                .iter()
                .all(|byte| *byte == Some(used));
            prop_assert!(whole, "visit {} is whole when it is used", used);
            let ahead: u64 = (used + 1..arrived)
                .map(|v| ring.slots[v % count].bytes)
                .sum();
            prop_assert!(
                ahead >= ring.ahead || used + 1 < count,
                "{} of {}",
                ahead,
                ring.ahead
            );
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn nothing_wraps_and_nothing_in_use_is_overwritten(
            sizes in prop::collection::vec(1u64..60, 1..40), extra in 0u64..300,
        ) {
            let largest = *sizes.iter().max().expect("at least one");
            let bytes = largest + extra;
            let ring = ring(bytes, &sizes);
            prop_assert!(ring.bytes <= bytes);
            prop_assert_eq!(ring.streamed_bytes(), sizes.iter().sum::<u64>());
            let numbers: Vec<usize> = ring.slots.iter().map(|s| s.segment).collect();
            prop_assert_eq!(numbers, (0..sizes.len()).collect::<Vec<_>>());
            replay(&ring, 3)?;
        }
    }
}
