//! The slab, and scratch beside it.

use crate::{DeviceError, Result, host};

/// Memory that every operation works in. Pages cost nothing until touched.
///
/// Only raw pointers are ever made into it, never references that outlive an
/// access: ordering accesses to the same bytes is the business of whoever calls
/// the device, as its contract says.
pub(super) struct Slab {
    _memory: host::Buffer,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory lives as long as the slab and is only reached through raw
// pointers, whose uses are each justified where they are made.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Refuses more than is free: the system would give the addresses and fail later,
    /// by ending the process.
    pub(super) fn check(bytes: u64) -> Result<()> {
        let free = host::available_memory();
        if bytes > free {
            let free_gb = free as f64 / 1e9;
            let reason = format!("{free_gb:.2} GB are free on this machine");
            return Err(DeviceError::NoMemory { bytes, reason });
        }
        Ok(())
    }

    /// A zeroed slab, aligned to a huge page.
    pub(super) fn new(bytes: u64) -> Result<Self> {
        Self::check(bytes)?;
        let refuse = |reason: String| DeviceError::NoMemory { bytes, reason };
        let mut memory = usize::try_from(bytes)
            .map_err(|_| refuse("more than this machine can address".into()))
            .and_then(|bytes| {
                host::Buffer::new(bytes).map_err(|error| refuse(error.to_string()))
            })?;
        let base = memory.bytes().as_mut_ptr();
        Ok(Slab {
            _memory: memory,
            base,
            bytes: bytes as usize,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Where a byte lies. Offsets come checked by [`crate::check::OpCheck`].
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(offset as usize)
    }
}

/// A cache line of floats.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Working memory of one thread. Grows to the largest operation, then stays.
#[derive(Default)]
pub(super) struct ScratchFloats {
    lines: Vec<Line>,
}

impl ScratchFloats {
    /// At least `floats` floats, aligned to a cache line, with anything in them.
    pub(super) fn floats(&mut self, floats: usize) -> *mut f32 {
        let lines = floats.div_ceil(16);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; 16]));
        }
        self.lines.as_mut_ptr().cast()
    }
}
