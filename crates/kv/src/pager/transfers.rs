//! Transfers: page copies in flight between device and host, and the arrival of each part.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::copier::{PageCopier, adjacent};
use crate::error::Result;
use crate::page::PageCopy;

/// Page copies that were submitted together.
pub(crate) struct PageTransfer<E> {
    /// Event before the first copy.
    pub start: E,
    /// Event after the copies of each stage, in order of blocks.
    stages: Vec<E>,
    /// Index of the stage that is copied last.
    last: usize,
    /// Number of bytes of all copies.
    pub bytes: u64,
    /// Whether an earlier query found the end past. Later queries then skip the device.
    is_done: AtomicBool,
}

impl<E> PageTransfer<E> {
    /// Creates a transfer that ends with stage `last`.
    pub fn new(start: E, stages: Vec<E>, last: usize, bytes: u64) -> Arc<Self> {
        Arc::new(PageTransfer {
            start,
            stages,
            last,
            bytes,
            is_done: AtomicBool::new(false),
        })
    }

    /// Event after the last copy.
    pub fn end(&self) -> &E {
        &self.stages[self.last]
    }

    /// Whether all copies are done.
    pub fn is_done(&self, copier: &impl PageCopier<Event = E>) -> Result<bool> {
        let is_done = self.is_done.load(Relaxed) || copier.is_past(self.end())?;
        self.is_done.store(is_done, Relaxed);
        Ok(is_done)
    }
}

/// Page transfers that a pass depends on and that may not have finished.
pub struct PendingPages<E> {
    pub(super) transfers: Vec<Arc<PageTransfer<E>>>,
    pub(super) blocks: usize,
}

impl<E> PendingPages<E> {
    /// Whether no transfer is pending.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Events to wait for before block `block` runs. The pass has already waited for block
    /// `waited`.
    pub fn events_before(&self, block: usize, waited: Option<usize>) -> impl Iterator<Item = &E> {
        self.transfers.iter().filter_map(move |transfer| {
            let stage = |block| stage_of(block, transfer.stages.len(), self.blocks);
            let is_new = waited.map(stage) != Some(stage(block));
            is_new.then(|| &transfer.stages[stage(block)])
        })
    }
}

/// Blocks of stage `stage` when `blocks` blocks are divided into `stages` stages.
pub(super) fn stage_blocks(stage: usize, stages: usize, blocks: usize) -> Range<usize> {
    stage * blocks / stages..(stage + 1) * blocks / stages
}

/// Stage that contains block `block` when `blocks` blocks are divided into `stages` stages.
pub(super) fn stage_of(block: usize, stages: usize, blocks: usize) -> usize {
    let contains = |stage: &usize| stage_blocks(*stage, stages, blocks).contains(&block);
    (0..stages).find(contains).unwrap_or(0)
}

/// Largest number of copies in one transfer. The host submits each copy, which takes time.
const MAX_COPIES: usize = 400;

/// Number of stages for pages that a pass waits for. The first blocks compute while the pages of
/// later blocks are in flight. Adjacent pages need one copy for each stage, so they can have as
/// many stages as the model has blocks.
pub(super) fn stage_count(copies: &[PageCopy], blocks: usize) -> usize {
    (MAX_COPIES / adjacent(copies).count().max(1))
        .clamp(4, 40)
        .min(blocks)
}

/// Last transfer from or to each frame of a tier, unless it is known to be finished.
pub(super) type FrameTransfers<E> = Vec<Option<Arc<PageTransfer<E>>>>;

/// Removes duplicate transfers.
pub(super) fn distinct<E>(mut transfers: Vec<Arc<PageTransfer<E>>>) -> Vec<Arc<PageTransfer<E>>> {
    transfers.sort_unstable_by_key(Arc::as_ptr);
    transfers.dedup_by(|a, b| Arc::ptr_eq(a, b));
    transfers
}
