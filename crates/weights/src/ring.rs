//! Ring: the part of the slab through which streamed pieces pass.
//!
//! A piece is contiguous. Pieces are placed one after the other; a piece that does not fit before
//! the end of the ring starts the next *lap* at the front. Every pass uses the same pieces in the
//! same order, so each piece has one fixed offset, known before the first pass. After the last
//! piece of a pass comes the first piece of the next pass. A *visit* is one use of a piece.

use std::ops::Range;

use crate::{Placement, Region};

/// A streamed piece in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSlot {
    /// Number of the piece among all pieces of the plan.
    pub piece: usize,
    /// Location of the piece.
    pub placement: Placement,
    /// Number of visits from an earlier piece to this one. The earlier piece must be out of use
    /// before this piece may arrive, because this piece overwrites it or pieces before it.
    pub after: usize,
}

/// Locations of all streamed pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Size of the ring: bytes from its start to the end of the furthest piece.
    pub bytes: u64,
    /// Streamed pieces in order of use.
    pub slots: Vec<RingSlot>,
    /// Least number of bytes that can be in flight or waiting while a piece is in use, over all
    /// moments of a pass.
    pub ahead: u64,
}

/// Number of lap counts to try, starting with the smallest possible one.
const TRIES: u64 = 4;

impl Ring {
    /// Places `pieces` (number and bytes, in order of use) in a ring of at most `bytes`
    /// bytes that starts at `offset`. Returns `None` if a piece is larger than the ring.
    pub fn lay(offset: u64, bytes: u64, pieces: &[(usize, u64)]) -> Option<Ring> {
        if pieces.iter().any(|&(_, size)| size > bytes) {
            return None;
        }
        let total: u64 = pieces.iter().map(|&(_, size)| size).sum();
        let fewest = total.div_ceil(bytes.max(1)).max(1);
        let rings = (fewest..fewest + TRIES).rev().map(|laps| {
            let share = total.div_ceil(laps);
            Self::with_laps(offset..offset.saturating_add(bytes), share, pieces)
        });
        // Of equal rings the last one is chosen, which has the fewest laps.
        rings.max_by_key(|ring| {
            (
                ring.ahead,
                ring.slots.iter().map(|s| s.after).sum::<usize>(),
            )
        })
    }

    /// Lays laps of about `share` bytes each in `range`. Equal laps matter at the end of
    /// a pass: while a short lap is in use, few bytes can be in flight.
    fn with_laps(range: Range<u64>, share: u64, pieces: &[(usize, u64)]) -> Ring {
        let mut slots: Vec<RingSlot> = Vec::with_capacity(pieces.len());
        let mut laps = Vec::new();
        let (mut end, mut sum) = (range.start, 0);
        for &(piece, bytes) in pieces {
            // The lap ends at the boundary nearest to its share of the whole.
            let due = sum + bytes / 2 >= share * laps.len() as u64;
            if slots.is_empty() || due || end + bytes > range.end {
                laps.push(slots.len());
                end = range.start;
            }
            let placement = Placement {
                region: Region::Ring(slots.len()),
                offset: end,
                bytes,
            };
            slots.push(RingSlot {
                piece,
                placement,
                after: 0,
            });
            end += bytes;
            sum += bytes;
        }
        set_after(&mut slots, &laps);
        let ends = slots.iter().map(|slot| slot.placement.end());
        Ring {
            bytes: ends.max().map_or(0, |end| end - range.start),
            ahead: ahead(&slots),
            slots,
        }
    }

    /// Bytes of all streamed pieces: the bytes that a pass copies over the link.
    pub fn streamed_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.placement.bytes).sum()
    }
}

/// Sets `after` of every slot: finds the last piece of the previous lap that starts before the
/// slot's end. A pass uses laps from front to back. Once that piece is out of use, all pieces
/// that the slot overlaps are out of use too.
fn set_after(slots: &mut [RingSlot], laps: &[usize]) {
    let count = slots.len();
    for (lap, &start) in laps.iter().enumerate() {
        let stop = laps.get(lap + 1).copied().unwrap_or(count);
        // The first lap follows the last lap of the previous pass.
        let (first, last, back) = match lap.checked_sub(1) {
            Some(before) => (laps[before], start, 0),
            None => (laps[laps.len() - 1], count, count),
        };
        let mut under = first;
        for v in start..stop {
            while under + 1 < last && slots[under + 1].placement.offset < slots[v].placement.end() {
                under += 1;
            }
            slots[v].after = v + back - under;
        }
    }
}

