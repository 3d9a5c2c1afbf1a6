//! Memory that operations need for themselves, behind the slab's end.

use crate::ALIGN;

/// What operations will be asked for at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Rows of a pass.
    pub rows: usize,
    /// Elements of the widest input of a product.
    pub width: usize,
    /// Rows of a pass that were generated.
    pub generated: usize,
    /// Query heads.
    pub heads: usize,
    /// Elements of a head.
    pub d_head: usize,
    /// Keys of the longest context, in whole pages.
    pub keys: usize,
}

/// Keys of a unit in the attention of generated tokens, as the sources have it.
pub(super) const UNIT_KEYS: usize = 64;

impl Scratch {
    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        self.finished_at() + (4 * self.generated * self.heads).next_multiple_of(256) as u64
    }

    /// Bytes for a copy of a product's inputs in the type of its weights.
    pub(super) fn shadow_bytes(&self) -> u64 {
        let row = 2 * self.width.next_multiple_of(8) as u64;
        (self.rows as u64 * row).next_multiple_of(ALIGN)
    }

    /// Where another such copy goes, of generated rows alone, while the first is read.
    pub(super) fn second_at(&self) -> u64 {
        self.shadow_bytes()
    }

    /// Bytes for that.
    pub(super) fn second_bytes(&self) -> u64 {
        let row = 2 * self.width.next_multiple_of(8) as u64;
        (self.generated as u64 * row).next_multiple_of(ALIGN)
    }

    /// Where parts of attention begin.
    pub(super) fn parts_at(&self) -> u64 {
        self.second_at() + self.second_bytes()
    }

    /// Where counters of finished parts begin; they are nought between launches.
    pub(super) fn finished_at(&self) -> u64 {
        let units = self.keys.div_ceil(UNIT_KEYS) as u64;
        let lines = self.generated as u64 * self.heads as u64 * units;
        self.parts_at() + (lines * 4 * (self.d_head as u64 + 2)).next_multiple_of(ALIGN)
    }
}
