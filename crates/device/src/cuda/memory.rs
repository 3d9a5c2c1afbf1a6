//! Memory and streams of a card.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use super::memory_ledger::MemoryLedger;
use crate::Result;

/// Memory on a card, zeroed when it is allocated.
pub(super) struct DeviceMemory {
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: u64,
    ledger: Arc<MemoryLedger>,
}

impl DeviceMemory {
    pub(super) fn new(card: &Card, bytes: u64) -> Result<Self> {
        card.enter()?;
        let (free, _) = card.memory()?;
        if bytes > free {
            return Err(card.too_little(bytes, free));
        }
        // SAFETY: plain memory, freed on drop.
        let allocate = || unsafe { result::malloc_sync(bytes.max(1) as usize) };
        let memory = DeviceMemory {
            address: card
                .ledger
                .allocate(bytes, allocate)
                .context("allocating device memory")?,
            bytes,
            ledger: Arc::clone(&card.ledger),
        };
        // A stream of its own: waiting for the whole context would end a recording of another engine.
        let stream = CudaStream::new(card, false)?;
        // SAFETY: the memory just allocated; the stream is idle before this function returns.
        unsafe { result::memset_d8_async(memory.address, 0, bytes as usize, stream.stream) }
            .context("clearing device memory")?;
        stream.wait()?;
        Ok(memory)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.ledger.free(self.bytes, || {
            // SAFETY: allocated once; the owner has waited for all work that uses it.
            let _ = unsafe { result::free_sync(self.address) };
        });
    }
}

/// A stream of the driver.
pub(super) struct CudaStream {
    pub(super) stream: sys::CUstream,
}

// SAFETY: the field is a handle of the driver, which allows its use from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// Creates a stream of the highest (`first`) or the lowest priority.
    pub(super) fn new(card: &Card, first: bool) -> Result<Self> {
        card.enter()?;
        let kind = result::stream::StreamKind::NonBlocking;
        let (least, greatest) =
            result::stream::get_priority_range().context("reading stream priorities")?;
        let priority = if first { greatest } else { least };
        let stream = result::stream::create_with_priority(kind, priority);
        Ok(CudaStream {
            stream: stream.context("creating a stream")?,
        })
    }

    /// Blocks the caller until the stream is idle.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: a stream of this device.
        unsafe { result::stream::synchronize(self.stream) }.context("waiting for the card")
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: created once; its owner has waited for its work.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}
