//! Settings of memory budgets and of the link that weights stream over.

use djinn_device::host;
use djinn_model::program::{Program, Role};
use djinn_types::{DType, IO_BLOCK, KvDtype, Tier};

use crate::{Overrides, Packing, WeightsError};

/// Memory budgets and settings of the link, as the user gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Bytes of device memory that the engine may use for weights, KV, activations and
    /// the driver.
    pub budget: u64,
    /// Bytes of host memory that weights may stream from; `u64::MAX` for no limit.
    pub host_budget: u64,
    /// Decisions of the user that replace decisions of the plan.
    pub overrides: Overrides,
    /// Tier that weights stream from; the default depends on the device.
    pub tier: Option<Tier>,
    /// Bytes of one copy; the default depends on the tier.
    pub chunk: Option<u64>,
    /// Number of threads that read files; the default depends on the tier.
    pub workers: Option<usize>,
    /// Whether weights are copied ahead of their use.
    pub prefetch: bool,
    /// Element type of keys and values.
    pub kv_dtype: KvDtype,
    /// Whether resident weights yield their memory to KV pages when sessions need it.
    pub elastic: bool,
    /// Whether host memory keeps a copy of all weights, from which a model returns to the device. Has
    /// no effect if weights stream from files.
    pub host_copy: bool,
    /// Whether host memory keeps room for the KV pages of running sessions, so that the model can leave
    /// the device for another one.
    pub may_swap: bool,
}

impl MemorySettings {
    /// Largest number of threads that read files. More threads speed up no known disk.
    pub const WORKERS_MAX: usize = 64;

    /// Budget when the user sets none: free memory minus a margin for other programs.
    pub fn default_budget(free: u64) -> u64 {
        let margin = (free / 16).clamp(64 << 20, 1 << 30);
        free.saturating_sub(margin)
    }
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
            kv_dtype: KvDtype::Auto,
            elastic: false,
            host_copy: false,
            may_swap: false,
        }
    }
}

/// Options for the layout of weights.
#[derive(Clone, Copy, Debug)]
pub struct LayoutOptions {
    /// Memory budgets and overrides of the user.
    pub memory: MemorySettings,
    /// The link, with all defaults filled in.
    pub link: LinkSettings,
    /// Alignment of tensors in memory.
    pub packing: Packing,
    /// Largest size of a piece, if its matrices can be cut that small.
    pub piece_bytes: u64,
}

/// Settings of the link for a device, with all defaults resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Tier that weights stream from.
    pub tier: Tier,
    /// Bytes of one copy.
    pub chunk: u64,
    /// Number of threads that read files.
    pub workers: usize,
}

impl LinkSettings {
    /// Bytes of one read into host memory. Larger reads are not faster, and each worker needs the
    /// same amount of pinned memory to load a GPU.
    const LOAD_CHUNK: u64 = 32 << 20;

    /// Bytes of memory that a measurement of the link reads into, unless chunks are larger.
    pub(crate) const MEASURED_BYTES: u64 = 32 << 20;

    /// Resolves the defaults. Rounds chunks up to whole blocks.
    pub fn resolve(memory: &MemorySettings, default_tier: Tier) -> Result<Self, WeightsError> {
        let tier = memory.tier.unwrap_or(default_tier);
        let (chunk, workers) = match tier {
            Tier::Files => (1 << 20, 4),
            Tier::Host => (64 << 20, host::cores().min(16)),
        };
        let workers = memory.workers.unwrap_or(workers);
        if workers == 0 || workers > MemorySettings::WORKERS_MAX {
            return Err(WeightsError::WorkerCount {
                asked: workers,
                limit: MemorySettings::WORKERS_MAX,
            });
        }
        let chunk = memory.chunk.unwrap_or(chunk).max(1);
        let chunk = chunk.checked_next_multiple_of(IO_BLOCK);
        Ok(LinkSettings {
            tier,
            chunk: chunk.unwrap_or(u64::MAX / IO_BLOCK * IO_BLOCK),
            workers,
        })
    }

    /// Bytes of one read while weights are loaded.
    pub(crate) fn load_chunk(&self) -> u64 {
        match self.tier {
            Tier::Files => self.chunk,
            Tier::Host => self.chunk.min(Self::LOAD_CHUNK),
        }
    }

    /// Largest number of bytes of host memory that workers load weights through.
    pub fn load_staging(&self) -> u64 {
        match self.tier {
            Tier::Files => 0,
            Tier::Host => self.workers as u64 * self.load_chunk(),
        }
    }

    /// Number of pieces that wait in the ring in addition to the piece in use. The speed of a
    /// disk varies, and so does the time between two pieces. With two waiting pieces, passes that
    /// read and compute for equally long took 25 % longer than either alone. The speed of a copy
    /// engine does not vary.
    pub(crate) fn waiting(&self) -> u64 {
        match self.tier {
            Tier::Files => 5,
            Tier::Host => 2,
        }
    }

    /// Bytes in flight at once, given the size of the largest piece.
    pub(crate) fn in_flight(&self, largest: u64) -> u64 {
        match self.tier {
            Tier::Files => self.workers as u64 * self.chunk.min(largest),
            Tier::Host => largest,
        }
    }
}

/// Element type of most weights of a program.
pub fn weights_dtype(program: &Program) -> DType {
    let matrix = program.tensors.iter().find(|t| t.role == Role::Matrix);
    matrix.map_or(DType::F32, |tensor| tensor.dtype)
}

#[cfg(test)]
mod tests {
    use super::MemorySettings;

    #[test]
    fn the_default_budget_leaves_a_margin() {
        let margin = |free: u64| free - MemorySettings::default_budget(free);
        assert_eq!(margin(16 << 30), 1 << 30);
        assert_eq!(margin(8 << 30), 1 << 29);
        assert_eq!(margin(1 << 30), 64 << 20);
        assert_eq!(MemorySettings::default_budget(100), 0);
    }
}
