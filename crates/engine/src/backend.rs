//! Which device to run on.

use std::sync::Arc;

use djinn_device::{
    DType, Device, DeviceError,
    cpu::{CpuDevice, CpuOptions, Isa},
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
}

impl Backend {
    /// The processor with all its cores.
    pub fn cpu() -> Self {
        Backend::Cpu {
            threads: None,
            isa: None,
        }
    }

    /// How this backend stores keys and values.
    pub fn kv_dtype(&self) -> DType {
        match self {
            Backend::Cpu { .. } => DType::F32,
        }
    }

    /// The largest piece a model's weights are cut into. Few and large ones cost the
    /// least to run, many and small ones waste the least memory: the ring holds a few.
    pub fn piece_bytes(&self, weight_bytes: u64) -> u64 {
        match self {
            Backend::Cpu { .. } => (weight_bytes / 256).clamp(64 << 10, 8 << 20),
        }
    }

    /// Whether the device can be opened with a slab of this size, as far as can be told
    /// without taking it.
    pub fn check(&self, slab_bytes: u64) -> Result<(), DeviceError> {
        match self {
            Backend::Cpu { .. } => self.cpu_options(slab_bytes).check(),
        }
    }

    /// Takes the device with a slab of this size.
    pub fn open(&self, slab_bytes: u64) -> Result<Arc<dyn Device>, DeviceError> {
        match self {
            Backend::Cpu { .. } => Ok(Arc::new(CpuDevice::new(self.cpu_options(slab_bytes))?)),
        }
    }

    fn cpu_options(&self, slab_bytes: u64) -> CpuOptions {
        let Backend::Cpu { threads, isa } = *self;
        CpuOptions {
            threads,
            slab_bytes,
            isa,
        }
    }
}
