//! Choices among the elements of rows: experts and tokens.

use std::ops::Range;

use crate::{ChoiceOps, Draw, Result, View};

use super::CpuDevice;
use super::lanes::{Kernel, Simd};
use super::softmax::softmax;
use crate::check::Mat;

impl ChoiceOps for CpuDevice {
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()> {
        let op = self.op("route");
        let k = ids.cols;
        op.route(logits, ids, weights)?;
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

    fn sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        let op = self.op("sample");
        op.sample(x, draws, ids)?;
        let (x, draws) = (op.f32("x", x)?, op.i32("draws", draws)?);
        let ids = op.out_ids("ids", ids)?;
        self.by_rows(x.rows, x.cols, &|_, rows| {
            for row in rows {
                // SAFETY: checked rows; no other thread writes this id.
                unsafe {
                    let word = |i: usize| draws.row(row).add(i).read_unaligned();
                    let draw = Draw::from_words(std::array::from_fn(word));
                    let at = |col: usize| x.row(row).add(col).read_unaligned();
                    let numbers: Vec<f32> = (0..x.cols).map(at).collect();
                    let chosen = draw.choose(&numbers).map_or(-1, u32::cast_signed);
                    ids.row(row).write_unaligned(chosen);
                }
            }
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
    /// Scratch for a row of logits.
    scores: *mut f32,
}

impl Kernel for Route {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (n, k) = (self.logits.cols, self.ids.cols);
        let mut chosen = Vec::with_capacity(k);
        for row in self.rows.clone() {
            let logits = self.logits.row(row).cast_const();
            let (ids, weights) = (self.ids.row(row), self.weights.row(row));
            // SAFETY: checked rows of `n` and `k` elements, and scratch of `n`.
            unsafe {
                std::ptr::copy_nonoverlapping(logits.cast::<u8>(), self.scores.cast(), 4 * n);
                let scores = std::slice::from_raw_parts(self.scores, n);
                choose(scores, k, &mut chosen);
                softmax(s, self.scores, n, 1.0);
                let scores = std::slice::from_raw_parts(self.scores, n);
                let sum: f32 = chosen.iter().map(|&id| scores[id]).sum();
                let sum = if self.renormalise { sum } else { 1.0 };
                for (i, &id) in chosen.iter().enumerate() {
                    ids.add(i).write_unaligned(id as i32);
                    weights.add(i).write_unaligned(scores[id] / sum);
                }
            }
        }
    }
}

/// Chooses the `k` greatest logits, with ids in ascending order. NaN counts as less than
/// any number.
fn choose(logits: &[f32], k: usize, chosen: &mut Vec<usize>) {
    let logit = |id: usize| {
        if logits[id].is_nan() {
            f32::NEG_INFINITY
        } else {
            logits[id]
        }
    };
    chosen.clear();
    // Keeps the chosen ids sorted by descending logit, then ascending id.
    for candidate in 0..logits.len() {
        let mut at = chosen.len();
        while at > 0 && logit(candidate) > logit(chosen[at - 1]) {
            at -= 1;
        }
        if at < k {
            chosen.truncate(k - 1);
            chosen.insert(at, candidate);
        }
    }
    chosen.sort_unstable();
}
