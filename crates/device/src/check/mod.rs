//! Checks of an operation's operands before it touches the slab.

mod shapes;

use crate::{DeviceError, KvLayer, Result, Span, View};
use djinn_types::DType;

/// A checked matrix: every element lies in the slab, at any alignment.
#[derive(Clone, Copy)]
pub(crate) struct Mat<T> {
    ptr: *mut T,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

// SAFETY: the pointer is an address in the slab, and the slab outlives every operation. Each use
// states why its accesses do not conflict.
unsafe impl<T> Send for Mat<T> {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl<T> Sync for Mat<T> {}

impl<T> Mat<T> {
    /// Address of the first element.
    pub(crate) fn address(&self) -> u64 {
        self.ptr.addr() as u64
    }

    /// Pointer to the first element of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> *mut T {
        debug_assert!(row < self.rows || self.rows == 0);
        self.ptr.wrapping_add(row * self.stride)
    }
}

impl Mat<i32> {
    /// Reads an element as an index below `limit`; `None` if it is out of range.
    pub(crate) fn index(&self, row: usize, col: usize, limit: usize) -> Option<usize> {
        assert!(row < self.rows && col < self.cols);
        // SAFETY: the element lies inside the matrix, and the matrix lies inside the slab.
        let id = unsafe { self.row(row).add(col).read_unaligned() };
        usize::try_from(id).ok().filter(|&id| id < limit)
    }
}

/// Checks of one operation.
#[derive(Clone, Copy)]
pub(crate) struct OpCheck {
    pub(crate) name: &'static str,
    /// Start of the slab, in host or device memory.
    pub(crate) base: *mut u8,
    pub(crate) slab_bytes: u64,
}

impl OpCheck {
    /// Returns a shape error.
    pub(crate) fn fail<T>(&self, detail: String) -> Result<T> {
        Err(DeviceError::Shape {
            op: self.name,
            detail,
        })
    }

    /// Returns a shape error unless the condition holds.
    pub(crate) fn ensure(&self, ok: bool, detail: impl FnOnce() -> String) -> Result<()> {
        if ok { Ok(()) } else { self.fail(detail()) }
    }

    /// Checks that two spans have the same length and do not overlap.
    pub(crate) fn spans_apart(&self, a: Span, b: Span) -> Result<()> {
        self.ensure(a.bytes == b.bytes, || {
            format!(
                "source has {} bytes, but the destination has {}",
                a.bytes, b.bytes
            )
        })?;
        let are_apart = a.offset.saturating_add(a.bytes) <= b.offset
            || b.offset.saturating_add(b.bytes) <= a.offset;
        self.ensure(are_apart, || "source and destination overlap".into())
    }

    /// Returns the address of a span of the slab.
    pub(crate) fn span(&self, span: Span) -> Result<*mut u8> {
        let end = span.offset.checked_add(span.bytes);
        if end.is_some_and(|end| end <= self.slab_bytes) {
            return Ok(self.base.wrapping_add(span.offset as usize));
        }
        Err(DeviceError::OutOfSlab {
            op: self.name,
            // The error names only the part of the span that does not wrap around.
            span: Span {
                bytes: span.bytes.min(u64::MAX - span.offset),
                ..span
            },
            slab_bytes: self.slab_bytes,
        })
    }

    fn place<T>(&self, view: View) -> Result<Mat<T>> {
        let bytes = view_bytes(view).unwrap_or(u64::MAX);
        let ptr = self.span(Span {
            offset: view.offset,
            bytes,
        })?;
        Ok(Mat {
            ptr: ptr.cast(),
            rows: view.rows,
            cols: view.cols,
            stride: view.stride,
        })
    }

    fn typed<T>(&self, what: &str, view: View, dtype: DType) -> Result<Mat<T>> {
        self.ensure(view.dtype == dtype, || {
            format!("{what} is {}, not {dtype}", view.dtype)
        })?;
        self.place(view)
    }

    /// Checks an f32 input.
    pub(crate) fn f32(&self, what: &str, view: View) -> Result<Mat<f32>> {
        self.typed(what, view, DType::F32)
    }

    /// Checks an i32 input.
    pub(crate) fn i32(&self, what: &str, view: View) -> Result<Mat<i32>> {
        self.typed(what, view, DType::I32)
    }

    /// Checks an input of any float type. The caller casts the returned address to that type.
    pub(crate) fn floats(&self, what: &str, view: View) -> Result<Mat<u8>> {
        self.ensure(view.dtype != DType::I32, || {
            format!("{what} is i32, not a float")
        })?;
        self.place(view)
    }

    /// Checks an f32 output, and that its rows do not overlap each other.
    pub(crate) fn out(&self, what: &str, view: View) -> Result<Mat<f32>> {
        self.own_rows(what, view)?;
        self.f32(what, view)
    }

    /// Checks an i32 output, and that its rows do not overlap each other.
    pub(crate) fn out_ids(&self, what: &str, view: View) -> Result<Mat<i32>> {
        self.own_rows(what, view)?;
        self.i32(what, view)
    }

    fn own_rows(&self, what: &str, view: View) -> Result<()> {
        self.ensure(view.rows <= 1 || view.stride >= view.cols, || {
            format!(
                "{what} has rows of {} elements only {} apart",
                view.cols, view.stride
            )
        })
    }

    /// Checks that a view has this shape.
    pub(crate) fn shape(&self, what: &str, view: View, rows: usize, cols: usize) -> Result<()> {
        self.ensure(view.rows == rows && view.cols == cols, || {
            format!(
                "{what} is [{}, {}], not [{rows}, {cols}]",
                view.rows, view.cols
            )
        })
    }

