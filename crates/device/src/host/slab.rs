//! Host memory that a device copies from and to.

use std::any::Any;

use super::buffer::Buffer;
use crate::{DeviceError, Result, Span, check::OpCheck};

/// Fills a span of memory with its bytes.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> std::io::Result<()>;

/// A run of host memory. A device makes it
/// ([`Device::host_slab`](crate::Device::host_slab)) so that copies run at full speed. Many
/// threads fill it once, or the device itself sends there what it will want back.
pub struct HostSlab {
    /// What the device keeps of it; given back before the memory.
    pub(crate) keeper: Box<dyn Keeper>,
    base: *mut u8,
    bytes: u64,
    _memory: Buffer,
}

/// What a device does with host memory as it is filled, and until it is given back.
pub(crate) trait Keeper: Any + Send + Sync {
    /// A span has been filled.
    fn filled(&self, span: Span) -> Result<()>;
    /// Nothing more will be.
    fn sealed(&self) -> Result<()>;
}

/// PlainMemory memory.
pub(crate) struct PlainMemory;

impl Keeper for PlainMemory {
    fn filled(&self, _: Span) -> Result<()> {
        Ok(())
    }
    fn sealed(&self) -> Result<()> {
        Ok(())
    }
}

// SAFETY: owned memory, reached through raw pointers; who may use which span when is the
// contract of `fill` and `read`.
unsafe impl Send for HostSlab {}
// SAFETY: as above.
unsafe impl Sync for HostSlab {}

impl HostSlab {
    /// Memory that costs nothing until it is filled. `keeper` is told where it starts.
    pub(crate) fn new(
        bytes: u64,
        keeper: impl FnOnce(*mut u8) -> Result<Box<dyn Keeper>>,
    ) -> Result<Self> {
        let refuse = |reason: String| DeviceError::NoMemory { bytes, reason };
        let size = usize::try_from(bytes).map_err(|error| refuse(error.to_string()))?;
        let mut memory = Buffer::new(size).map_err(|error| refuse(error.to_string()))?;
        let base = memory.bytes().as_mut_ptr();
        Ok(HostSlab {
            keeper: keeper(base)?,
            base,
            bytes,
            _memory: memory,
        })
    }

    /// How much there is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills a span in the calling thread. Several threads may fill at once: each span is
    /// its caller's alone until the call returns, and every byte is filled once.
    pub fn fill(&self, span: Span, fill: Fill<'_>) -> Result<()> {
        let start = self.place("fill", span)?;
        // SAFETY: a checked span that the contract gives to this caller alone.
        fill(unsafe { std::slice::from_raw_parts_mut(start, span.bytes as usize) })?;
        self.keeper.filled(span)
    }

    /// Says that all that will be filled has been: copies may begin.
    pub fn seal(&self) -> Result<()> {
        self.keeper.sealed()
    }

    /// Shows the caller a span that nobody writes meanwhile.
    pub fn show<T>(&self, span: Span, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let start = self.place("show", span)?;
        // SAFETY: a checked span, which the contract says nobody writes.
        Ok(work(unsafe {
            std::slice::from_raw_parts(start, span.bytes as usize)
        }))
    }

    /// Lends a span to the caller, who is the only one to use it meanwhile: no copy from or
    /// to it is under way.
    pub fn lend<T>(&self, span: Span, work: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let start = self.place("lend", span)?;
        // SAFETY: a checked span that the contract gives to this caller alone.
        Ok(work(unsafe {
            std::slice::from_raw_parts_mut(start, span.bytes as usize)
        }))
    }

    /// Copies a span that was filled.
    pub fn read(&self, span: Span, to: &mut [u8]) -> Result<()> {
        let start = self.place("read", span)?;
        assert_eq!(span.bytes, to.len() as u64, "as many bytes as asked for");
        // SAFETY: a checked span, which nobody writes once it was filled.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(start, to.len()) });
        Ok(())
    }

    /// Where a span lies.
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
    fn what_was_filled_is_read_and_nothing_beyond_is() {
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
