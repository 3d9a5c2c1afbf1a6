//! Plan of the weights: which pieces stay in memory, which stream, and where each lies.
//!
//! Every pass uses all pieces in the same order. For such a cyclic pattern the best use
//! of memory is to keep as many pieces as fit for good, evenly spread over the pass, and
//! to let the others take turns in a ring that is just large enough to keep the link
//! busy. Sizes alone decide the plan; rates only predict its speed.

use crate::{
    Placement, PlanError, Region, Ring,
    predict::{PassWork, Prediction, Rates, WeightShare},
};

/// Sizes that a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct PlanInput {
    /// Bytes of the memory budget.
    pub budget: u64,
    /// Bytes that are always in use: KV, activations, small tensors.
    pub fixed: u64,
    /// Bytes of each piece that every pass uses, in order of use.
    pub pieces: Vec<u64>,
    /// Experts of the model. A pass uses only the experts that its routers choose.
    pub experts: ExpertPool,
    /// Bytes that the link keeps in flight at once.
    pub in_flight: u64,
    /// Number of pieces that wait in the ring in addition to the piece in use. Waiting pieces
    /// even out the speed of the link and of the operations.
    pub waiting: u64,
}

impl PlanInput {
    fn pieces_bytes(&self) -> u64 {
        self.pieces
            .iter()
            .fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    fn largest(&self) -> u64 {
        self.pieces.iter().copied().max().unwrap_or(0)
    }

    /// Bytes of a ring that holds the piece in use, the waiting pieces, and the bytes in flight.
    fn ring_bytes(&self) -> u64 {
        let beside = self.largest().saturating_mul(1 + self.waiting);
        beside.saturating_add(self.in_flight.max(self.largest()))
    }

    /// Bytes of `count` slots of the expert pool; at most one slot for each expert.
    fn slots_bytes(&self, count: usize) -> u64 {
        let count = self.experts.count.min(count) as u64;
        count.saturating_mul(self.experts.bytes)
    }

    /// Bytes of the budget that are left for pieces and experts.
    fn available(&self, overrides: Overrides) -> Result<u64, PlanError> {
        let (budget, fixed) = (self.budget, self.fixed);
        let all = self
            .pieces_bytes()
            .saturating_add(self.slots_bytes(usize::MAX));
        let whole = fixed.saturating_add(all);
        if overrides.keep == Keep::All && whole > budget {
            return Err(PlanError::NotAll { budget, whole });
        }
        // The minimum is room for one expert and one piece at a time.
        let through = self.slots_bytes(1).saturating_add(self.largest());
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

    /// Checks the ring that the user requires, given room for `most` bytes.
    fn check_ring(&self, ring: Option<u64>, most: u64) -> Result<Option<u64>, PlanError> {
        let least = self.largest();
        match ring {
            Some(ring) if ring < least => Err(PlanError::RingTooSmall { ring, least }),
            // A request above the size of all pieces is valid: the ring then holds all pieces.
            Some(ring) if ring > most && most < self.pieces_bytes() => {
                Err(PlanError::RingTooLarge { ring, most })
            }
            ring => Ok(ring.map(|ring| ring.min(most))),
        }
    }
}

/// Experts of a model: pieces of one size that a pass uses when a router chooses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertPool {
    /// Number of experts in all blocks.
    pub count: usize,
    /// Bytes of each expert.
    pub bytes: u64,
}

/// Decisions of the user that replace decisions of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Bytes of the ring.
    pub ring: Option<u64>,
    /// Amount of weights that stay in memory.
    pub keep: Keep,
}

/// Amount of weights that stay in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// As many weights as fit.
    #[default]
    Fit,
    /// All weights. A smaller budget is an error.
    All,
    /// No weights that can stream.
    Nothing,
    /// Weights of at most this many bytes.
    AtMost(u64),
}

/// Pieces that stay, pieces that stream, and the location of each. Offsets count from the start
/// of the slab: first resident pieces, then the ring, then the slots of the expert pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Location of every piece, in order of use.
    pub placements: Vec<Placement>,
    /// Bytes of the resident pieces.
    pub resident_bytes: u64,
    /// Offset of the ring.
    pub ring_offset: u64,
    /// The ring; empty if no piece streams.
    pub ring: Ring,
    /// Offset of the expert pool.
    pub pool_offset: u64,
    /// Number of experts that are in memory at once.
    pub pool_slots: usize,
    /// Number and size of all experts.
    pub pool: ExpertPool,
    /// Largest number of bytes of the ring. A ring with even laps may be smaller.
    pub ring_limit: u64,
    /// Bytes of a ring that keeps the link busy all the time.
    pub ring_wanted: u64,
    /// Bytes of the largest piece.
    pub largest: u64,
}

