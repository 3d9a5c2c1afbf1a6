//! Regions of the slab: untyped spans and typed, strided matrices.

use djinn_types::DType;

/// A range of bytes in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Span {
    /// Offset of the byte after the last. A span that no memory can have ends at the largest
    /// offset, so that its error can be printed.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// A matrix in the slab: element `(r, c)` lies at
/// `offset + (r * stride + c) * dtype.bytes()`. Weights may have any alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Byte offset of element `(0, 0)`.
    pub offset: u64,
    /// Element type.
    pub dtype: DType,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Number of elements from one row to the next.
    pub stride: usize,
}

impl View {
    /// Creates a view without gaps between rows.
    pub fn new(offset: u64, dtype: DType, rows: usize, cols: usize) -> Self {
        View {
            offset,
            dtype,
            rows,
            cols,
            stride: cols,
        }
    }

    /// Returns a range of rows.
    pub fn rows(self, first: usize, count: usize) -> Self {
        assert!(
            first + count <= self.rows,
            "rows {first}..{first}+{count} exceed the {} rows of the view",
            self.rows
        );
        View {
            offset: self.offset + (first * self.stride * self.dtype.bytes()) as u64,
            rows: count,
            ..self
        }
    }

    /// Returns a range of columns.
    pub fn cols(self, first: usize, count: usize) -> Self {
        assert!(
            first + count <= self.cols,
            "columns {first}..{first}+{count} exceed the {} columns of the view",
            self.cols
        );
        View {
            offset: self.offset + (first * self.dtype.bytes()) as u64,
            cols: count,
            ..self
        }
    }

    /// Returns a view of the same elements with `cols` columns. The rows must have no gaps.
    pub fn reshaped(self, cols: usize) -> Self {
        assert!(self.is_contiguous() && (self.rows * self.cols).is_multiple_of(cols));
        View::new(self.offset, self.dtype, self.rows * self.cols / cols, cols)
    }

    /// Returns whether rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// Returns the span from the first byte to the last.
    pub fn span(&self) -> Span {
        let elements = match (self.rows, self.cols) {
            (0, _) | (_, 0) => 0,
            (rows, cols) => (rows - 1) * self.stride + cols,
        };
        Span {
            offset: self.offset,
            bytes: (elements * self.dtype.bytes()) as u64,
        }
    }
}
