//! Scratch memory of operations, which follows the slab.

use crate::{ALIGN, PassLimits};

/// Layout of the scratch memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch(pub(super) PassLimits);

/// Number of keys of a unit in the decode attention, as in the CUDA sources.
pub(super) const UNIT_KEYS: usize = 64;

impl Scratch {
    /// Total number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.finished_at() + (4 * self.0.generated * self.0.heads).next_multiple_of(256) as u64
    }

    /// Bytes of the copy of a product's inputs in the type of its weights.
    pub(super) fn shadow_bytes(&self) -> u64 {
        let row = 2 * self.0.width.next_multiple_of(8) as u64;
        (self.0.rows as u64 * row).next_multiple_of(ALIGN)
    }

    /// Offset of a second copy, for generated rows only. A kernel writes the second copy while it
    /// reads the first.
    pub(super) fn second_at(&self) -> u64 {
        self.shadow_bytes()
    }

    /// Bytes of the second copy.
    pub(super) fn second_bytes(&self) -> u64 {
        let row = 2 * self.0.width.next_multiple_of(8) as u64;
        (self.0.generated as u64 * row).next_multiple_of(ALIGN)
    }

    /// Offset of the partial results of attention.
    pub(super) fn parts_at(&self) -> u64 {
        self.second_at() + self.second_bytes()
    }

    /// Offset of the counters of finished parts. The counters are zero between launches.
    pub(super) fn finished_at(&self) -> u64 {
        let units = self.0.keys.div_ceil(UNIT_KEYS) as u64;
        let lines = self.0.generated as u64 * self.0.heads as u64 * units;
        self.parts_at() + (lines * 4 * (self.0.d_head as u64 + 2)).next_multiple_of(ALIGN)
    }
}
