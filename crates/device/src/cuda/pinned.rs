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

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once, and all copies of it have been waited for.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// Bytes of a granule.
pub(super) const GRANULE: u64 = 256 << 20;

/// Registered granules of a host slab.
pub(super) struct Registered {
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
    pub(super) fn new(card: &Arc<Card>, base: *mut u8, bytes: u64) -> Self {
        let granules = bytes.div_ceil(GRANULE);
        Registered {
            card: Arc::clone(card),
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
            // SAFETY: memory that outlives `self`, and that no thread has filled.
            unsafe { self.base.wrapping_add(at as usize).write_volatile(0) };
        }
    }

    fn register(&self, granule: usize) -> Result<()> {
        self.card.enter()?;
        let start = granule as u64 * GRANULE;
        let bytes = GRANULE.min(self.bytes - start) as usize;
        let at = self.base.wrapping_add(start as usize).cast::<c_void>();
        // SAFETY: memory of this length that outlives `self`.
        unsafe { sys::cuMemHostRegister_v2(at, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }
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
        for granule in self.lock().drain(..) {
            let at = self.base.wrapping_add(granule * GRANULE as usize);
            // SAFETY: registered once; the device has waited for all copies from it.
            let _ = unsafe { sys::cuMemHostUnregister(at.cast()) }.result();
        }
    }
}
