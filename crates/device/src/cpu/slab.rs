//! The slab, and scratch memory of threads.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{DeviceError, Result, host};

/// Memory that all operations work in. Untouched pages take no memory.
///
/// Only raw pointers into the slab exist, never references that outlive an access. By the
/// device's contract the caller orders accesses to the same bytes.
pub(super) struct Slab {
    memory: host::Buffer,
    base: *mut u8,
    bytes: usize,
    /// Whether the system has the memory back.
    is_released: AtomicBool,
    /// Bytes that other processes count as taken, although no pass has touched them yet.
    reserved: host::ReservedBytes,
}

// SAFETY: the memory lives as long as the slab, and only raw pointers access it. Each use of a
// pointer states why it is valid.
unsafe impl Send for Slab {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for Slab {}

impl Slab {
    /// Refuses more memory than is free. The system would reserve the addresses and later kill
    /// the process.
    pub(super) fn check(bytes: u64) -> Result<()> {
        let free = host::available_memory();
        if bytes > free {
            let free_gb = free as f64 / 1e9;
            let others: Vec<String> = host::neighbours()
                .iter()
                .filter(|other| other.untouched > 0)
                .map(|other| {
                    format!(
                        " ({other} has reserved another {:.2} GB)",
                        other.untouched as f64 / 1e9
                    )
                })
                .collect();
            let reason = format!(
                "{free_gb:.2} GB are free on this machine{}; lower --memory",
                others.concat()
            );
            return Err(DeviceError::NoMemory { bytes, reason });
        }
        Ok(())
    }

    /// Allocates a zeroed slab, aligned to a huge page.
    pub(super) fn new(bytes: u64) -> Result<Self> {
        Self::check(bytes)?;
        let refuse = |reason: String| DeviceError::NoMemory { bytes, reason };
        let mut memory = usize::try_from(bytes)
            .map_err(|_| {
                refuse("the size exceeds the address space of this machine; lower --memory".into())
            })
            .and_then(|bytes| {
                host::Buffer::new(bytes).map_err(|error| refuse(error.to_string()))
            })?;
        let base = memory.bytes().as_mut_ptr();
        Ok(Slab {
            memory,
            base,
            bytes: bytes as usize,
            is_released: AtomicBool::new(false),
            reserved: host::ReservedBytes::new(bytes),
        })
    }

    /// Gives the memory back to the system. Its addresses stay reserved.
    pub(super) fn release(&self) -> Result<()> {
        self.is_released.store(true, Ordering::Release);
        self.reserved.count(false);
        // SAFETY: only raw pointers into the slab exist, and operations, which end before they
        // return, refuse all spans from now on. By the device's contract none runs beside this.
        unsafe { self.memory.discard() }.map_err(|error| {
            DeviceError::Setup(format!("cannot give the memory of the slab back: {error}"))
        })
    }

    /// Allows the use of the slab again. Its pages take memory when they are written.
    pub(super) fn restore(&self) -> Result<()> {
        if self.is_released.load(Ordering::Acquire) {
            Self::check(self.bytes())?;
            self.reserved.count(true);
            self.is_released.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Bytes that operations may use now.
    pub(super) fn usable_bytes(&self) -> u64 {
        match self.is_released.load(Ordering::Acquire) {
            true => 0,
            false => self.bytes(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Address of a byte. [`crate::check::OpCheck`] checks the offset before this call.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(offset as usize)
    }
}

/// A cache line of floats.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([f32; 16]);

/// Scratch memory of one thread, which grows to the need of the largest operation.
#[derive(Default)]
pub(super) struct ScratchFloats {
    lines: Vec<CacheLine>,
}

impl ScratchFloats {
    /// Returns at least `floats` floats with unspecified contents, aligned to a cache line.
    pub(super) fn floats(&mut self, floats: usize) -> *mut f32 {
        let lines = floats.div_ceil(16);
        if self.lines.len() < lines {
            self.lines.resize(lines, CacheLine([0.0; 16]));
        }
        self.lines.as_mut_ptr().cast()
    }
}
