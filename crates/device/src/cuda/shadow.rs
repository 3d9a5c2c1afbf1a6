//! State between launches: copies of activations in the type of the weights, and whether
//! the next kernel may start before the last one has ended.

use djinn_types::DType;

use crate::View;
use crate::check::overlap;

/// State that one launch leaves for the next.
#[derive(Default)]
pub(super) struct LaunchState {
    /// Type of the weights of the last product.
    pub(super) dtype: Option<DType>,
    /// Copy of a view in the type `dtype`, while the copy is valid.
    pub(super) shadow: Option<ShadowCopy>,
    /// Whether the last work on the stream was a kernel of ours. The next kernel may then start
    /// before the last one has ended.
    pub(super) overlaps: bool,
    /// Whether the last kernel was an attention that also wrote keys into their pages.
    pub(super) wrote_keys: bool,
}

impl LaunchState {
    /// Records that work other than a kernel is now last on the stream.
    pub(super) fn interrupt(&mut self) {
        self.overlaps = false;
    }

    /// Discards the copy as well, because its contents are no longer known.
    pub(super) fn forget(&mut self) {
        (self.overlaps, self.shadow) = (false, None);
    }

    /// Records that an operation writes a view. A copy of the view's old contents is invalid.
    pub(super) fn wrote(&mut self, view: View) {
        if self.shadow.is_some_and(|shadow| overlap(shadow.view, view)) {
            self.shadow = None;
        }
    }

    /// Returns the address of the copy of `x` in a type, if there is one.
    pub(super) fn copy_of(&self, x: View, dtype: DType) -> Option<u64> {
        self.shadow.and_then(|shadow| shadow.address_of(x, dtype))
    }
}

/// A copy of a view in a type of two bytes.
#[derive(Clone, Copy)]
pub(super) struct ShadowCopy {
    pub(super) view: View,
    pub(super) dtype: DType,
    /// Address of the copy.
    pub(super) at: u64,
}

impl ShadowCopy {
    /// Address of the copy of `x`, if `x` is a range of the copied rows.
    fn address_of(&self, x: View, dtype: DType) -> Option<u64> {
        let row = row_in(self.view, x).filter(|_| self.dtype == dtype)?;
        Some(self.at + 2 * (row * x.cols) as u64)
    }
}

/// Returns whether a copy of a view in a type of two bytes fits into `bytes`.
pub(super) fn fits(view: View, bytes: u64) -> bool {
    view.cols.is_multiple_of(8) && 2 * (view.rows * view.cols) as u64 <= bytes
}

/// Returns the row of `view` that `part` starts with, if `part` is a range of its rows.
fn row_in(view: View, part: View) -> Option<usize> {
    let same = (view.stride, view.cols, view.dtype) == (part.stride, part.cols, part.dtype);
    let bytes = (view.stride * view.dtype.bytes()) as u64;
    let ahead = part.offset.checked_sub(view.offset)?;
    let row = usize::try_from(ahead / bytes.max(1)).ok()?;
    let inside = row + part.rows <= view.rows;
    (same && inside && ahead.is_multiple_of(bytes.max(1))).then_some(row)
}

#[cfg(test)]
mod tests {
    use djinn_types::DType;

    use super::row_in;
    use crate::View;

    #[test]
    fn row_ranges_are_found_in_their_view() {
        let view = View::new(64, DType::F32, 8, 16);
        assert_eq!(row_in(view, view), Some(0));
        assert_eq!(row_in(view, view.rows(3, 5)), Some(3));
        assert_eq!(row_in(view.rows(0, 4), view.rows(3, 5)), None);
        assert_eq!(row_in(view, view.cols(0, 8)), None);
        assert_eq!(row_in(view.rows(1, 2), view), None);
    }
}
