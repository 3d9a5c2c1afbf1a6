//! Loads, stores and sums of parts of rows.

use super::lanes::{LANES, Simd};

/// Loads the first `n` of sixteen elements, or all if `n` is larger.
///
/// # Safety
/// The loaded elements must be readable.
#[inline(always)]
pub(super) unsafe fn part<S: Simd>(s: S, p: *const f32, n: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if n >= LANES {
            s.load(p)
        } else {
            s.load_part(p, n)
        }
    }
}

/// Stores the first `n` of sixteen elements, or all if `n` is larger.
///
/// # Safety
/// The stored elements must be writable.
#[inline(always)]
pub(super) unsafe fn store<S: Simd>(s: S, v: S::V, p: *mut f32, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if n >= LANES {
            s.store(v, p);
        } else {
            s.store_part(v, p, n);
        }
    }
}

/// Adds a row: `out += x`.
///
/// # Safety
/// `x` must be readable and `out` writable over `n`.
#[inline(always)]
pub(super) unsafe fn add<S: Simd>(s: S, out: *mut f32, x: *const f32, n: usize) {
    let full = n / LANES * LANES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for i in (0..full).step_by(LANES) {
            let sum = s.add(s.load(out.add(i)), s.load(x.add(i)));
            s.store(sum, out.add(i));
        }
        if full < n {
            let (out, x) = (out.add(full), x.add(full));
            let sum = s.add(s.load_part(out, n - full), s.load_part(x, n - full));
            s.store_part(sum, out, n - full);
        }
    }
}

/// Adds a scaled row: `out = factor · x + out`, rounded once.
///
/// # Safety
/// `x` must be readable and `out` writable over `n`.
#[inline(always)]
pub(super) unsafe fn add_scaled<S: Simd>(
    s: S,
    out: *mut f32,
    factor: S::V,
    x: *const f32,
    n: usize,
) {
    let full = n / LANES * LANES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for i in (0..full).step_by(LANES) {
            let sum = s.fma(factor, s.load(x.add(i)), s.load(out.add(i)));
            s.store(sum, out.add(i));
        }
        if full < n {
            let (out, x) = (out.add(full), x.add(full));
            let sum = s.fma(factor, s.load_part(x, n - full), s.load_part(out, n - full));
            s.store_part(sum, out, n - full);
        }
    }
}
