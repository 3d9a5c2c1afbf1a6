//! Memory that operations need for themselves, behind the slab's end.

use crate::{ALIGN, PassLimits};

/// Layout of the scratch memory behind the slab's end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch(pub(super) PassLimits);

/// Keys of a unit in the attention of generated tokens, as the sources have it.
pub(super) const UNIT_KEYS: usize = 64;

impl Scratch {
    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> u64 {
        self.finished_at() + (4 * self.0.generated * self.0.heads).next_multiple_of(256) as u64
    }

    /// Bytes for a copy of a product's inputs in the type of its weights.
    pub(super) fn shadow_bytes(&self) -> u64 {
        let row = 2 * self.0.width.next_multiple_of(8) as u64;
        (self.0.rows as u64 * row).next_multiple_of(ALIGN)
    }

    /// Where another such copy goes, of generated rows alone, while the first is read.
    pub(super) fn second_at(&self) -> u64 {
        self.shadow_bytes()
    }

    /// Bytes for that.
    pub(super) fn second_bytes(&self) -> u64 {
        let row = 2 * self.0.width.next_multiple_of(8) as u64;
        (self.0.generated as u64 * row).next_multiple_of(ALIGN)
    }

    /// Where parts of attention begin.
    pub(super) fn parts_at(&self) -> u64 {
        self.second_at() + self.second_bytes()
    }

    /// Where counters of finished parts begin; they are nought between launches.
    pub(super) fn finished_at(&self) -> u64 {
        let units = self.0.keys.div_ceil(UNIT_KEYS) as u64;
        let lines = self.0.generated as u64 * self.0.heads as u64 * units;
        self.parts_at() + (lines * 4 * (self.0.d_head as u64 + 2)).next_multiple_of(ALIGN)
    }
}
