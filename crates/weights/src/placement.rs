//! Locations of weights in memory.

use djinn_device::Span;

/// Part of memory that holds weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The part of the slab whose weights stay for good.
    Resident,
    /// The ring in the slab, at this visit of each pass.
    Ring(usize),
    /// The expert pool in the slab. The offset is that of the pool's first slot.
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
    /// Offset of the first byte behind the placement.
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
