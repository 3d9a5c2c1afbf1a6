//! The plan: what stays in memory, what streams, and where each lands.
//!
//! Every pass uses all segments in the same order. For such a cyclic pattern the
//! best use of memory is to keep as much as fits for good, evenly spread, and to let
//! the rest take turns in a ring just large enough to keep the link busy. Nothing
//! but sizes decides this; rates only predict how fast it will be.

use djinn_types::Size;

use crate::Ring;

/// What has to be placed.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Bytes there are.
    pub budget: u64,
    /// Bytes that are there whatever streams: KV, activations, small tensors.
    pub fixed: u64,
    /// Bytes of each segment that every pass uses, in order of use.
    pub segments: Vec<u64>,
    /// Segments of which a pass uses those it chooses.
    pub pool: Pool,
    /// Bytes the link wants under way at once.
    pub in_flight: u64,
    /// Segments that wait beside the one in use, so that neither side stands still
    /// while the other is uneven.
    pub waiting: u64,
}

impl Needs {
    fn segments_bytes(&self) -> u64 {
        self.segments
            .iter()
            .fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    fn largest(&self) -> u64 {
        self.segments.iter().copied().max().unwrap_or(0)
    }

    /// A ring that holds the segment in use, some that wait, and what is under way.
    fn ring(&self) -> u64 {
        let beside = self.largest().saturating_mul(1 + self.waiting);
        beside.saturating_add(self.in_flight.max(self.largest()))
    }

    /// Bytes of so many slots of the pool, or of all there are.
    fn slots(&self, count: usize) -> u64 {
        let count = self.pool.count.min(count) as u64;
        count.saturating_mul(self.pool.bytes)
    }

    /// Bytes for what streams or could, if they suffice.
    fn room(&self, overrides: Overrides) -> Result<u64, PlanError> {
        let (budget, fixed) = (self.budget, self.fixed);
        let all = self.segments_bytes().saturating_add(self.slots(usize::MAX));
        let whole = fixed.saturating_add(all);
        if overrides.keep == Keep::All && whole > budget {
            return Err(PlanError::NotAll { budget, whole });
        }
        // At the least one of the pool is there at a time, and one segment.
        let through = self.slots(1).saturating_add(self.largest());
        let least = fixed.saturating_add(through);
        if budget < least {
            return Err(PlanError::Budget {
                budget,
                least,
                fixed,
            });
        }
        Ok(budget - fixed)
    }

    /// The ring asked for, if it can be.
    fn check_ring(&self, ring: Option<u64>, most: u64) -> Result<Option<u64>, PlanError> {
        let least = self.largest();
        match ring {
            Some(ring) if ring < least => Err(PlanError::RingTooSmall { ring, least }),
            // One larger than all there is to stream need not be.
            Some(ring) if ring > most && most < self.segments_bytes() => {
                Err(PlanError::RingTooLarge { ring, most })
            }
            ring => Ok(ring.map(|ring| ring.min(most))),
        }
    }
}

/// Segments of one size that a pass uses as it goes: experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub bytes: u64,
}

/// What the user decided instead of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Bytes of the ring.
    pub ring: Option<u64>,
    /// What stays.
    pub keep: Keep,
}

/// How much stays in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// What fits.
    #[default]
    Fit,
    /// Everything, or it is an error.
    All,
    /// Nothing that can stream.
    Nothing,
    /// What fits into so many bytes.
    AtMost(u64),
}

/// A plan that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The budget does not hold what must be there at once.
    #[error(
        "{} of memory cannot work: the least is {} ({} at all times, {} to stream through)",
        Size(*budget), Size(*least), Size(*fixed), Size(least - fixed)
    )]
    Budget {
        /// Given.
        budget: u64,
        /// What would do.
        least: u64,
        /// Of that, what is there at all times.
        fixed: u64,
    },
    /// Everything was to stay, and does not fit.
    #[error("not everything stays in {}: that takes {}", Size(*budget), Size(*whole))]
    NotAll {
        /// Given.
        budget: u64,
        /// What would do.
        whole: u64,
    },
    /// The ring asked for does not hold the largest piece.
    #[error("a ring of {} cannot work: the largest piece is {}", Size(*ring), Size(*least))]
    RingTooSmall {
        /// Asked for.
        ring: u64,
        /// What would do.
        least: u64,
    },
    /// The ring asked for does not fit.
    #[error("a ring of {} does not fit: there is room for one of {}", Size(*ring), Size(*most))]
    RingTooLarge {
        /// Asked for.
        ring: u64,
        /// What would do.
        most: u64,
    },
}

