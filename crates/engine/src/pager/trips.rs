//! Pages on their way between slab and host, and when each part of them is there.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use djinn_memory::Move;

use super::{Copies, Result, copies::runs};

/// Copies of pages that were asked for together.
pub(crate) struct Trip<E> {
    pub began: E,
    /// By when the blocks of each stage are there, first blocks first.
    stages: Vec<E>,
    /// Which of these came last.
    last: usize,
    pub bytes: u64,
    /// Whether it was seen to have ended: then nobody has to ask the device again.
    over: AtomicBool,
}

impl<E> Trip<E> {
    /// One that begins now. It ends with stage `last`.
    pub fn new(began: E, stages: Vec<E>, last: usize, bytes: u64) -> Arc<Self> {
        Arc::new(Trip {
            began,
            stages,
            last,
            bytes,
            over: AtomicBool::new(false),
        })
    }

    pub fn ended(&self) -> &E {
        &self.stages[self.last]
    }

    /// Whether it has ended.
    pub fn is_over(&self, copies: &impl Copies<Event = E>) -> Result<bool> {
        let is_over = self.over.load(Relaxed) || copies.is_past(self.ended())?;
        self.over.store(is_over, Relaxed);
        Ok(is_over)
    }
}

/// Pages that a pass needs and that may still be on their way.
pub(crate) struct Arrivals<E> {
    pub trips: Vec<Arc<Trip<E>>>,
    pub blocks: usize,
}

impl<E> Arrivals<E> {
    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.trips.is_empty()
    }

    /// What has to be past before block `block` runs, after `waited` which had to be for
    /// those before it that ran.
    pub fn before(&self, block: usize, waited: Option<usize>) -> impl Iterator<Item = &E> {
        self.trips.iter().filter_map(move |trip| {
            let stage = |block| stage_of(block, trip.stages.len(), self.blocks);
            let is_new = waited.map(stage) != Some(stage(block));
            is_new.then(|| &trip.stages[stage(block)])
        })
    }
}

/// The blocks of one of so many stages.
pub(super) fn stage_blocks(stage: usize, stages: usize, blocks: usize) -> Range<usize> {
    stage * blocks / stages..(stage + 1) * blocks / stages
}

/// Which of so many stages a block is in.
pub(super) fn stage_of(block: usize, stages: usize, blocks: usize) -> usize {
    let holds = |stage: &usize| stage_blocks(*stage, stages, blocks).contains(&block);
    (0..stages).find(holds).unwrap_or(0)
}

/// Copies that pages which a pass waits for may be cut into: the host asks for each of
/// them.
const COPIES: usize = 400;

/// Stages in which pages come that a pass waits for: the first blocks compute while the
/// others are still on their way. As many as there are blocks where pages lie side by side,
/// since those of a block are one copy then.
pub(super) fn stages(moves: &[Move], blocks: usize) -> usize {
    (COPIES / runs(moves).count().max(1))
        .clamp(4, 40)
        .min(blocks)
}

/// What has to be past before a frame is used again.
pub(super) type After<E> = Vec<Option<Arc<Trip<E>>>>;

/// Each of these once.
pub(super) fn distinct<E>(mut trips: Vec<Arc<Trip<E>>>) -> Vec<Arc<Trip<E>>> {
    trips.sort_unstable_by_key(Arc::as_ptr);
    trips.dedup_by(|a, b| Arc::ptr_eq(a, b));
    trips
}
