//! Dot products along the rows of two matrices, in the canonical order.
//!
//! Lane `l` of sixteen accumulates `k = l, l + 16, …` with fused multiply-adds from +0.0.
//! Elements past the end count as zero. The tree of [`Simd::sum`] adds the lanes. The number of
//! rows that share a pass changes the speed, but never the bits.

use super::element::Element;
use super::lanes::{Kernel, LANES, Simd};

/// Length of weight rows below which the hardware prefetcher, which restarts on each row, is
/// too late.
const SHORT_ROW_BYTES: usize = 3 << 10;

/// Rows of a matrix: pointer to the first row, and stride.
pub(super) struct StridedRows<E> {
    pub(super) ptr: *const E,
    pub(super) stride: usize,
}

impl<E> Clone for StridedRows<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for StridedRows<E> {}

impl<E> StridedRows<E> {
    #[inline(always)]
    pub(super) fn at(self, row: usize, col: usize) -> *const E {
        self.ptr.wrapping_add(row * self.stride + col)
    }

    #[inline(always)]
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        StridedRows {
            ptr: self.at(row, col),
            ..self
        }
    }
}

/// Output of products: `out[r][c] = x[r] · w[c] (+ bias[c])`.
#[derive(Clone, Copy)]
pub(super) struct Sink {
    pub(super) ptr: *mut f32,
    pub(super) stride: usize,
    /// Bias with one element for each column.
    pub(super) bias: Option<*const f32>,
}

impl Sink {
    #[inline(always)]
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        Sink {
            ptr: self.ptr.wrapping_add(row * self.stride + col),
            stride: self.stride,
            bias: self.bias.map(|bias| bias.wrapping_add(col)),
        }
    }
}

impl Sink {
    /// Writes adjacent columns of the first row.
    ///
    /// # Safety
    /// The output must have these columns.
    #[inline(always)]
    unsafe fn write<const N: usize>(self, mut sums: [f32; N]) {
        // SAFETY: guaranteed by the caller; a bias is as long as a row.
        unsafe {
            if let Some(bias) = self.bias {
                let bias = bias.cast::<[f32; N]>().read_unaligned();
                sums.iter_mut()
                    .zip(bias)
                    .for_each(|(sum, bias)| *sum += bias);
            }
            self.ptr.cast::<[f32; N]>().write_unaligned(sums);
        }
    }
}

/// Products of all rows of `x` with all rows of `w`.
#[derive(Clone, Copy)]
pub(super) struct Products<E> {
    pub(super) x: StridedRows<f32>,
    pub(super) rows: usize,
    pub(super) w: StridedRows<E>,
    pub(super) cols: usize,
    /// Number of elements of a row.
    pub(super) k: usize,
    pub(super) out: Sink,
}

impl<E: Element> Products<E> {
    /// Computes the products. Reads every weight once for each tile of rows.
    ///
    /// # Safety
    /// `x` and `w` must be readable over their rows of `k` elements, the bias over
    /// `cols`, and the sink writable; no other thread may access the sink.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(self, s: S) {
        let mut r = 0;
        while r < self.rows {
            // Tiles have about equal height: a last tile of one row would cost as much as a full
            // one.
            let left = self.rows - r;
            let n = left.div_ceil(left.div_ceil(S::TILE_ROWS));
            let part = Products {
                x: self.x.from(r, 0),
                out: self.out.from(r, 0),
                ..self
            };
            match n {
                1 => s.call(DotStrip::<E, 1>(part)),
                2 if const { S::TILE_ROWS > 1 } => s.call(DotStrip::<E, 2>(part)),
                3 if const { S::TILE_ROWS > 1 } => s.call(DotStrip::<E, 3>(part)),
                4 if const { S::TILE_ROWS > 3 } => s.call(DotStrip::<E, 4>(part)),
                5 if const { S::TILE_ROWS > 3 } => s.call(DotStrip::<E, 5>(part)),
                _ if const { S::TILE_ROWS > 3 } => s.call(DotStrip::<E, 6>(part)),
                _ => unreachable!("no more rows than a tile has"),
            }
            r += n;
        }
    }
}

/// Kernel for the first `R` rows against all columns.
struct DotStrip<E, const R: usize>(Products<E>);