/// Where a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory for good, at this offset.
    Resident(u64),
    /// In the ring, in this slot.
    Streamed(usize),
}

/// Which segments stay, which stream, and where: offsets from the start of the
/// memory for weights. First what stays, then the ring, then the pool's slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Of every segment.
    pub places: Vec<Place>,
    /// Bytes of the segments that stay.
    pub resident_bytes: u64,
    /// Where the ring starts.
    pub ring_offset: u64,
    /// The ring; empty where nothing streams.
    pub ring: Ring,
    /// Where the pool's slots start.
    pub pool_offset: u64,
    /// How many of the pool are in memory at once.
    pub pool_slots: usize,
    /// The pool.
    pub pool: Pool,
    /// The bytes the ring may take; with evener laps it may take less.
    pub ring_limit: u64,
    /// The ring that keeps the link as busy as it can be.
    pub ring_wanted: u64,
    /// The largest segment.
    pub largest: u64,
}

/// How fast things go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes a second over the link.
    pub link: f64,
    /// Bytes of weights a second through the products of a pass.
    pub compute: f64,
    /// Whether the link's work is done by what computes, so that they add up.
    pub shared: bool,
}

/// What a pass does with the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes that products read beside the segments and the pool: KV and the like.
    pub other_bytes: f64,
    /// How many of the pool a pass uses.
    pub pool_used: f64,
    /// Whether segments are brought ahead of their use.
    pub prefetch: bool,
}

/// Which of the two a pass waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes on their way.
    Link,
    /// Products.
    Compute,
}

/// How long a pass takes, as far as sizes and rates tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Bytes over the link.
    pub link_bytes: f64,
    /// Seconds they take.
    pub link_s: f64,
    /// Seconds of products.
    pub compute_s: f64,
    /// Seconds of the pass.
    pub pass_s: f64,
    /// What it waits for.
    pub bound: Bound,
}

impl Plan {
    /// Decides, by size alone.
    ///
    /// As memory grows, it goes to the ring until that keeps the link busy, then to a
    /// second slot for the pool, so that one can arrive while another is used, then
    /// to segments that stay, and what is left when all of them do to more slots.
    pub fn new(needs: &Needs, overrides: Overrides) -> Result<Plan, PlanError> {
        let segments = needs.segments_bytes();
        let room = needs.room(overrides)?;
        let pool = needs.pool;
        let keep = match overrides.keep {
            Keep::Fit | Keep::All => room,
            Keep::Nothing => 0,
            Keep::AtMost(bytes) => bytes.min(room),
        };
        let ring_wanted = needs.ring();
        let ring = overrides.ring.unwrap_or(ring_wanted);
        // Where all segments would stay beside one slot before two slots leave room for
        // the ring, they stay first.
        let all_first = segments <= ring.saturating_add(pool.bytes);
        let beside = if all_first { segments } else { ring };
        let two_slots = needs.slots(2).saturating_add(beside) <= room;
        let reserved = needs.slots(if two_slots { 2 } else { 1 });
        let left = room - reserved;
        let stays = segments <= left.min(keep);
        let (ring, is_resident) = if stays {
            (0, vec![true; needs.segments.len()])
        } else {
            let ring = needs
                .check_ring(overrides.ring, left)?
                .unwrap_or(ring.min(left));
            let keep = if two_slots { keep.min(left - ring) } else { 0 };
            (ring, evenly(&needs.segments, keep))
        };
        let mut plan = Self::place(&needs.segments, &is_resident, ring);
        let spare = if stays {
            keep.min(room) - segments
        } else {
            reserved
        };
        plan.pool_slots = usize::try_from(spare / pool.bytes.max(1))
            .unwrap_or(usize::MAX)
            .clamp(pool.count.min(1), pool.count);
        plan.pool = pool;
        plan.ring_wanted = ring_wanted;
        plan.largest = needs.largest();
        Ok(plan)
    }

