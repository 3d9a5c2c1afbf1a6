//! Choosing experts.

use std::ops::Range;

use crate::{Result, View};

use super::CpuDevice;
use super::check::Mat;
use super::isa::Kernel;
use super::lanes::Simd;
use super::softmax::softmax;

impl CpuDevice {
    pub(super) fn do_route(
        &self,
        logits: View,
        renormalise: bool,
        ids: View,
        weights: View,
    ) -> Result<()> {
        let op = self.op("route");
        let k = ids.cols;
        op.ensure(k <= logits.cols && logits.cols <= i32::MAX as usize, || {
            format!("cannot choose {k} of {} experts", logits.cols)
        })?;
        op.shape("ids", ids, logits.rows, k)?;
        op.shape("weights", weights, logits.rows, k)?;
        for (a, b) in [(ids, logits), (weights, logits), (ids, weights)] {
            op.apart(a, b)?;
        }
        let logits = op.f32("logits", logits)?;
        let (ids, weights) = (op.out_ids("ids", ids)?, op.out("weights", weights)?);
        self.by_rows(logits.rows, logits.cols * (k + 4), &|thread, rows| {
            self.with_scratch(thread, logits.cols, |scores| {
                let rows = rows.clone();
                self.engine.run(Route {
                    logits,
                    renormalise,
                    ids,
                    weights,
                    rows,
                    scores,
                });
            });
        });
        Ok(())
    }
}

struct Route {
    logits: Mat<f32>,
    renormalise: bool,
    ids: Mat<i32>,
    weights: Mat<f32>,
    rows: Range<usize>,
    /// Room for a row of logits.
    scores: *mut f32,
}

impl Kernel for Route {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (n, k) = (self.logits.cols, self.ids.cols);
        for row in self.rows.clone() {
            let (logits, ids) = (self.logits.row(row), self.ids.row(row));
            let weights = self.weights.row(row);
            // SAFETY: checked rows of `n` and `k` elements; `choose` gives ids below `n`.
            unsafe {
                choose(logits, n, ids, k);
                std::ptr::copy_nonoverlapping(logits.cast::<u8>(), self.scores.cast(), 4 * n);
                softmax(s, self.scores, n, 1.0);
                let mut sum = 0.0;
                for i in 0..k {
                    let weight = *self.scores.add(ids.add(i).read_unaligned() as usize);
                    weights.add(i).write_unaligned(weight);
                    sum += weight;
                }
                if self.renormalise {
                    for i in 0..k {
                        let weight = weights.add(i).read_unaligned();
                        weights.add(i).write_unaligned(weight / sum);
                    }
                }
            }
        }
    }
}

/// The `k` greatest of `n` logits, ids ascending. A NaN is less than anything.
///
/// # Safety
/// `logits` must be readable over `n`, `ids` writable over `k <= n`.
unsafe fn choose(logits: *const f32, n: usize, ids: *mut i32, k: usize) {
    // SAFETY: the caller's throughout.
    let logit = |i: i32| {
        let logit = unsafe { logits.add(i as usize).read_unaligned() };
        if logit.is_nan() {
            f32::NEG_INFINITY
        } else {
            logit
        }
    };
    let id = |at: usize| unsafe { ids.add(at).read_unaligned() };
    let put = |at: usize, id: i32| unsafe { ids.add(at).write_unaligned(id) };
    // Kept in order of descending logit, then ascending id, by insertion.
    let mut held = 0;
    for candidate in 0..n as i32 {
        let mut at = held;
        while at > 0 && logit(candidate) > logit(id(at - 1)) {
            at -= 1;
        }
        if at == k {
            continue;
        }
        held = (held + 1).min(k);
        for i in (at + 1..held).rev() {
            put(i, id(i - 1));
        }
        put(at, candidate);
    }
    for i in 1..k {
        let moving = id(i);
        let mut at = i;
        while at > 0 && id(at - 1) > moving {
            put(at, id(at - 1));
            at -= 1;
        }
        put(at, moving);
    }
}
