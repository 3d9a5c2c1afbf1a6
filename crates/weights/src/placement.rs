//! Locations of weights in memory.

use djinn_device::Span;

/// Part of memory that holds weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Part of the slab with weights that stay for good.
    Resident,
    /// Ring in the slab, at this visit of each pass.
    Ring(usize),
    /// Expert pool in the slab. The offset belongs to the pool's first slot.
    Pool,
    /// Host memory that the device copies from.
    Host,
}

/// Location of some bytes of the weights in the slab or in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Part of memory that the bytes lie in.
    pub region: Region,
    /// Offset from the start of the slab, or of host memory for [`Region::Host`].
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Placement {
    /// Offset of the first byte after the placement.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Span of the memory that [`Placement::region`] names.
    pub fn span(&self) -> Span {
        Span {
            offset: self.offset,
            bytes: self.bytes,
        }
    }

    /// Returns `bytes` bytes of the placement, `start` bytes from its start.
    pub fn part(&self, start: u64, bytes: u64) -> Placement {
        debug_assert!(start + bytes <= self.bytes, "a part lies in its whole");
        Placement {
            offset: self.offset + start,
            bytes,
            ..*self
        }
    }
}