    /// Gives everything its offset.
    fn place(segments: &[u64], is_resident: &[bool], ring_bytes: u64) -> Plan {
        let mut resident_bytes = 0;
        let mut places = Vec::with_capacity(segments.len());
        let mut streamed = Vec::new();
        for (number, (&bytes, &resident)) in segments.iter().zip(is_resident).enumerate() {
            if resident {
                places.push(Place::Resident(resident_bytes));
                resident_bytes += bytes;
            } else {
                places.push(Place::Streamed(streamed.len()));
                streamed.push((number, bytes));
            }
        }
        let ring = Ring::lay(ring_bytes, &streamed).expect("the ring holds the largest");
        Plan {
            places,
            resident_bytes,
            ring_offset: resident_bytes,
            pool_offset: resident_bytes + ring.bytes,
            ring,
            pool_slots: 0,
            pool: Pool::default(),
            ring_limit: ring_bytes,
            ring_wanted: 0,
            largest: 0,
        }
    }

    /// Bytes of memory the weights take.
    pub fn bytes(&self) -> u64 {
        self.pool_offset + self.pool_slots as u64 * self.pool.bytes
    }

    /// Whether anything comes over the link during a pass.
    pub fn streams(&self) -> bool {
        !self.ring.slots.is_empty() || self.pool_slots < self.pool.count
    }

    /// How long a pass takes. More memory never makes it longer.
    pub fn predict(&self, work: &Work, rates: &Rates) -> Prediction {
        let pool = Part {
            used: work.pool_used * self.pool.bytes as f64,
            // Which ones are chosen is not known; what is there serves its share.
            linked: match self.pool.count {
                0 => 0.0,
                count => {
                    let missing = 1.0 - self.pool_slots as f64 / count as f64;
                    work.pool_used * self.pool.bytes as f64 * missing
                }
            },
            overlap: if self.pool_slots > 1 { 1.0 } else { 0.0 },
        };
        let streamed = self.ring.streamed_bytes() as f64;
        let segments = Part {
            used: self.resident_bytes as f64 + streamed,
            linked: streamed,
            overlap: self.overlap(),
        };
        let link_bytes = pool.linked + segments.linked;
        let link_s = link_bytes / rates.link;
        let read = pool.used + segments.used + work.other_bytes;
        let compute_s = read / rates.compute;
        let exposed = pool.exposed(rates) + segments.exposed(rates);
        let pass_s = if work.prefetch && !rates.shared {
            link_s.max(compute_s) + exposed
        } else {
            link_s + compute_s
        };
        Prediction {
            link_bytes,
            link_s,
            compute_s,
            pass_s,
            bound: if link_s > compute_s {
                Bound::Link
            } else {
                Bound::Compute
            },
        }
    }

    /// How much of copying and computing the ring lets happen at once: none where it
    /// holds one segment, all where it holds what the link wants.
    fn overlap(&self) -> f64 {
        let (ring, least) = (self.ring_limit as f64, self.largest as f64);
        let wanted = self.ring_wanted as f64;
        if wanted <= least || self.ring.slots.is_empty() {
            return 1.0;
        }
        ((ring - least) / (wanted - least)).clamp(0.0, 1.0)
    }
}

/// One kind of weights in a prediction.
struct Part {
    used: f64,
    linked: f64,
    overlap: f64,
}

impl Part {
    /// Seconds in which one side waits for the other though both have work.
    fn exposed(&self, rates: &Rates) -> f64 {
        let (link_s, compute_s) = (self.linked / rates.link, self.linked / rates.compute);
        (1.0 - self.overlap) * link_s.min(compute_s)
    }
}

/// The segments that stay if `room` bytes may: evenly spread over the pass, and none
/// that stays in less memory streams in more.
fn evenly(segments: &[u64], room: u64) -> Vec<bool> {
    // Multiples of the golden ratio fill an interval evenly, however many there are.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut order: Vec<usize> = (0..segments.len()).collect();
    order.sort_by_key(|&i| (i as u64).wrapping_mul(GOLDEN));
    let mut is_resident = vec![false; segments.len()];
    let mut left = room;
    for i in order {
        let Some(rest) = left.checked_sub(segments[i]) else {
            break;
        };
        is_resident[i] = true;
        left = rest;
    }
    is_resident
}
