//! Sums of scaled rows: `out[r] = Σ x[r][k] · w[k]`. Each element is one chain of fused
//! multiply-adds in ascending order of `k`, and many elements run side by side.
//!
//! The chains live in `out` between calls, so a later call can continue them.

use super::dot::StridedRows;
use super::element::Element;
use super::lanes::{Kernel, LANES, Simd};

/// Largest number of rows of a tile.
pub(super) const TILE_ROWS: usize = 6;

/// Chains to extend: `rows` rows of f32, `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Chains<E> {
    pub(super) out: *mut f32,
    pub(super) stride: usize,
    pub(super) x: StridedRows<f32>,
    pub(super) rows: usize,
    /// Rows of one link each.
    pub(super) w: StridedRows<E>,
    /// Distance in elements to the link to prefetch from memory; zero if the links are in a
    /// cache.
    pub(super) ahead: usize,
    pub(super) cols: usize,
    /// Number of links to add.
    pub(super) k: usize,
}

impl<E: Element> Chains<E> {
    /// Extends every chain by `k` links.
    ///
    /// # Safety
    /// `x` must be readable over `rows` rows of `k` elements, `w` over `k` rows of
    /// `cols`, and `out` writable over `rows` rows of `cols`; no other thread
    /// may access `out`.
    #[inline(always)]
    pub(super) unsafe fn extend<S: Simd>(self, s: S) {
        let mut r = 0;
        while r < self.rows {
            // Scalar code gains nothing from larger tiles.
            let most = if S::TILE_ROWS == 1 { 1 } else { TILE_ROWS };
            let n = (self.rows - r).min(most);
            let part = self.starting_at(r);
            match n {
                1 => s.call(ChainStrip::<E, 1>(part)),
                2 if const { S::TILE_ROWS > 1 } => s.call(ChainStrip::<E, 2>(part)),
                3 if const { S::TILE_ROWS > 1 } => s.call(ChainStrip::<E, 3>(part)),
                4 if const { S::TILE_ROWS > 1 } => s.call(ChainStrip::<E, 4>(part)),
                5 if const { S::TILE_ROWS > 1 } => s.call(ChainStrip::<E, 5>(part)),
                _ if const { S::TILE_ROWS > 1 } => s.call(ChainStrip::<E, 6>(part)),
                _ => unreachable!("no more rows than a tile has"),
            }
            r += n;
        }
    }

    /// Replaces the links by copies that are in a cache as f32.
    #[inline(always)]
    pub(super) fn with(self, w: StridedRows<f32>) -> Chains<f32> {
        Chains {
            out: self.out,
            stride: self.stride,
            x: self.x,
            rows: self.rows,
            w,
            ahead: 0,
            cols: self.cols,
            k: self.k,
        }
    }

    #[inline(always)]
    fn starting_at(self, row: usize) -> Self {
        Chains {
            out: self.out.wrapping_add(row * self.stride),
            x: self.x.from(row, 0),
            ..self
        }
    }

    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> *mut f32 {
        self.out.wrapping_add(row * self.stride + col)
    }
}

/// Kernel for the first `R` rows.
struct ChainStrip<E, const R: usize>(Chains<E>);

impl<E: Element, const R: usize> Kernel for ChainStrip<E, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.0.cols;
        let mut c = 0;
        // SAFETY: the conditions of `Chains::extend`.
        unsafe {
            while const { S::TILE_COLS == 4 } && c + 4 * LANES <= cols {
                self.tile::<S, 4>(s, c);
                c += 4 * LANES;
            }
            while c + LANES <= cols {
                self.tile::<S, 1>(s, c);
                c += LANES;
            }
            if c < cols {
                self.last(s, c, cols - c);
            }
        }
    }
}

impl<E: Element, const R: usize> ChainStrip<E, R> {
    /// Extends `C` vectors of columns from `col` on.
    #[inline(always)]
    unsafe fn tile<S: Simd, const C: usize>(&self, s: S, col: usize) {
        let chains = &self.0;
        let mut acc = [[s.splat(0.0); C]; R];
        // SAFETY: guaranteed by the caller.
        unsafe {
            for (r, acc) in acc.iter_mut().enumerate() {
                for (c, acc) in acc.iter_mut().enumerate() {
                    *acc = s.load(chains.at(r, col + c * LANES));
                }
            }
            for i in 0..chains.k {
                let mut wv = [s.splat(0.0); C];
                for (c, wv) in wv.iter_mut().enumerate() {
                    let link = chains.w.at(i, col + c * LANES);
                    if chains.ahead != 0 {
                        s.prefetch(link.wrapping_add(chains.ahead).cast());
                    }
                    *wv = E::load(s, link);
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let xv = s.splat(chains.x.at(r, i).read_unaligned());
                    for (acc, wv) in acc.iter_mut().zip(wv) {
                        *acc = s.fma(xv, wv, *acc);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (c, &acc) in acc.iter().enumerate() {
                    s.store(acc, chains.at(r, col + c * LANES));
                }
            }
        }
    }

    /// Extends the last `n` columns, fewer than a vector.
    #[inline(always)]
    unsafe fn last<S: Simd>(&self, s: S, col: usize, n: usize) {
        let chains = &self.0;
        for r in 0..R {
            // SAFETY: guaranteed by the caller; lanes past the end are neither read nor written.
            unsafe {
                let mut acc = s.load_part(chains.at(r, col), n);
                for i in 0..chains.k {
                    let wv = E::load_part(s, chains.w.at(i, col), n);
                    acc = s.fma(s.splat(chains.x.at(r, i).read_unaligned()), wv, acc);
                }
                s.store_part(acc, chains.at(r, col), n);
            }
        }
    }
}