impl Plan {
    /// Makes a plan from sizes alone.
    ///
    /// Additional memory is used in this order: for the ring, until the ring keeps the link busy;
    /// for a second slot of the expert pool, so that an expert can arrive while another is in
    /// use; for resident pieces; for more slots.
    pub fn new(input: &PlanInput, overrides: Overrides) -> Result<Plan, PlanError> {
        let pieces = input.pieces_bytes();
        let available = input.available(overrides)?;
        let pool = input.experts;
        let keep = match overrides.keep {
            Keep::Fit | Keep::All => available,
            Keep::Nothing => 0,
            Keep::AtMost(bytes) => bytes.min(available),
        };
        let ring_wanted = input.ring_bytes();
        let ring = overrides.ring.unwrap_or(ring_wanted);
        // All pieces stay before the pool gets a second slot, if they need less memory than the
        // ring and that slot.
        let all_first = pieces <= ring.saturating_add(pool.bytes);
        let beside = if all_first { pieces } else { ring };
        let two_slots = input.slots_bytes(2).saturating_add(beside) <= available;
        let reserved = input.slots_bytes(if two_slots { 2 } else { 1 });
        let left = available - reserved;
        let all_stay = pieces <= left.min(keep);
        let (ring, is_resident) = if all_stay {
            (0, vec![true; input.pieces.len()])
        } else {
            let ring = input
                .check_ring(overrides.ring, left)?
                .unwrap_or(ring.min(left));
            let keep = if two_slots { keep.min(left - ring) } else { 0 };
            (ring, choose_evenly(&input.pieces, keep))
        };
        let mut plan = Self::place(&input.pieces, &is_resident, ring);
        let spare = if all_stay {
            keep.min(available) - pieces
        } else {
            reserved
        };
        plan.pool_slots = usize::try_from(spare / pool.bytes.max(1))
            .unwrap_or(usize::MAX)
            .clamp(pool.count.min(1), pool.count);
        plan.pool = pool;
        plan.ring_wanted = ring_wanted;
        plan.largest = input.largest();
        Ok(plan)
    }

    /// Assigns an offset to every piece.
    fn place(pieces: &[u64], is_resident: &[bool], ring_bytes: u64) -> Plan {
        let mut resident_bytes = 0;
        let mut placements = Vec::with_capacity(pieces.len());
        let mut streamed = Vec::new();
        for (number, (&bytes, &resident)) in pieces.iter().zip(is_resident).enumerate() {
            placements.push(Placement {
                region: Region::Resident,
                offset: resident_bytes,
                bytes,
            });
            if resident {
                resident_bytes += bytes;
            } else {
                streamed.push((number, bytes));
            }
        }
        let ring = Ring::lay(resident_bytes, ring_bytes, &streamed);
        let ring = ring.expect("the ring holds the largest piece");
        for slot in &ring.slots {
            placements[slot.piece] = slot.placement;
        }
        Plan {
            placements,
            resident_bytes,
            ring_offset: resident_bytes,
            pool_offset: resident_bytes + ring.bytes,
            ring,
            pool_slots: 0,
            pool: ExpertPool::default(),
            ring_limit: ring_bytes,
            ring_wanted: 0,
            largest: 0,
        }
    }

    /// Bytes of the slab for resident pieces, ring and expert pool.
    pub fn bytes(&self) -> u64 {
        self.pool_offset + self.pool_slots as u64 * self.pool.bytes
    }

    /// Whether a pass copies weights over the link.
    pub fn streams(&self) -> bool {
        !self.ring.slots.is_empty() || self.pool_slots < self.pool.count
    }

    /// Predicts the duration of a pass. More memory never makes the prediction longer.
    pub fn predict(&self, work: &PassWork, rates: &Rates) -> Prediction {
        let experts_used = work.experts_used * self.pool.bytes as f64;
        let experts = WeightShare {
            used: experts_used,
            // The choices of the routers are unknown, so every expert counts as equally likely to
            // be in memory.
            linked: match self.pool.count {
                0 => 0.0,
                count => {
                    let missing = 1.0 - self.pool_slots as f64 / count as f64;
                    experts_used * missing
                }
            },
            overlap: if self.pool_slots > 1 { 1.0 } else { 0.0 },
        };
        let streamed = self.ring.streamed_bytes() as f64;
        let pieces = WeightShare {
            used: self.resident_bytes as f64 + streamed,
            linked: streamed,
            overlap: self.overlap(),
        };
        Prediction::new(&experts, &pieces, work, rates)
    }

    /// Share of copying and computing that the ring lets overlap: 0 if the ring holds one piece,
    /// 1 if the ring keeps the link busy.
    fn overlap(&self) -> f64 {
        let (ring, least) = (self.ring_limit as f64, self.largest as f64);
        let wanted = self.ring_wanted as f64;
        if wanted <= least || self.ring.slots.is_empty() {
            return 1.0;
        }
        ((ring - least) / (wanted - least)).clamp(0.0, 1.0)
    }
}

/// Chooses the pieces that stay in `room` bytes. They are evenly spread over the pass. A piece
/// that stays in less memory also stays in more memory.
fn choose_evenly(pieces: &[u64], room: u64) -> Vec<bool> {
    // Multiples of the golden ratio fill an interval evenly for any number of multiples.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&i| (i as u64).wrapping_mul(GOLDEN));
    let mut is_resident = vec![false; pieces.len()];
    let mut left = room;
    for i in order {
        let Some(rest) = left.checked_sub(pieces[i]) else {
            break;
        };
        is_resident[i] = true;
        left = rest;
    }
    is_resident
}
