//! An NVIDIA card as a backend.

use std::sync::Arc;

use djinn_types::{DType, Tier};

use super::kernels::ROWS_MAX;
use super::link::measure_memory;
use super::scratch::Scratch;
use super::{Card, CudaDevice};
use crate::{ALIGN, Backend, Device, DeviceLimits, PassLimits, Result};

/// Bytes of host memory that one byte of the driver's page tables maps: eight bytes for
/// every page of 4 KiB.
const MAPPED_PER_TABLE_BYTE: u64 = 512;
/// Bytes that the driver needs for the recorded pass of one number of sessions. Fifty
/// recordings of a 13B model took about 18 MB.
const GRAPH_BYTES: u64 = 512 << 10;
/// Number of recordings that a device keeps.
const GRAPHS: usize = 128;

/// An NVIDIA card, not opened as a device yet.
#[derive(Clone, Debug)]
pub struct CudaBackend {
    card: Arc<Card>,
}

impl CudaBackend {
    /// Opens the card with this number.
    pub fn new(ordinal: usize) -> Result<Self> {
        let card = Card::open(ordinal)?;
        Ok(CudaBackend { card })
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> String {
        self.card.label()
    }

    fn detail(&self) -> String {
        self.card.name().to_owned()
    }

    fn phases_agree(&self) -> bool {
        // Prompts use cuBLASLt, and generated tokens kernels for few rows.
        false
    }

    fn tier(&self) -> Tier {
        Tier::Host
    }

    fn is_host_memory(&self) -> bool {
        false
    }

    fn overhead(&self) -> u64 {
        self.card.overhead()
    }

    fn host_tables(&self, host_bytes: u64) -> u64 {
        host_bytes / MAPPED_PER_TABLE_BYTE
    }

    fn graph_bytes(&self, sessions: usize) -> u64 {
        sessions.min(GRAPHS) as u64 * GRAPH_BYTES
    }

    fn scratch_bytes(&self, limits: PassLimits) -> u64 {
        Scratch(limits).bytes() + ALIGN
    }

    fn limits(&self, kv_dtype: DType, d_head: usize) -> DeviceLimits {
        DeviceLimits {
            rows: ROWS_MAX,
            keys: self.card.keys_max(kv_dtype, d_head),
            pattern_keys: self.card.scores_max(),
        }
    }

    fn max_piece_bytes(&self) -> u64 {
        32 << 20
    }

    fn check(&self, slab_bytes: u64) -> Result<()> {
        let (free, _) = self.card.memory()?;
        if slab_bytes > free {
            return Err(self.card.too_little(slab_bytes, free));
        }
        Ok(())
    }

    fn free_memory(&self) -> Result<u64> {
        Ok(self.card.memory()?.0.saturating_add(self.card.overhead()))
    }

    fn open(&self, slab_bytes: u64, limits: PassLimits) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(CudaDevice::new(&self.card, slab_bytes, limits)?))
    }

    fn measure_bandwidth(&self, _: u64) -> Result<f64> {
        measure_memory(&self.card)
    }

    fn card(&self) -> Option<&Arc<Card>> {
        Some(&self.card)
    }
}
