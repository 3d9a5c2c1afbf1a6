//! Host memory that the card reads at full speed: filled first, then registered with the
//! driver a granule at a time by whoever filled its last byte, so that many threads do it
//! at once and nothing waits for a whole.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::card::{Card, Said};
use crate::host::Keeper;
use crate::{Result, Span};

/// Bytes registered at a time.
pub(super) const GRANULE: u64 = 256 << 20;

/// Which granules of some memory are registered.
pub(super) struct Registered {
    card: Arc<Card>,
    base: *mut u8,
    bytes: u64,
    /// Bytes of each granule that have been filled.
    filled: Vec<AtomicU64>,
    done: Mutex<Vec<usize>>,
}

// SAFETY: the place of memory that lives longer than this, and a handle of the driver.
unsafe impl Send for Registered {}
// SAFETY: as above.
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

    fn register(&self, granule: usize) -> Result<()> {
        self.card.enter()?;
        let start = granule as u64 * GRANULE;
        let bytes = GRANULE.min(self.bytes - start) as usize;
        let at = self.base.wrapping_add(start as usize).cast::<c_void>();
        // SAFETY: memory of this length that stays until this is dropped.
        unsafe { sys::cuMemHostRegister_v2(at, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }
            .result()
            .said("pinning host memory")?;
        self.lock().push(granule);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper for Registered {
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
        let is_done = |granule: &usize| self.lock().contains(granule);
        let left = (0..self.filled.len()).filter(|granule| !is_done(granule));
        left.collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|granule| self.register(granule))
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
