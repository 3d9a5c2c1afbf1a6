//! Host memory that a device copies from and to.

use std::any::Any;

use super::borrows::{Access, SpanBorrow, SpanBorrows};
use super::buffer::Buffer;
use crate::{DeviceError, Result, Span, check::OpCheck};

/// Callback that writes the bytes of a span of memory.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> std::io::Result<()>;

/// Host memory that a device copies from and to at full speed, allocated by
/// [`Transfers::host_slab`](crate::Transfers::host_slab). Threads fill it once in parallel,
/// or the device copies out to it.
///
/// Threads share a slab. Every access of the host borrows its span, and an access that conflicts
/// with another one fails with [`DeviceError::InUse`]. A card reads and writes the memory beside
/// the host; the caller waits for these copies, see
/// [`Transfers::copy_in`](crate::Transfers::copy_in).
pub struct HostSlab {
    /// Device's registration of the memory, dropped before the memory.
    pub(crate) registration: Box<dyn HostRegistration>,
    base: *mut u8,
    bytes: u64,
    borrows: SpanBorrows,
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

// SAFETY: the slab owns the memory, and `base` points into it. No reference to the memory exists
// except in a call that holds a borrow of its span.
unsafe impl Send for HostSlab {}
// SAFETY: `borrows` makes sure that two threads never use the same bytes if one of them writes.
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
            borrows: SpanBorrows::default(),
            _memory: memory,
        })
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills a span in the calling thread. Several threads may fill different spans at the same
    /// time. Every byte is filled once.
    pub fn fill(&self, span: Span, fill: Fill<'_>) -> Result<()> {
        self.lend_as("fill", span, |bytes| fill(bytes))??;
        self.registration.filled(span)
    }

    /// Ends filling. Copies may begin.
    pub fn seal(&self) -> Result<()> {
        let all = Span {
            offset: 0,
            bytes: self.bytes,
        };
        // The registration writes to pages that no call has filled.
        let _borrow = self.borrows.take("seal", all, Access::Write)?;
        self.registration.sealed()
    }

    /// Calls `work` with a span. Fails if another call writes the span. No copy of a card may
    /// write the span during the call.
    pub fn show<T>(&self, span: Span, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let (start, _borrow) = self.borrow("show", span, Access::Read)?;
        // SAFETY: a checked span of memory that lives as long as `self`. The borrow lasts until
        // `work` has returned, and no other call writes the span until then.
        Ok(work(unsafe {
            std::slice::from_raw_parts(start, span.bytes as usize)
        }))
    }

    /// Calls `work` with a span. Fails if another call uses the span. No copy of a card may use
    /// the span during the call.
    pub fn lend<T>(&self, span: Span, work: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.lend_as("lend", span, work)
    }

    fn lend_as<T>(
        &self,
        name: &'static str,
        span: Span,
        work: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let (start, _borrow) = self.borrow(name, span, Access::Write)?;
        // SAFETY: a checked span of memory that lives as long as `self`. The borrow lasts until
        // `work` has returned, and no other call has a reference into the span until then.
        Ok(work(unsafe {
            std::slice::from_raw_parts_mut(start, span.bytes as usize)
        }))
    }

    /// Copies a filled span to the caller.
    pub fn read(&self, span: Span, to: &mut [u8]) -> Result<()> {
        assert_eq!(
            span.bytes,
            to.len() as u64,
            "span and buffer have the same length"
        );
        self.show(span, |bytes| to.copy_from_slice(bytes))
    }

    /// Borrows a span, and returns its address. The address may be used as `access` says until
    /// the borrow is dropped.
    pub(crate) fn borrow(
        &self,
        name: &'static str,
        span: Span,
        access: Access,
    ) -> Result<(*mut u8, SpanBorrow<'_>)> {
        let start = self.place(name, span)?;
        Ok((start, self.borrows.take(name, span, access)?))
    }

    /// Returns the address of a span.
    fn place(&self, name: &'static str, span: Span) -> Result<*mut u8> {
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
    use crate::{DeviceError, Span};

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

    #[test]
    fn bytes_that_are_lent_cannot_be_used_again() {
        let slab = HostSlab::new(100, |_| Ok(Box::new(PlainMemory))).unwrap();
        let span = |offset, bytes| Span { offset, bytes };
        let is_in_use = |result| matches!(result, Err(DeviceError::InUse { .. }));
        slab.lend(span(0, 50), |bytes| {
            assert!(is_in_use(slab.lend(span(49, 1), |_| ())));
            assert!(is_in_use(slab.show(span(0, 1), |_| ())));
            assert!(is_in_use(slab.fill(span(10, 10), &mut |_| Ok(()))));
            assert!(is_in_use(slab.seal()));
            slab.lend(span(50, 50), |others| others.fill(2)).unwrap();
            bytes.fill(1);
        })
        .unwrap();
        slab.show(span(0, 100), |bytes| {
            assert_eq!((bytes[49], bytes[50]), (1, 2));
            slab.show(span(0, 100), |_| ()).unwrap();
            assert!(is_in_use(slab.lend(span(99, 1), |_| ())));
        })
        .unwrap();
        // A panic in the middle of a call ends its borrow.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            slab.lend(span(0, 100), |_| panic!("in the test"))
        }));
        assert!(panicked.is_err());
        slab.seal().unwrap();
    }
}
