//! The CPU as a backend.

use std::sync::Arc;

use djinn_types::{DType, Tier};

use super::{CpuDevice, CpuOptions, Isa};
use crate::{Backend, Device, DeviceLimits, PassLimits, Result, host};

/// The CPU, not opened yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend {
    /// Number of threads; all usable cores if `None`.
    pub threads: Option<usize>,
    /// Instruction set; the best one available if `None`.
    pub isa: Option<Isa>,
}

impl CpuBackend {
    fn options(self, slab_bytes: u64) -> CpuOptions {
        CpuOptions {
            threads: self.threads,
            slab_bytes,
            isa: self.isa,
        }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        "cpu".to_owned()
    }

    fn detail(&self) -> String {
        let isa = self.isa.unwrap_or_else(Isa::detect);
        let threads = self.threads.unwrap_or_else(host::cores);
        let plural = if threads == 1 { "" } else { "s" };
        format!("{isa}, {threads} thread{plural}")
    }

    fn phases_agree(&self) -> bool {
        // Every output element is reduced in an order of its own inputs alone.
        true
    }

    fn tier(&self) -> Tier {
        Tier::Files
    }

    fn is_host_memory(&self) -> bool {
        true
    }

    fn overhead(&self) -> u64 {
        0
    }

    fn host_tables(&self, _: u64) -> u64 {
        0
    }

    fn graph_bytes(&self, _: usize) -> u64 {
        0
    }

    fn scratch_bytes(&self, _: PassLimits) -> u64 {
        0
    }

    fn limits(&self, _: DType, _: usize) -> DeviceLimits {
        DeviceLimits::NONE
    }

    fn max_piece_bytes(&self) -> u64 {
        8 << 20
    }

    fn check(&self, slab_bytes: u64) -> Result<()> {
        self.options(slab_bytes).check()
    }

    fn free_memory(&self) -> Result<u64> {
        Ok(host::available_memory())
    }

    fn open(&self, slab_bytes: u64, _: PassLimits) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(CpuDevice::new(self.options(slab_bytes))?))
    }

    fn measure_bandwidth(&self, bytes: u64) -> Result<f64> {
        CpuDevice::new(self.options(0))?.read_bandwidth(bytes)
    }
}