/// Returns the smallest number of bytes that can be in flight while a piece is in use.
fn ahead(slots: &[RingSlot]) -> u64 {
    let count = slots.len();
    let bytes = |visit: usize| slots[visit % count].placement.bytes;
    // Visits are counted over passes. The second pass has a full pass before it.
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

    use super::{Ring, RingSlot};

    fn bytes_of(slot: RingSlot) -> std::ops::Range<usize> {
        slot.placement.offset as usize..slot.placement.end() as usize
    }

    fn ring(bytes: u64, sizes: &[u64]) -> Ring {
        let pieces: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
        Ring::lay(0, bytes, &pieces).expect("they fit")
    }

    #[test]
    fn offsets_and_order() {
        let check = |bytes: u64, sizes: &[u64], offsets: &[u64], after: &[usize]| {
            let ring = ring(bytes, sizes);
            let found: Vec<u64> = ring.slots.iter().map(|s| s.placement.offset).collect();
            assert_eq!(found, offsets, "{sizes:?} in {bytes}");
            let found: Vec<usize> = ring.slots.iter().map(|s| s.after).collect();
            assert_eq!(found, after, "{sizes:?} in {bytes}");
        };
        // With one lap, each piece waits only for itself in the previous pass.
        check(30, &[10, 10, 10], &[0, 10, 20], &[3, 3, 3]);
        // The ring holds one piece at a time.
        check(10, &[10, 10, 10], &[0, 0, 0], &[1, 1, 1]);
        // The pieces form two laps of two pieces.
        check(25, &[10, 10, 10, 10], &[0, 10, 0, 10], &[2, 2, 2, 2]);
        // A piece skips the end of the ring rather than wrapping around.
        check(25, &[20, 10, 10], &[0, 0, 10], &[1, 1, 2]);
        check(5, &[], &[], &[]);
    }

    #[test]
    fn even_laps_are_preferred() {
        // Laps of 3, 3 and 1 pieces would leave nothing in flight at the end of a pass.
        let ring = ring(30, &[10; 7]);
        assert_eq!((ring.ahead, ring.bytes), (10, 30));
        let ring = Ring::lay(0, 10, &[(0, 10), (1, 11)]);
        assert_eq!(ring, None, "a piece is larger than the ring");
    }

    #[test]
    fn an_offset_shifts_every_slot() {
        let pieces = [(0, 20), (1, 10), (2, 10)];
        let front = Ring::lay(0, 25, &pieces).expect("the pieces fit");
        let behind = Ring::lay(100, 25, &pieces).expect("the pieces fit");
        assert_eq!((behind.bytes, behind.ahead), (front.bytes, front.ahead));
        for (a, b) in front.slots.iter().zip(&behind.slots) {
            assert_eq!((a.piece, a.after), (b.piece, b.after));
            assert_eq!(a.placement.offset + 100, b.placement.offset);
        }
    }

    /// Runs passes over the ring and records for each byte which visit wrote it last.
    fn replay(ring: &Ring, passes: usize) -> Result<(), TestCaseError> {
        let count = ring.slots.len();
        let mut owner: Vec<Option<usize>> = vec![None; ring.bytes as usize];
        let mut arrived = 0;
        for used in 0..passes * count {
            // Copies run as far ahead as allowed while `used` is in use.
            loop {
                let slot = ring.slots[arrived % count];
                if arrived > used
                    && arrived.saturating_sub(slot.after) >= used
                    && arrived >= slot.after
                {
                    break;
                }
                prop_assert!(slot.placement.end() <= ring.bytes, "nothing wraps");
                for byte in &mut owner[bytes_of(slot)] {
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
            prop_assert!(arrived > used, "a piece arrives before its use");
            let slot = ring.slots[used % count];
            let whole = owner[bytes_of(slot)].iter().all(|byte| *byte == Some(used));
            prop_assert!(whole, "visit {} is whole when it is used", used);
            let ahead: u64 = (used + 1..arrived)
                .map(|v| ring.slots[v % count].placement.bytes)
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
            let numbers: Vec<usize> = ring.slots.iter().map(|s| s.piece).collect();
            prop_assert_eq!(numbers, (0..sizes.len()).collect::<Vec<_>>());
            replay(&ring, 3)?;
        }
    }
}
