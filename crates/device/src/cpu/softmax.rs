//! Softmax of a row of scores, in the canonical order.

use super::lanes::{LANES, Simd};
use super::math::exp;
use super::row::{part, store};

/// Replaces `n` scores by the softmax of the scores times `scale`. Sums run in sixteen lanes
/// from the first score on.
///
/// # Safety
/// The scores must be writable over `n`.
#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(s: S, scores: *mut f32, n: usize, scale: f32) {
    if n == 0 {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let most = scale_and_find_most(s, scores, n, s.splat(scale));
        let sum = exponentiate_and_add(s, scores, n, s.splat(most));
        for i in (0..n).step_by(LANES) {
            let v = part(s, scores.add(i).cast_const(), n - i);
            store(s, s.div(v, s.splat(sum)), scores.add(i), n - i);
        }
    }
}

#[inline(always)]
unsafe fn scale_and_find_most<S: Simd>(s: S, scores: *mut f32, n: usize, scale: S::V) -> f32 {
    let mut most = s.splat(f32::NEG_INFINITY);
    let full = n / LANES * LANES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for i in (0..full).step_by(LANES) {
            let v = s.mul(s.load(scores.add(i)), scale);
            s.store(v, scores.add(i));
            most = s.max(v, most);
        }
        if full < n {
            let v = s.mul(s.load_part(scores.add(full), n - full), scale);
            s.store_part(v, scores.add(full), n - full);
            // Lanes past the end hold zeros, which must not be the maximum.
            let mut tail = [f32::NEG_INFINITY; LANES];
            s.store_part(v, tail.as_mut_ptr(), n - full);
            most = s.max(s.load(tail.as_ptr()), most);
        }
    }
    s.greatest(most)
}

#[inline(always)]
unsafe fn exponentiate_and_add<S: Simd>(s: S, scores: *mut f32, n: usize, most: S::V) -> f32 {
    let mut acc = s.splat(0.0);
    for i in (0..n).step_by(LANES) {
        // SAFETY: guaranteed by the caller; reading back a part gives zeros past the end.
        unsafe {
            let p = scores.add(i);
            store(
                s,
                exp(s, s.sub(part(s, p.cast_const(), n - i), most)),
                p,
                n - i,
            );
            acc = s.add(acc, part(s, p.cast_const(), n - i));
        }
    }
    s.sum(acc)
}
