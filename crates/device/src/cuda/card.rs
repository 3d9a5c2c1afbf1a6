//! A card, its context, its streams and the memory on it: the driver's calls, each with
//! what it was for.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use crate::{DeviceError, Result};

/// Names a driver call in its error.
pub(super) trait Said<T> {
    fn said(self, what: &'static str) -> Result<T>;
}

impl<T> Said<T> for std::result::Result<T, result::DriverError> {
    fn said(self, what: &'static str) -> Result<T> {
        self.map_err(|error| {
            let text = error.error_string().ok();
            let reason = text.map_or_else(|| format!("{error:?}"), |t| t.to_string_lossy().into());
            DeviceError::Driver { what, reason }
        })
    }
}

/// A context on a card. Everything else here belongs to one.
pub(super) struct Card {
    pub(super) ordinal: usize,
    pub(super) name: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

impl Card {
    /// Finds the driver and takes a card.
    pub(super) fn open(ordinal: usize) -> Result<Self> {
        let refuse = |reason: String| DeviceError::Setup(format!("cuda:{ordinal}: {reason}"));
        // SAFETY: only looks for the library; without it every other call would panic.
        if !unsafe { sys::is_culib_present() } {
            let reason = "no NVIDIA driver here (libcuda is not found); use --device cpu";
            return Err(refuse(reason.into()));
        }
        result::init().said("starting the driver")?;
        let count = result::device::get_count().said("counting cards")? as usize;
        if ordinal >= count {
            let reason = match count {
                0 => "the driver shows no card (is CUDA_VISIBLE_DEVICES set?)".to_owned(),
                _ => format!("there are cards 0 to {}", count - 1),
            };
            return Err(refuse(reason));
        }
        let device = result::device::get(ordinal as i32).said("taking the card")?;
        let name = result::device::get_name(device).said("asking the card's name")?;
        // SAFETY: a device the driver just gave; released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.said("making a context")?;
        Ok(Card {
            ordinal,
            name,
            device,
            context,
        })
    }

    /// Makes the calling thread's calls go to this card.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this.
        unsafe { result::ctx::set_current(self.context) }.said("entering the context")
    }

    /// Bytes of shared memory a block may ask for.
    pub(super) fn shared_max(&self) -> Result<usize> {
        let what = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: a device of the driver.
        let bytes = unsafe { result::device::get_attribute(self.device, what) };
        Ok(bytes.said("asking for shared memory")? as usize)
    }

    /// Free and all bytes of the card's memory.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (free, total) = result::mem_get_info().said("asking for free memory")?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: retained once, and nothing of it is used any more.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory on the card.
pub(super) struct Memory {
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: u64,
}

impl Memory {
    pub(super) fn new(card: &Card, bytes: u64) -> Result<Self> {
        card.enter()?;
        let (free, _) = card.memory()?;
        if bytes > free {
            let free_gb = free as f64 / 1e9;
            let reason = format!("{free_gb:.2} GB are free on {}", card.name);
            return Err(DeviceError::NoMemory { bytes, reason });
        }
        // SAFETY: plain memory, given back when this is dropped.
        let address = unsafe { result::malloc_sync(bytes.max(1) as usize) }
            .said("taking memory of the card")?;
        // SAFETY: the memory just taken.
        unsafe { result::memset_d8_sync(address, 0, bytes as usize) }.said("clearing memory")?;
        Ok(Memory { address, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken once; the owner has waited for all work that uses it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Host memory the card reads at full speed.
pub(super) struct Pinned {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // Portable, and not write-combined: it is read by the host as well.
        // SAFETY: plain memory, given back when this is dropped.
        let start = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .said("pinning host memory")?;
        Ok(Pinned {
            start: start.cast(),
            bytes,
        })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: owned memory of this length; the driver gave it zeroed or not, any
        // byte is a byte.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: taken once, and no copy of it is under way: all are waited for.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// A queue of work.
pub(super) struct Queue {
    pub(super) stream: sys::CUstream,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    pub(super) fn new(card: &Card) -> Result<Self> {
        card.enter()?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = result::stream::create(kind).said("making a stream")?;
        Ok(Queue { stream })
    }

    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: a stream of this device.
        unsafe { result::stream::synchronize(self.stream) }.said("waiting for the card")
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made once; its owner has waited for its work.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}
