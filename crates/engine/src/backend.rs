//! Which device to run on.

use std::sync::Arc;

use djinn_device::{
    ALIGN, Device, DeviceError, Scratch,
    cpu::{CpuDevice, CpuOptions, Isa},
    cuda::{Card, CudaDevice, ROWS_MAX},
    host,
};
use djinn_model::program::Program;
use djinn_types::DType;

use crate::{EngineError, Settings, Tier, image::Packing, memory::weights_dtype};

/// A device that is yet to be opened: its slab's size is known only once the model
/// is laid out.
#[derive(Clone, Debug)]
pub enum Backend {
    /// This machine's processor.
    Cpu {
        /// Threads; all usable cores when not said.
        threads: Option<usize>,
        /// Instruction set; the best there is when not said.
        isa: Option<Isa>,
    },
    /// An NVIDIA card.
    Cuda {
        /// Which.
        card: Arc<Card>,
    },
}

impl Backend {
    /// The processor with all its cores.
    pub fn cpu() -> Self {
        Backend::Cpu {
            threads: None,
            isa: None,
        }
    }

    /// An NVIDIA card, by number.
    pub fn cuda(ordinal: usize) -> Result<Self, DeviceError> {
        let card = Card::open(ordinal)?;
        Ok(Backend::Cuda { card })
    }

    /// How this backend stores keys and values of a model.
    pub fn kv_dtype(&self, program: &Program) -> DType {
        match self {
            Backend::Cpu { .. } => DType::F32,
            Backend::Cuda { .. } => weights_dtype(program),
        }
    }

    /// Where weights stream from unless told otherwise.
    pub fn tier(&self) -> Tier {
        match self {
            Backend::Cpu { .. } => Tier::Files,
            Backend::Cuda { .. } => Tier::Host,
        }
    }

    /// Bytes of the device that this process takes beside its slab; a budget covers
    /// them too.
    pub fn overhead(&self) -> u64 {
        match self {
            Backend::Cpu { .. } => 0,
            Backend::Cuda { card } => card.taken(),
        }
    }

    /// Bytes of the device that its driver takes to know where so much host memory lies:
    /// a card finds each page of 4 KiB through a table of its own, eight bytes a page.
    pub(crate) fn host_tables(&self, host_bytes: u64) -> u64 {
        match self {
            Backend::Cpu { .. } => 0,
            Backend::Cuda { .. } => host_bytes / 512,
        }
    }

    /// Bytes of the device that its driver takes for what is replayed, a pass of each number
    /// of sessions up to this: fifty of a 13B model took some 18 MB.
    pub(crate) fn graph_bytes(&self, sessions: usize) -> u64 {
        match self {
            Backend::Cpu { .. } => 0,
            Backend::Cuda { .. } => sessions.min(128) as u64 * (512 << 10),
        }
    }

    /// Refuses passes that the device's kernels are not made for.
    pub(crate) fn check_settings(
        &self,
        program: &Program,
        settings: &Settings,
    ) -> Result<(), EngineError> {
        let Backend::Cuda { card } = self else {
            return Ok(());
        };
        let keys = settings.table_pages().saturating_mul(settings.page_tokens);
        let keys_max = card.keys_max(self.kv_dtype(program), program.dims.d_head);
        let pattern_keys = settings.probe_limits.pattern_keys;
        for (what, asked, limit) in [
            ("rows of a pass on this card", settings.rows, ROWS_MAX),
            ("keys of such heads on this card", keys, keys_max),
            (
                "keys of a pattern on this card",
                pattern_keys,
                card.scores_max(),
            ),
        ] {
            if asked > limit {
                return Err(EngineError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }

    /// Bytes of the device that its operations take for themselves.
    pub fn scratch_bytes(&self, scratch: Scratch) -> u64 {
        match self {
            Backend::Cpu { .. } => 0,
            Backend::Cuda { .. } => scratch.bytes() + ALIGN,
        }
    }

    /// How weights lie that come from a tier.
    pub(crate) fn packing(&self, tier: Tier) -> Packing {
        match (self, tier) {
            (Backend::Cpu { .. }, Tier::Files) => Packing::Blocks,
            _ => Packing::Tensors,
        }
    }

    /// Bytes of host memory that a slab of this size takes.
    pub(crate) fn slab_on_host(&self, slab_bytes: u64) -> u64 {
        match self {
            Backend::Cpu { .. } => slab_bytes,
            Backend::Cuda { .. } => 0,
        }
    }

    /// The largest piece a model's weights are cut into. Few and large ones cost the
    /// least to run, many and small ones waste the least memory: the ring holds a few.
    pub fn piece_bytes(&self, weight_bytes: u64) -> u64 {
        match self {
            Backend::Cpu { .. } => (weight_bytes / 256).clamp(64 << 10, 8 << 20),
            Backend::Cuda { .. } => (weight_bytes / 256).clamp(64 << 10, 32 << 20),
        }
    }

    /// Whether the device can be opened with a slab of this size, as far as can be told
    /// without taking it.
    pub fn check(&self, slab_bytes: u64) -> Result<(), DeviceError> {
        match self {
            &Backend::Cpu { threads, isa } => cpu_options(threads, isa, slab_bytes).check(),
            Backend::Cuda { card } => {
                let (free, _) = card.memory()?;
                if slab_bytes > free {
                    return Err(card.too_little(slab_bytes, free));
                }
                Ok(())
            }
        }
    }

    /// Bytes of memory the device has free, what this process already took included.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        match self {
            Backend::Cpu { .. } => Ok(host::available_memory()),
            Backend::Cuda { card } => Ok(card.memory()?.0.saturating_add(card.taken())),
        }
    }

    /// Takes the device with a slab of this size.
    pub fn open(&self, slab_bytes: u64, scratch: Scratch) -> Result<Arc<dyn Device>, DeviceError> {
        match self {
            &Backend::Cpu { threads, isa } => {
                let options = cpu_options(threads, isa, slab_bytes);
                Ok(Arc::new(CpuDevice::new(options)?))
            }
            Backend::Cuda { card } => Ok(Arc::new(CudaDevice::new(card, slab_bytes, scratch)?)),
        }
    }
}

fn cpu_options(threads: Option<usize>, isa: Option<Isa>, slab_bytes: u64) -> CpuOptions {
    CpuOptions {
        threads,
        slab_bytes,
        isa,
    }
}
