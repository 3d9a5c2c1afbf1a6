//! Memory and streams of a card.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use super::memory_ledger::MemoryLedger;
use crate::Result;

/// Memory on a card, zeroed when it is allocated. It can be freed and allocated again.
pub(super) struct DeviceMemory {
    /// Zero while the memory is freed.
    address: AtomicU64,
    pub(super) bytes: u64,
    ledger: Arc<MemoryLedger>,
}

impl DeviceMemory {
    pub(super) fn new(card: &Card, bytes: u64) -> Result<Self> {
        let memory = DeviceMemory {
            address: AtomicU64::new(0),
            bytes,
            ledger: Arc::clone(&card.ledger),
        };
        memory.allocate(card)?;
        Ok(memory)
    }

    /// First address of the memory; zero while the memory is freed.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address.load(Ordering::Acquire)
    }

    /// Allocates the memory, unless it is allocated. The owner calls this from one thread at a time.
    pub(super) fn allocate(&self, card: &Card) -> Result<()> {
        if self.address() != 0 {
            return Ok(());
        }
        card.enter()?;
        let (free, _) = card.memory()?;
        if self.bytes > free {
            return Err(card.too_little(self.bytes, free));
        }
        // SAFETY: plain memory, freed once by `free`.
        let allocate = || unsafe { result::malloc_sync(self.bytes.max(1) as usize) };
        let address = card
            .ledger
            .allocate(self.bytes, allocate)
            .context("allocating device memory")?;
        self.address.store(address, Ordering::Release);
        // A stream of its own: waiting for the whole context would end a recording of another engine.
        let stream = CudaStream::new(card, false)?;
        // SAFETY: the memory just allocated; the stream is idle before this function returns.
        unsafe { result::memset_d8_async(address, 0, self.bytes as usize, stream.stream) }
            .context("clearing device memory")?;
        stream.wait()
    }

    /// Frees the memory, unless it is freed. The owner has waited for all work that uses it.
    pub(super) fn free(&self) {
        let address = self.address.swap(0, Ordering::AcqRel);
        if address != 0 {
            self.ledger.free(self.bytes, || {
                // SAFETY: allocated once, and nothing uses it any more.
                let _ = unsafe { result::free_sync(address) };
            });
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.free();
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
