//! Dot products of many rows: a panel of weights is converted once and reused.
//!
//! A panel of weight rows, as f32 and padded with zeros, stays in the second-level cache. A
//! tile of rows of `x`, one block of `k` at a time, stays in the first-level cache. The
//! sixteen lanes of each product are kept in scratch memory between blocks, so blocking over
//! `k` does not change their order.

use super::dot::{Products, Sink, StridedRows, accumulate, finish};
use super::element::{Convert, Element};
use super::lanes::{Kernel, LANES, Simd};

/// Number of floats of a panel: half of a typical second-level cache.
const PANEL_FLOATS: usize = 160 << 10;
/// Number of elements of a row in one block: six such rows and four weight rows fit in the
/// first-level cache.
const BLOCK: usize = 768;
/// Number of columns of a group, for every shape of tile.
const GROUP: usize = 4;
/// Largest number of rows of a tile on any instruction set.
const ROWS: usize = 6;

/// Number of columns of a panel.
pub(super) fn columns(k: usize) -> usize {
    (PANEL_FLOATS / padded(k).max(1)).clamp(GROUP, 64) / GROUP * GROUP
}

/// Number of floats of scratch memory that [`run`] needs.
pub(super) fn floats(cols: usize, k: usize) -> usize {
    let cols = cols.next_multiple_of(GROUP);
    cols * padded(k) + ROWS * cols * LANES
}

fn padded(k: usize) -> usize {
    k.next_multiple_of(LANES)
}

/// Computes products of many rows.
///
/// # Safety
/// The conditions of [`Products::run`], and `scratch` must be writable over [`floats`].
#[inline(always)]
pub(super) unsafe fn run<S: Simd, E: Element>(s: S, products: Products<E>, scratch: *mut f32) {
    let Products {
        x,
        rows,
        w,
        cols,
        k,
        out,
    } = products;
    let depth = padded(k);
    let wide = cols.next_multiple_of(GROUP);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for c in 0..cols {
            s.call(Convert {
                from: w.at(c, 0),
                n: k,
                to: scratch.add(c * depth),
                ahead: 0,
            });
        }
        let padding = scratch.add(cols * depth);
        std::ptr::write_bytes(padding, 0, (wide - cols) * depth);
    }
    let w = StridedRows {
        ptr: scratch.cast_const(),
        stride: depth,
    };
    let lanes = scratch.wrapping_add(wide * depth);
    let mut r = 0;
    while r < rows {
        let n = (rows - r).min(S::TILE_ROWS);
        let panel = WeightPanel {
            x: x.from(r, 0),
            w,
            lanes,
            cols,
            k,
            out: out.from(r, 0),
        };
        match n {
            1 => s.call(Tiles::<1>(panel)),
            2 if const { S::TILE_ROWS > 1 } => s.call(Tiles::<2>(panel)),
            3 if const { S::TILE_ROWS > 1 } => s.call(Tiles::<3>(panel)),
            4 if const { S::TILE_ROWS > 3 } => s.call(Tiles::<4>(panel)),
            5 if const { S::TILE_ROWS > 3 } => s.call(Tiles::<5>(panel)),
            _ if const { S::TILE_ROWS > 3 } => s.call(Tiles::<6>(panel)),
            _ => unreachable!("no more rows than a tile has"),
        }
        r += n;
    }
}

struct WeightPanel {
    x: StridedRows<f32>,
    w: StridedRows<f32>,
    /// Accumulators of one tile of rows, `[column group, row, column, lane]`.
    lanes: *mut f32,
    cols: usize,
    k: usize,
    out: Sink,
}

/// Kernel for `R` rows against the whole panel.
struct Tiles<const R: usize>(WeightPanel);

impl<const R: usize> Kernel for Tiles<R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut start = 0;
        loop {
            let depth = BLOCK.min(self.0.k - start);
            for c in (0..self.0.cols).step_by(S::TILE_COLS) {
                // SAFETY: the conditions of `run`.
                unsafe {
                    if const { S::TILE_COLS == 4 } {
                        self.tile::<S, 4>(s, start, depth, c);
                    } else if const { S::TILE_COLS == 2 } {
                        self.tile::<S, 2>(s, start, depth, c);
                    } else {
                        self.tile::<S, 1>(s, start, depth, c);
                    }
                }
            }
            start += depth;
            if start == self.0.k {
                return;
            }
        }
    }
}

impl<const R: usize> Tiles<R> {
    /// Accumulates `C` columns over one block.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize>(&self, s: S, start: usize, depth: usize, c: usize) {
        let WeightPanel {
            x,
            w,
            lanes,
            cols,
            k,
            out,
        } = &self.0;
        let mut acc = [[s.splat(0.0); C]; R];
        let lanes = lanes.wrapping_add(c * ROWS * LANES);
        // SAFETY: guaranteed by the caller; missing columns of the last group are zeros in
        // the panel and are not written.
        unsafe {
            if start > 0 {
                for (i, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
                    *acc = s.load(lanes.add(i * LANES));
                }
            }
            accumulate(s, &mut acc, x.from(0, start), w.from(c, start), depth);
            if start + depth < *k {
                for (i, &acc) in acc.as_flattened().iter().enumerate() {
                    s.store(acc, lanes.add(i * LANES));
                }
            } else if c + C <= *cols {
                finish(s, &acc, out.from(0, c));
            } else {
                for j in 0..cols - c {
                    let column = acc.map(|acc| [acc[j]]);
                    finish(s, &column, out.from(0, c + j));
                }
            }
        }
    }
}
