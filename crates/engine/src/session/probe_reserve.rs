//! Host memory that captures and checkpoints of sessions take.

/// Host memory that a turn can take for its probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeReserve {
    /// Bytes of the captures.
    pub captures: u64,
    /// Bytes of the largest checkpoint.
    pub checkpoint: u64,
}

impl ProbeReserve {
    /// Bytes of captures and checkpoint together.
    pub fn total(self) -> u64 {
        self.captures.saturating_add(self.checkpoint)
    }
}