impl<E: Element, const R: usize> Kernel for DotStrip<E, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Products {
            x, w, cols, k, out, ..
        } = self.0;
        let mut c = 0;
        // SAFETY: the conditions of `Products::run`.
        unsafe {
            // One or two rows leave registers for more columns. More streams of weights read
            // faster.
            while const { S::TILE_COLS == 4 && R <= 2 } && c + 8 <= cols {
                let (w, out) = (w.from(c, 0), out.from(0, c));
                if k * size_of::<E>() <= SHORT_ROW_BYTES {
                    prefetched_tile::<S, E, R, 8>(s, x, w, k, out);
                } else {
                    tile::<S, E, R, 8>(s, x, w, k, out);
                }
                c += 8;
            }
            while c + S::TILE_COLS <= cols {
                let (w, out) = (w.from(c, 0), out.from(0, c));
                if const { S::TILE_COLS == 4 } {
                    tile::<S, E, R, 4>(s, x, w, k, out);
                } else if const { S::TILE_COLS == 2 } {
                    tile::<S, E, R, 2>(s, x, w, k, out);
                } else {
                    tile::<S, E, R, 1>(s, x, w, k, out);
                }
                c += S::TILE_COLS;
            }
            while c < cols {
                for r in 0..R {
                    tile::<S, E, 1, 1>(s, x.from(r, 0), w.from(c, 0), k, out.from(r, c));
                }
                c += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, E: Element, const R: usize, const C: usize>(
    s: S,
    x: StridedRows<f32>,
    w: StridedRows<E>,
    k: usize,
    out: Sink,
) {
    let mut acc = [[s.splat(0.0); C]; R];
    // SAFETY: guaranteed by the caller.
    unsafe {
        accumulate(s, &mut acc, x, w, k);
        finish(s, &acc, out);
    }
}

/// Computes a tile, and prefetches the next `C` rows of `w`.
#[inline(always)]
unsafe fn prefetched_tile<S: Simd, E: Element, const R: usize, const C: usize>(
    s: S,
    x: StridedRows<f32>,
    w: StridedRows<E>,
    k: usize,
    out: Sink,
) {
    let mut acc = [[s.splat(0.0); C]; R];
    let full = k / LANES * LANES;
    // SAFETY: guaranteed by the caller; full vectors first, then the rest.
    unsafe {
        for i in (0..full).step_by(LANES) {
            for c in 0..C {
                s.prefetch(w.at(C + c, i).cast());
            }
            accumulate(s, &mut acc, x.from(0, i), w.from(0, i), LANES);
        }
        accumulate(s, &mut acc, x.from(0, full), w.from(0, full), k - full);
        finish(s, &acc, out);
    }
}

/// Adds the products of `k` elements to the lanes.
///
/// # Safety
/// `x` must be readable over `R` rows of `k` elements, `w` over `C`.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, E: Element, const R: usize, const C: usize>(
    s: S,
    acc: &mut [[S::V; C]; R],
    x: StridedRows<f32>,
    w: StridedRows<E>,
    k: usize,
) {
    let full = k / LANES * LANES;
    let mut i = 0;
    while i < full {
        let mut wv = [s.splat(0.0); C];
        for (c, wv) in wv.iter_mut().enumerate() {
            // SAFETY: sixteen elements from `i` lie below `k`.
            *wv = unsafe { E::load(s, w.at(c, i)) };
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: sixteen elements from `i` lie below `k`.
            let xv = unsafe { s.load(x.at(r, i)) };
            for (acc, wv) in acc.iter_mut().zip(wv) {
                *acc = s.fma(xv, wv, *acc);
            }
        }
        i += LANES;
    }
    if full < k {
        for c in 0..C {
            // SAFETY: the rest of the row.
            let wv = unsafe { E::load_part(s, w.at(c, full), k - full) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the rest of the row.
                let xv = unsafe { s.load_part(x.at(r, full), k - full) };
                acc[c] = s.fma(xv, wv, acc[c]);
            }
        }
    }
}

/// Sums the lanes and writes the results.
///
/// # Safety
/// The sink must be writable over `R` rows of `C` columns and its bias readable.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, const R: usize, const C: usize>(
    s: S,
    acc: &[[S::V; C]; R],
    out: Sink,
) {
    for (r, acc) in acc.iter().enumerate() {
        let out = out.from(r, 0);
        let (fours, ones) = acc.as_chunks();
        // SAFETY: guaranteed by the caller.
        unsafe {
            for (i, &four) in fours.iter().enumerate() {
                out.from(0, 4 * i).write(s.sum4(four));
            }
            for (i, &one) in ones.iter().enumerate() {
                out.from(0, 4 * fours.len() + i).write([s.sum(one)]);
            }
        }
    }
}

/// Dot product of two f32 rows.
///
/// # Safety
/// Both must be readable over `k` elements.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd>(s: S, a: *const f32, b: *const f32, k: usize) -> f32 {
    let mut acc = [[s.splat(0.0)]];
    let (a, b) = (
        StridedRows { ptr: a, stride: 0 },
        StridedRows { ptr: b, stride: 0 },
    );
    // SAFETY: guaranteed by the caller.
    unsafe { accumulate(s, &mut acc, a, b, k) };
    s.sum(acc[0][0])
}
