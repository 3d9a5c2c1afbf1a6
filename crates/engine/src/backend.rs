//! Which device to run on.

use std::sync::Arc;

use djinn_device::{
    DType, Device, DeviceError, Scratch,
    cpu::{CpuDevice, CpuOptions, Isa},
    cuda::{Card, CudaDevice},
    host,
};

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

    /// How this backend stores keys and values.
    pub fn kv_dtype(&self) -> DType {
        match self {
            Backend::Cpu { .. } | Backend::Cuda { .. } => DType::F32,
        }
    }

    /// The largest piece a model's weights are cut into. Few and large ones cost the
    /// least to run, many and small ones waste the least memory: the ring holds a few.
    pub fn piece_bytes(&self, weight_bytes: u64) -> u64 {
        match self {
            Backend::Cpu { .. } => (weight_bytes / 256).clamp(64 << 10, 8 << 20),
            // A guess until streaming to a card is measured.
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

    /// Bytes of memory the device has free.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        match self {
            Backend::Cpu { .. } => Ok(host::available_memory()),
            Backend::Cuda { card } => Ok(card.memory()?.0),
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
