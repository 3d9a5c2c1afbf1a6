//! Dot products along the rows of two matrices, in the canonical order.
//!
//! Lane `l` of sixteen accumulates `k = l, l + 16, …` with fused multiply-adds from
//! +0.0; elements past the end count as zero; the lanes are added by the tree of
//! [`Simd::sum`]. How many rows share a pass changes the speed, never the bits.

use super::element::Element;
use super::lanes::{Kernel, LANES, Simd};

/// Rows of weights so short that the machine's own prefetching, which starts anew on
/// each, comes too late.
const SHORT_ROW_BYTES: usize = 3 << 10;

/// Rows of a matrix: where the first begins and how far apart they are.
pub(super) struct Rows<E> {
    pub(super) ptr: *const E,
    pub(super) stride: usize,
}

impl<E> Clone for Rows<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Rows<E> {}

impl<E> Rows<E> {
    #[inline(always)]
    pub(super) fn at(self, row: usize, col: usize) -> *const E {
        self.ptr.wrapping_add(row * self.stride + col)
    }

    #[inline(always)]
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        Rows {
            ptr: self.at(row, col),
            ..self
        }
    }
}

/// Where the products go: `out[r][c] = x[r] · w[c] (+ bias[c])`.
#[derive(Clone, Copy)]
pub(super) struct Sink {
    pub(super) ptr: *mut f32,
    pub(super) stride: usize,
    /// As many as there are columns.
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
    /// Writes neighbours in the first row.
    ///
    /// # Safety
    /// There must be as many columns.
    #[inline(always)]
    unsafe fn write<const N: usize>(self, mut sums: [f32; N]) {
        // SAFETY: the caller's; a bias is as long as a row.
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

/// All products of the rows of `x` with the rows of `w`.
#[derive(Clone, Copy)]
pub(super) struct Products<E> {
    pub(super) x: Rows<f32>,
    pub(super) rows: usize,
    pub(super) w: Rows<E>,
    pub(super) cols: usize,
    /// Elements of a row.
    pub(super) k: usize,
    pub(super) out: Sink,
}

impl<E: Element> Products<E> {
    /// Computes them, reading every weight once for each tile of rows.
    ///
    /// # Safety
    /// `x` and `w` must be readable over their rows of `k` elements, the bias over
    /// `cols`, and the sink writable; nothing else may write or read it.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(self, s: S) {
        let mut r = 0;
        while r < self.rows {
            // As even as can be: a last tile of one row would cost as much as a full one.
            let left = self.rows - r;
            let n = left.div_ceil(left.div_ceil(S::TILE_ROWS));
            let part = Products {
                x: self.x.from(r, 0),
                out: self.out.from(r, 0),
                ..self
            };
            match n {
                1 => s.call(Strip::<E, 1>(part)),
                2 if const { S::TILE_ROWS > 1 } => s.call(Strip::<E, 2>(part)),
                3 if const { S::TILE_ROWS > 1 } => s.call(Strip::<E, 3>(part)),
                4 if const { S::TILE_ROWS > 3 } => s.call(Strip::<E, 4>(part)),
                5 if const { S::TILE_ROWS > 3 } => s.call(Strip::<E, 5>(part)),
                _ if const { S::TILE_ROWS > 3 } => s.call(Strip::<E, 6>(part)),
                _ => unreachable!("no more rows than a tile has"),
            }
            r += n;
        }
    }
}

/// The first `R` rows against all columns.
struct Strip<E, const R: usize>(Products<E>);

impl<E: Element, const R: usize> Kernel for Strip<E, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Products {
            x, w, cols, k, out, ..
        } = self.0;
        let mut c = 0;
        // SAFETY: as `Products::run` demands.
        unsafe {
            // A row or two leave registers for more columns, and more streams of
            // weights are read faster.
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
    x: Rows<f32>,
    w: Rows<E>,
    k: usize,
    out: Sink,
) {
    let mut acc = [[s.splat(0.0); C]; R];
    // SAFETY: the caller's.
    unsafe {
        accumulate(s, &mut acc, x, w, k);
        finish(s, &acc, out);
    }
}

/// A tile that asks for the next `C` rows of `w` while it computes.
#[inline(always)]
unsafe fn prefetched_tile<S: Simd, E: Element, const R: usize, const C: usize>(
    s: S,
    x: Rows<f32>,
    w: Rows<E>,
    k: usize,
    out: Sink,
) {
    let mut acc = [[s.splat(0.0); C]; R];
    let full = k / LANES * LANES;
    // SAFETY: the caller's; steps of sixteen, and then the rest.
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
    x: Rows<f32>,
    w: Rows<E>,
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
            // SAFETY: as above.
            let xv = unsafe { s.load(x.at(r, i)) };
            for (acc, wv) in acc.iter_mut().zip(wv) {
                *acc = s.fma(xv, wv, *acc);
            }
        }
        i += LANES;
    }
    if full < k {
        for c in 0..C {
            // SAFETY: what is left of the row.
            let wv = unsafe { E::load_part(s, w.at(c, full), k - full) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: as above.
                let xv = unsafe { s.load_part(x.at(r, full), k - full) };
                acc[c] = s.fma(xv, wv, acc[c]);
            }
        }
    }
}

/// Adds up the lanes and writes the sums.
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
        // SAFETY: the caller's.
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

/// The dot product of two f32 rows.
///
/// # Safety
/// Both must be readable over `k` elements.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd>(s: S, a: *const f32, b: *const f32, k: usize) -> f32 {
    let mut acc = [[s.splat(0.0)]];
    let (a, b) = (Rows { ptr: a, stride: 0 }, Rows { ptr: b, stride: 0 });
    // SAFETY: the caller's.
    unsafe { accumulate(s, &mut acc, a, b, k) };
    s.sum(acc[0][0])
}
