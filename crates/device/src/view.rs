//! Places in the slab: untyped spans and typed, strided matrices.

use djinn_types::DType;

/// A run of bytes in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

impl Span {
    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
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
    /// Elements used of each row.
    pub cols: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl View {
    /// A matrix without gaps.
    pub fn new(offset: u64, dtype: DType, rows: usize, cols: usize) -> Self {
        View {
            offset,
            dtype,
            rows,
            cols,
            stride: cols,
        }
    }

    /// Some rows of this view.
    pub fn rows(self, first: usize, count: usize) -> Self {
        assert!(
            first + count <= self.rows,
            "rows {first}+{count} of {}",
            self.rows
        );
        View {
            offset: self.offset + (first * self.stride * self.dtype.bytes()) as u64,
            rows: count,
            ..self
        }
    }

    /// Some columns of this view.
    pub fn cols(self, first: usize, count: usize) -> Self {
        assert!(
            first + count <= self.cols,
            "columns {first}+{count} of {}",
            self.cols
        );
        View {
            offset: self.offset + (first * self.dtype.bytes()) as u64,
            cols: count,
            ..self
        }
    }

    /// The same gapless elements in rows of another width.
    pub fn reshaped(self, cols: usize) -> Self {
        assert!(self.is_contiguous() && (self.rows * self.cols).is_multiple_of(cols));
        View::new(self.offset, self.dtype, self.rows * self.cols / cols, cols)
    }

    /// Whether rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// From the first byte used to the last.
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
