//! Alignment of tensors in the memory of a piece.

use djinn_device::ALIGN;
use djinn_types::IO_BLOCK;

/// Rule for the alignment of tensors in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Tensors keep the alignment of their file, and pieces are whole blocks. Direct I/O writes
    /// straight into place.
    Blocks,
    /// Every tensor starts at a multiple of [`ALIGN`]. A GPU reads such tensors at full speed.
    Tensors,
}

impl Packing {
    /// Widens the range `start..end` of a file to the range that is read. The bytes between
    /// tensors are never used, so they may hold the next bytes of the file.
    pub(crate) fn widen(self, start: u64, end: u64) -> (u64, u64) {
        match self {
            Packing::Blocks => (start / IO_BLOCK * IO_BLOCK, end.next_multiple_of(IO_BLOCK)),
            Packing::Tensors => (start, start + (end - start).next_multiple_of(ALIGN)),
        }
    }

    /// Whether a read that starts at `from` continues a read that ends at `end`.
    pub(crate) fn joins(self, end: u64, from: u64) -> bool {
        match self {
            Packing::Blocks => from <= end,
            Packing::Tensors => from == end,
        }
    }

    /// Number of rows that stay together where a matrix is cut. A GPU's kernels work on this many
    /// rows at once.
    pub(crate) fn rows_together(self) -> usize {
        match self {
            Packing::Blocks => 1,
            Packing::Tensors => 64,
        }
    }
}
