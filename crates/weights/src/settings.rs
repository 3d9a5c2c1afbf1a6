//! How much memory there is, and how weights come into it: as asked, and as settled for
//! a device.

use djinn_device::host;
use djinn_model::program::{Program, Role};
use djinn_types::{DType, IO_BLOCK, Tier};

use crate::{Overrides, WeightsError};

/// How much memory there is, and how weights come into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Bytes the engine may take of the device: weights, KV, activations, and what the
    /// driver takes.
    pub budget: u64,
    /// Bytes of host memory that weights may stream from; all there is when the largest
    /// number.
    pub host_budget: u64,
    /// What the user decided instead of the plan.
    pub overrides: Overrides,
    /// Where weights stream from; what suits the device when not said.
    pub tier: Option<Tier>,
    /// Bytes copied at a time; what suits the tier when not said.
    pub chunk: Option<u64>,
    /// Threads that read; what suits the tier when not said.
    pub workers: Option<usize>,
    /// Whether weights are brought ahead of their use.
    pub prefetch: bool,
}

impl MemorySettings {
    /// More than this many readers no disk is the better for.
    pub const WORKERS_MAX: usize = 64;
}

impl Default for MemorySettings {
    fn default() -> Self {
        MemorySettings {
            budget: u64::MAX,
            host_budget: u64::MAX,
            overrides: Overrides::default(),
            tier: None,
            chunk: None,
            workers: None,
            prefetch: true,
        }
    }
}

/// The link as it was settled for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Where weights stream from.
    pub tier: Tier,
    /// Bytes copied at a time.
    pub chunk: u64,
    /// Threads that read.
    pub workers: usize,
}

impl LinkSettings {
    /// Bytes read at a time into host memory: larger ones read no faster, and a card's
    /// loads pass through as much pinned memory for each worker.
    const LOAD_CHUNK: u64 = 32 << 20;

    /// What was asked for, with the rest filled in. Chunks are whole blocks.
    pub fn settle(memory: &MemorySettings, default_tier: Tier) -> Result<Self, WeightsError> {
        let tier = memory.tier.unwrap_or(default_tier);
        let (chunk, workers) = match tier {
            Tier::Files => (1 << 20, 4),
            Tier::Host => (64 << 20, host::cores().min(16)),
        };
        let workers = memory.workers.unwrap_or(workers);
        if workers == 0 || workers > MemorySettings::WORKERS_MAX {
            return Err(WeightsError::WorkerCount { asked: workers });
        }
        let chunk = memory.chunk.unwrap_or(chunk).max(1);
        let chunk = chunk.checked_next_multiple_of(IO_BLOCK);
        Ok(LinkSettings {
            tier,
            chunk: chunk.unwrap_or(u64::MAX / IO_BLOCK * IO_BLOCK),
            workers,
        })
    }

    /// Bytes read at a time while loading.
    pub(crate) fn load_chunk(&self) -> u64 {
        match self.tier {
            Tier::Files => self.chunk,
            Tier::Host => self.chunk.min(Self::LOAD_CHUNK),
        }
    }

    /// Pieces that wait in the ring beside the one in use. Disks stutter, and attention
    /// comes between products: with two, passes that read and compute for equally long
    /// took a quarter longer than either. A copy engine does not stutter.
    pub(crate) fn waiting(&self) -> u64 {
        match self.tier {
            Tier::Files => 5,
            Tier::Host => 2,
        }
    }

    /// Bytes under way at once when pieces are at most so large.
    pub(crate) fn in_flight(&self, largest: u64) -> u64 {
        match self.tier {
            Tier::Files => self.workers as u64 * self.chunk.min(largest),
            Tier::Host => largest,
        }
    }
}

/// How most of a program's weights are stored.
pub fn weights_dtype(program: &Program) -> DType {
    let matrix = program.tensors.iter().find(|t| t.role == Role::Matrix);
    matrix.map_or(DType::F32, |tensor| tensor.dtype)
}
