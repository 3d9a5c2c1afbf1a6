//! Host memory that a device copies from and to.

use std::any::Any;

use super::buffer::Buffer;
use crate::{DeviceError, Result, Span, check::OpCheck};

/// Callback that writes the bytes of a span of memory.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> std::io::Result<()>;

/// Host memory that a device copies from and to at full speed, allocated by
/// [`Transfers::host_slab`](crate::Transfers::host_slab). Threads fill it once in parallel,
/// or the device copies out to it.
pub struct HostSlab {
    /// Device's registration of the memory, dropped before the memory.
    pub(crate) registration: Box<dyn HostRegistration>,
    base: *mut u8,
    bytes: u64,
    _memory: Buffer,
}

/// Registration of host memory with a device, updated while the memory is filled.
pub(crate) trait HostRegistration: Any + Send + Sync {
    /// Notes that a span has been filled.
    fn filled(&self, span: Span) -> Result<()>;
    /// Notes that the memory will not be filled any more.
    fn sealed(&self) -> Result<()>;
}

/// Registration of a device that needs none.
pub(crate) struct PlainMemory;

impl HostRegistration for PlainMemory {
    fn filled(&self, _: Span) -> Result<()> {
        Ok(())
    }
    fn sealed(&self) -> Result<()> {
        Ok(())
    }
}

// SAFETY: the slab owns the memory and accesses it through raw pointers. The contracts of `fill`
// and `read` state which caller may use which span.
unsafe impl Send for HostSlab {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for HostSlab {}

impl HostSlab {
    /// Reserves address space; pages take memory when they are filled. `registration` receives
    /// the first address.
    pub(crate) fn new(
        bytes: u64,
        registration: impl FnOnce(*mut u8) -> Result<Box<dyn HostRegistration>>,
    ) -> Result<Self> {
        let refuse = |reason: String| DeviceError::NoMemory { bytes, reason };
        let size = usize::try_from(bytes).map_err(|error| refuse(error.to_string()))?;
        let mut memory = Buffer::new(size).map_err(|error| refuse(error.to_string()))?;
        let base = memory.bytes().as_mut_ptr();
        Ok(HostSlab {
            registration: registration(base)?,
            base,
            bytes,
            _memory: memory,
        })
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills a span in the calling thread. Several threads may fill at the same time. Each
    /// caller owns its span until the call returns, and every byte is filled once.
    pub fn fill(&self, span: Span, fill: Fill<'_>) -> Result<()> {
        let start = self.place("fill", span)?;
        // SAFETY: a checked span that by contract only this caller uses.
        fill(unsafe { std::slice::from_raw_parts_mut(start, span.bytes as usize) })?;
        self.registration.filled(span)
    }

    /// Ends filling. Copies may begin.
    pub fn seal(&self) -> Result<()> {
        self.registration.sealed()
    }

    /// Calls `work` with a span that nothing writes during the call.
    pub fn show<T>(&self, span: Span, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let start = self.place("show", span)?;
        // SAFETY: a checked span that by contract nothing writes.
        Ok(work(unsafe {
            std::slice::from_raw_parts(start, span.bytes as usize)
        }))
    }

    /// Calls `work` with a span that nothing else uses during the call, not even a copy.
    pub fn lend<T>(&self, span: Span, work: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let start = self.place("lend", span)?;
        // SAFETY: a checked span that by contract only this caller uses.
        Ok(work(unsafe {
            std::slice::from_raw_parts_mut(start, span.bytes as usize)
        }))
    }

    /// Copies a filled span to the caller.
    pub fn read(&self, span: Span, to: &mut [u8]) -> Result<()> {
        let start = self.place("read", span)?;
        assert_eq!(
            span.bytes,
            to.len() as u64,
            "span and buffer have the same length"
        );
        // SAFETY: a checked span that nothing writes after it was filled.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(start, to.len()) });
        Ok(())
    }

    /// Returns the address of a span.
    pub(crate) fn place(&self, name: &'static str, span: Span) -> Result<*mut u8> {
        let op = OpCheck {
            name,
            base: self.base,
            slab_bytes: self.bytes,
        };
        op.span(span)
    }
}

#[cfg(test)]
mod tests {
    use super::{HostSlab, PlainMemory};
    use crate::Span;

    #[test]
    fn filled_bytes_are_read_and_spans_are_checked() {
        let slab = HostSlab::new(100, |_| Ok(Box::new(PlainMemory))).unwrap();
        let span = |offset, bytes| Span { offset, bytes };
        let seven = &mut |bytes: &mut [u8]| {
            bytes.fill(7);
            Ok(())
        };
        slab.fill(span(10, 90), seven).unwrap();
        let mut read = [0; 3];
        slab.read(span(97, 3), &mut read).unwrap();
        assert_eq!(read, [7; 3]);
        slab.read(span(8, 3), &mut read).unwrap();
        assert_eq!(read, [0, 0, 7]);
        assert!(slab.fill(span(10, 91), seven).is_err());
        assert!(slab.read(span(u64::MAX, 3), &mut read).is_err());
    }
}
