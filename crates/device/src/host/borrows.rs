//! Checked borrows of spans of memory that threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{DeviceError, Result, Span};

/// Spans of some memory that calls use now. A call fails if it would write bytes in use, or if it
/// would read bytes while another call writes them.
///
/// A borrow costs one uncontended lock and a look at each active borrow. At most one borrow per
/// thread is active, and each covers at least a row of a matrix.
#[derive(Debug, Default)]
pub(crate) struct SpanBorrows(Mutex<BorrowList>);

#[derive(Debug, Default)]
struct BorrowList {
    /// Number of borrows so far.
    count: u64,
    active: Vec<ActiveBorrow>,
}

#[derive(Clone, Copy, Debug)]
struct ActiveBorrow {
    number: u64,
    span: Span,
    access: Access,
}

/// Use of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Others may read the span at the same time.
    Read,
    /// Others may not use the span at the same time.
    Write,
}

/// Right to use a span, until it is dropped.
#[derive(Debug)]
pub(crate) struct SpanBorrow<'b> {
    home: &'b SpanBorrows,
    number: u64,
}

impl SpanBorrows {
    /// Borrows a span for the operation `op`. The caller has checked that the span lies in the
    /// memory.
    pub(crate) fn take(
        &self,
        op: &'static str,
        span: Span,
        access: Access,
    ) -> Result<SpanBorrow<'_>> {
        let mut list = self.lock();
        let wanted = ActiveBorrow {
            number: list.count,
            span,
            access,
        };
        if list.active.iter().any(|other| wanted.conflicts(other)) {
            return Err(DeviceError::InUse { op, span });
        }
        list.count += 1;
        list.active.push(wanted);
        Ok(SpanBorrow {
            home: self,
            number: wanted.number,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BorrowList> {
        // The list is consistent at every point where a thread could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveBorrow {
    fn conflicts(&self, other: &ActiveBorrow) -> bool {
        let (a, b) = (self.span, other.span);
        let overlap = a.offset < b.end() && b.offset < a.end();
        overlap
            && a.bytes > 0
            && b.bytes > 0
            && [self.access, other.access].contains(&Access::Write)
    }
}

impl Drop for SpanBorrow<'_> {
    fn drop(&mut self) {
        let mut list = self.home.lock();
        let number = self.number;
        list.active.retain(|borrow| borrow.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, SpanBorrows};
    use crate::Span;

    #[test]
    fn writes_exclude_every_other_use_of_the_same_bytes() {
        let borrows = SpanBorrows::default();
        let span = |offset, bytes| Span { offset, bytes };
        let take = |offset, bytes, access| borrows.take("test", span(offset, bytes), access);
        let write = take(10, 10, Access::Write).unwrap();
        assert!(take(19, 1, Access::Read).is_err());
        assert!(take(0, 11, Access::Write).is_err());
        let beside = take(0, 10, Access::Write).unwrap();
        let empty = take(15, 0, Access::Write).unwrap();
        drop(write);
        let read = take(10, 10, Access::Read).unwrap();
        let again = take(15, 10, Access::Read).unwrap();
        assert!(take(15, 1, Access::Write).is_err());
        drop((read, again, beside, empty));
        take(0, 100, Access::Write).unwrap();
    }
}
