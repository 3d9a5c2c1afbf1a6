//! Division of a matrix product into chunks for the threads.

use std::ops::Range;

/// Least number of rows of a chunk, so that converting the weights pays off.
const ROWS_MIN: usize = 96;
/// Rows and columns of the largest tiles; chunks are multiples of them.
const TILE_ROWS: usize = 6;
const LINE: usize = 16;

/// Division of a product into chunks of rows and columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    rows: usize,
    cols: usize,
    chunk_rows: usize,
    chunk_cols: usize,
}

impl Split {
    /// Divides a product of few rows by columns alone, so that every weight is read once.
    /// Chunks are large enough to stream and small enough that threads end together.
    pub(super) fn few(rows: usize, cols: usize, weight_row_bytes: usize, threads: usize) -> Self {
        let stream = (256 << 10) / weight_row_bytes.max(1);
        let chunk_cols = stream
            .min(cols / (4 * threads))
            .max(1)
            .next_multiple_of(LINE);
        Split {
            rows,
            cols,
            chunk_rows: rows,
            chunk_cols,
        }
    }

    /// Divides a product of few rows with an `[in, out]` weight into strips of columns that
    /// are wide enough to stream.
    pub(super) fn wide(rows: usize, cols: usize, threads: usize) -> Self {
        let chunk_cols = (cols / (2 * threads)).clamp(4 * LINE, 512);
        let chunk_cols = chunk_cols.next_multiple_of(4 * LINE);
        Split {
            rows,
            cols,
            chunk_rows: rows,
            chunk_cols,
        }
    }

    /// Divides a product of many rows by columns into panels, and also by rows if that would
    /// leave threads idle.
    pub(super) fn many(rows: usize, cols: usize, panel_cols: usize, threads: usize) -> Self {
        let panels = cols.div_ceil(panel_cols);
        let wanted = if threads == 1 {
            1
        } else {
            (3 * threads).div_ceil(panels.max(1))
        };
        let groups = wanted.clamp(1, rows.div_ceil(ROWS_MIN).max(1));
        let chunk_rows = rows.div_ceil(groups).next_multiple_of(TILE_ROWS);
        Split {
            rows,
            cols,
            chunk_rows,
            chunk_cols: panel_cols,
        }
    }

    /// Number of chunks.
    pub(super) fn chunks(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        self.rows.div_ceil(self.chunk_rows) * self.cols.div_ceil(self.chunk_cols)
    }

    /// Rows and columns of one chunk.
    pub(super) fn chunk(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let groups = self.rows.div_ceil(self.chunk_rows);
        let r = index % groups * self.chunk_rows;
        let c = index / groups * self.chunk_cols;
        (
            r..(r + self.chunk_rows).min(self.rows),
            c..(c + self.chunk_cols).min(self.cols),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_element_once() {
        for (rows, cols) in [
            (1, 1),
            (5, 1000),
            (12, 7),
            (100, 33),
            (600, 2048),
            (0, 5),
            (5, 0),
        ] {
            for threads in [1, 2, 7] {
                let splits = [
                    Split::few(rows, cols, 4096, threads),
                    Split::few(rows, cols, 0, threads),
                    Split::wide(rows, cols, threads),
                    Split::many(rows, cols, 64, threads),
                ];
                for split in splits {
                    let mut hits = vec![0; rows * cols];
                    for chunk in 0..split.chunks() {
                        let (r, c) = split.chunk(chunk);
                        assert!(!r.is_empty() && !c.is_empty(), "{split:?}");
                        for row in r {
                            c.clone().for_each(|col| hits[row * cols + col] += 1);
                        }
                    }
                    assert!(hits.iter().all(|&hit| hit == 1), "{split:?}");
                }
            }
        }
    }
}
