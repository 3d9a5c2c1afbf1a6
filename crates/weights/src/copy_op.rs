//! Copies of weights: from a file into memory, or from host memory into the slab.

use djinn_model::Extent;

use crate::Placement;

/// A copy of weights into memory. `S` is the source: an [`Extent`] of a file, or a
/// [`Placement`] in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOp<S> {
    /// Source of the bytes.
    pub from: S,
    /// Destination of the bytes.
    pub to: Placement,
    /// Number that the timeline shows as the name of the piece.
    pub label: u32,
}

impl<S> CopyOp<S> {
    /// Changes the destination by `distance` bytes: from the first slot of the expert
    /// pool to another.
    pub fn shifted(self, distance: u64) -> Self {
        let offset = self.to.offset + distance;
        CopyOp {
            to: Placement { offset, ..self.to },
            ..self
        }
    }
}

impl CopyOp<Extent> {
    /// Returns `bytes` bytes of the copy, `start` bytes from its start.
    pub fn part(&self, start: u64, bytes: u64) -> Self {
        CopyOp {
            from: Extent {
                offset: self.from.offset + start,
                bytes,
                ..self.from
            },
            to: self.to.part(start, bytes),
            label: self.label,
        }
    }
}

impl CopyOp<Placement> {
    /// Returns `bytes` bytes of the copy, `start` bytes from its start.
    pub fn part(&self, start: u64, bytes: u64) -> Self {
        CopyOp {
            from: self.from.part(start, bytes),
            to: self.to.part(start, bytes),
            label: self.label,
        }
    }
}