    /// Checks that an output shares no byte with an input.
    pub(crate) fn apart(&self, out: View, input: View) -> Result<()> {
        self.ensure(!overlap(out, input), || {
            format!("output {out:?} overlaps input {input:?}")
        })
    }

    /// Checks that an output is the input itself or shares no byte with it.
    pub(crate) fn same_or_apart(&self, out: View, input: View) -> Result<()> {
        if out == input {
            Ok(())
        } else {
            self.apart(out, input)
        }
    }

    /// Checks the pages of a layer, and returns the span from the first to the last.
    pub(crate) fn pages(&self, kv: &KvLayer) -> Result<Span> {
        let sizes = [kv.page_tokens, kv.kv_heads, kv.d_head];
        self.ensure(sizes.iter().all(|&size| size > 0), || {
            format!("a KV page holds no elements: {kv:?}")
        })?;
        self.ensure(kv.dtype != DType::I32, || {
            "KV pages are i32, not a float".into()
        })?;
        let layer = [2, kv.kv_heads, kv.page_tokens, kv.d_head, kv.dtype.bytes()]
            .iter()
            .try_fold(1u64, |bytes, &size| bytes.checked_mul(size as u64));
        let layer = layer.unwrap_or(u64::MAX);
        self.ensure(kv.pages <= 1 || kv.page_bytes >= layer, || {
            format!(
                "pages of {} bytes cannot hold a layer of {layer} bytes",
                kv.page_bytes
            )
        })?;
        let bytes = match kv.pages.checked_sub(1) {
            None => Some(0),
            Some(last) => kv
                .page_bytes
                .checked_mul(last as u64)
                .and_then(|b| b.checked_add(layer)),
        };
        let span = Span {
            offset: kv.offset,
            bytes: bytes.unwrap_or(u64::MAX),
        };
        self.span(span)?;
        Ok(span)
    }

    /// Checks that a view shares no byte with a layer's pages.
    pub(crate) fn apart_from(&self, view: View, pages: Span) -> Result<()> {
        self.ensure(!crosses(reach(view), pages), || {
            format!(
                "{view:?} lies among the KV pages at {}..{}",
                pages.offset,
                pages.end()
            )
        })
    }
}

/// Number of bytes from a view's first element to its last; `None` if it exceeds 64 bits.
fn view_bytes(view: View) -> Option<u64> {
    if view.rows == 0 || view.cols == 0 {
        return Some(0);
    }
    (view.rows as u64 - 1)
        .checked_mul(view.stride as u64)?
        .checked_add(view.cols as u64)?
        .checked_mul(view.dtype.bytes() as u64)
}

/// Span from a view's first element to its last. The view may not be checked yet, so an end
/// beyond 64 bits is cut off.
fn reach(view: View) -> Span {
    let bytes = view_bytes(view).unwrap_or(u64::MAX);
    Span {
        offset: view.offset,
        bytes: bytes.min(u64::MAX - view.offset),
    }
}

fn crosses(a: Span, b: Span) -> bool {
    a.bytes > 0 && b.bytes > 0 && a.offset < b.end() && b.offset < a.end()
}

/// Returns whether two views share a byte. Column groups of one matrix interleave without
/// sharing any; all other interleavings count as sharing.
pub(crate) fn overlap(a: View, b: View) -> bool {
    if !crosses(reach(a), reach(b)) {
        return false;
    }
    let bytes = |view: View, elements: usize| elements.saturating_mul(view.dtype.bytes());
    let (row, used_a, used_b) = (bytes(a, a.stride), bytes(a, a.cols), bytes(b, b.cols));
    if row == 0 || row != bytes(b, b.stride) || used_a > row || used_b > row {
        return true;
    }
    let ahead = i128::from(b.offset) - i128::from(a.offset);
    let ahead = ahead.rem_euclid(row as i128) as usize;
    ahead < used_a || used_b > row - ahead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_groups_of_a_matrix_do_not_overlap() {
        let matrix = View::new(64, DType::F32, 4, 10);
        let (left, right) = (matrix.cols(0, 4), matrix.cols(4, 6));
        assert!(!overlap(left, right) && !overlap(right, left));
        assert!(overlap(left, matrix.cols(3, 2)));
        assert!(overlap(matrix, right));
        assert!(!overlap(matrix.rows(0, 2), matrix.rows(2, 2)));
        assert!(overlap(matrix.rows(0, 3), matrix.rows(2, 2)));
        // Views with different strides are treated as sharing.
        assert!(overlap(left, View { stride: 9, ..right }));
        // Empty views share nothing.
        assert!(!overlap(matrix, matrix.rows(1, 0)));
    }

    #[test]
    fn sizes_beyond_64_bits_are_out_of_the_slab() {
        let op = OpCheck {
            name: "test",
            base: std::ptr::without_provenance_mut(1 << 20),
            slab_bytes: 1 << 20,
        };
        let mut view = View::new(0, DType::F32, usize::MAX, usize::MAX);
        assert!(matches!(
            op.f32("x", view),
            Err(DeviceError::OutOfSlab { .. })
        ));
        view = View {
            offset: u64::MAX - 4,
            ..View::new(0, DType::F32, 2, 2)
        };
        assert!(matches!(
            op.f32("x", view),
            Err(DeviceError::OutOfSlab { .. })
        ));
        assert!(
            op.f32("x", View::new((1 << 20) - 16, DType::F32, 2, 2))
                .is_ok()
        );
        assert!(
            op.f32("x", View::new((1 << 20) - 15, DType::F32, 2, 2))
                .is_err()
        );
    }
}
