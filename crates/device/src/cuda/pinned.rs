//! Pinned host memory, which the card accesses at full speed. A host slab is filled first and
//! then registered with the driver granule by granule. The thread that fills the last byte of
//! a granule registers it, so threads register in parallel.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use super::memory::CudaStream;
use crate::host::HostRegistration;
use crate::{Result, Span};

/// A buffer of pinned host memory.
pub(super) struct Pinned {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: the buffer owns plain memory.
unsafe impl Send for Pinned {}
// SAFETY: threads share only the address, and only kernels write through it.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // The memory is usable in every context and not write-combined, because the host reads
        // it. Kernels use the same address.
        // SAFETY: plain memory, freed on drop.
        let start = unsafe {
            result::malloc_host(
                bytes,
                sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP,
            )
        }
        .context("pinning host memory")?;
        let mut pinned = Pinned {
            start: start.cast(),
            bytes,
        };
        pinned.bytes().fill(0);
        Ok(pinned)
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: owned memory of this length, of which every byte is valid.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// A pinned buffer that a stream may read or write.
///
/// Dropping it waits for the stream. If the stream cannot be waited for, the buffer is leaked:
/// the card might still use the memory, and freed memory may belong to another owner.
pub(super) struct InFlight<'s> {
    /// Buffer; `None` after the work on it has ended.
    pinned: Option<Pinned>,
    stream: &'s CudaStream,
}

impl<'s> InFlight<'s> {
    /// Hands a buffer to a stream.
    pub(super) fn new(pinned: Pinned, stream: &'s CudaStream) -> Self {
        InFlight {
            pinned: Some(pinned),
            stream,
        }
    }

    /// Address of the buffer.
    pub(super) fn start(&self) -> *mut u8 {
        self.pinned.as_ref().expect("taken only at the end").start
    }

    /// Takes the buffer back. The caller has waited for the work on it.
    pub(super) fn finished(mut self) -> Pinned {
        self.pinned.take().expect("taken only at the end")
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(pinned) = self.pinned.take()
            && self.stream.wait().is_err()
        {
            std::mem::forget(pinned);
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once. The owner has waited for all copies of it: `InFlight` for
        // staging buffers, `CudaDevice::drop` for the word of faults, `LinkClock::drop` for
        // buffers of measurements.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// Bytes of a granule.
pub(super) const GRANULE: u64 = 256 << 20;

/// Registered granules of a host slab.
pub(super) struct Registered {
    /// Streams of the device that copies from and to the slab. They drop before the card, because
    /// they live in its context.
    streams: [Arc<CudaStream>; 4],
    card: Arc<Card>,
    base: *mut u8,
    bytes: u64,
    /// Number of filled bytes of each granule.
    filled: Vec<AtomicU64>,
    done: Mutex<Vec<usize>>,
}

// SAFETY: the address is in memory that outlives `self`, and the handle belongs to the driver.
unsafe impl Send for Registered {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(
        card: &Arc<Card>,
        streams: [Arc<CudaStream>; 4],
        base: *mut u8,
        bytes: u64,
    ) -> Self {
        let granules = bytes.div_ceil(GRANULE);
        Registered {
            card: Arc::clone(card),
            streams,
            base,
            bytes,
            filled: (0..granules).map(|_| AtomicU64::new(0)).collect(),
            done: Mutex::default(),
        }
    }

    /// Writes a byte to each page of a granule that is not filled yet.
    fn touch(&self, granule: usize) {
        let start = granule as u64 * GRANULE;
        if self.filled[granule].load(Ordering::Acquire) > 0 {
            return;
        }
        for at in (start..(start + GRANULE).min(self.bytes)).step_by(4096) {
            // SAFETY: a byte of memory that outlives `self`. `HostSlab::seal` holds a borrow of
            // all bytes, so no other call uses them.
            unsafe { self.base.wrapping_add(at as usize).write_volatile(0) };
        }
    }

    fn register(&self, granule: usize) -> Result<()> {
        self.card.enter()?;
        let start = granule as u64 * GRANULE;
        let bytes = GRANULE.min(self.bytes - start) as usize;
        let at = self.base.wrapping_add(start as usize).cast::<c_void>();
        // Kernels write results to this memory by the host's address.
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the granule lies in memory that outlives `self`, and no granule is registered
        // twice, because its last byte is filled once and `sealed` skips registered granules.
        unsafe { sys::cuMemHostRegister_v2(at, bytes, flags) }
            .result()
            .context("pinning host memory")?;
        self.lock().push(granule);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostRegistration for Registered {
    fn filled(&self, span: Span) -> Result<()> {
        let mut at = span.offset;
        while at < span.end() {
            let granule = (at / GRANULE) as usize;
            let start = granule as u64 * GRANULE;
            let end = (start + GRANULE).min(self.bytes);
            let part = end.min(span.end()) - at;
            let before = self.filled[granule].fetch_add(part, Ordering::AcqRel);
            if before + part == end - start {
                self.register(granule)?;
            }
            at += part;
        }
        Ok(())
    }

    fn sealed(&self) -> Result<()> {
        let done: HashSet<usize> = self.lock().iter().copied().collect();
        let left = (0..self.filled.len()).filter(|granule| !done.contains(granule));
        let left: Mutex<Vec<usize>> = Mutex::new(left.collect());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Faulting in pages takes most of the time, so threads do it in parallel.
        let work = || {
            std::iter::from_fn(next).try_for_each(|granule| {
                self.touch(granule);
                self.register(granule)
            })
        };
        let threads = crate::host::cores();
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let ended = others.into_iter().map(|other| match other.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.fold(work(), Result::and)
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = self.card.enter();
        // The memory is freed next, so every copy from and to it must end first. A stream that
        // cannot be waited for has failed, and its copies with it.
        for stream in &self.streams {
            let _ = stream.wait();
        }
        for granule in self.lock().drain(..) {
            let at = self.base.wrapping_add(granule * GRANULE as usize);
            // SAFETY: registered once, and no copy of the device is in flight.
            let _ = unsafe { sys::cuMemHostUnregister(at.cast()) }.result();
        }
    }
}
