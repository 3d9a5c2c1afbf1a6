//! Edits of activations.

use std::ops::Range;

use crate::{Edit, ProbeOps, Reduction, Result, View};

use super::CpuDevice;
use super::dot::dot;
use super::lanes::{Kernel, LANES, Simd};
use super::reduce::reduce;
use super::row::{add_scaled, part, store};
use crate::check::Mat;

impl ProbeOps for CpuDevice {
    fn edit(&self, x: View, edit: Edit) -> Result<()> {
        let op = self.op("edit");
        let operand = op.operand(x, edit)?;
        let operand = operand.map(|view| op.f32("operand", view)).transpose()?;
        let x = op.out("x", x)?;
        self.by_rows(x.rows, x.cols, &|thread, rows| {
            self.with_scratch(thread, x.cols, |unit| {
                self.engine.run(EditRows {
                    x,
                    edit,
                    operand,
                    rows: rows.clone(),
                    unit,
                });
            });
        });
        Ok(())
    }

    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        let op = self.op("reduce");
        op.reduce(x, how, out)?;
        reduce(self, op.f32("x", x)?, how, op.out("out", out)?);
        Ok(())
    }
}

struct EditRows {
    x: Mat<f32>,
    edit: Edit,
    operand: Option<Mat<f32>>,
    rows: Range<usize>,
    /// Scratch for a row.
    unit: *mut f32,
}

impl Kernel for EditRows {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.cols;
        for row in self.rows.clone() {
            let x = self.x.row(row);
            let operand = self.operand.map(|operand| {
                let row = if operand.rows == 1 { 0 } else { row };
                operand.row(row).cast_const()
            });
            // SAFETY: checked rows of `n` elements that lie apart.
            unsafe {
                match (self.edit, operand) {
                    (Edit::Scale(factor), _) => scale(s, x, s.splat(factor), n),
                    (Edit::Add { factor, .. }, Some(operand)) => {
                        add_scaled(s, x, s.splat(factor), operand, n);
                    }
                    (Edit::Replace(_), Some(operand)) => {
                        std::ptr::copy_nonoverlapping(operand.cast::<u8>(), x.cast(), 4 * n);
                    }
                    (Edit::ProjectOut(_), Some(operand)) => {
                        project_out(s, x, operand, self.unit, n);
                    }
                    (Edit::AddMatched { factor, .. }, Some(operand)) => {
                        add_matched(s, x, factor, operand, self.unit, n);
                    }
                    (Edit::Clamp { low, high }, _) => clamp(x, low, high, n),
                    (_, _) => std::ptr::write_bytes(x.cast::<u8>(), 0, 4 * n),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn scale<S: Simd>(s: S, x: *mut f32, factor: S::V, n: usize) {
    for i in (0..n).step_by(LANES) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let v = s.mul(part(s, x.add(i).cast_const(), n - i), factor);
            store(s, v, x.add(i), n - i);
        }
    }
}

/// Divides `from` by its largest magnitude, so that squares neither overflow nor underflow,
/// and returns that magnitude.
#[inline(always)]
unsafe fn shrink<S: Simd>(s: S, from: *const f32, to: *mut f32, n: usize) -> f32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut most = s.splat(0.0);
        for i in (0..n).step_by(LANES) {
            most = s.max(s.abs(part(s, from.add(i), n - i)), most);
        }
        let most = s.greatest(most);
        for i in (0..n).step_by(LANES) {
            let v = s.div(part(s, from.add(i), n - i), s.splat(most));
            store(s, v, to.add(i), n - i);
        }
        most
    }
}

/// Adds a direction scaled to the length of the row: `x + factor · |x| · u / |u|`.
#[inline(always)]
unsafe fn add_matched<S: Simd>(
    s: S,
    x: *mut f32,
    factor: f32,
    operand: *const f32,
    unit: *mut f32,
    n: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let most = shrink(s, x, unit, n);
        let length = most * dot(s, unit, unit, n).sqrt();
        if most == 0.0 || shrink(s, operand, unit, n) == 0.0 {
            return;
        }
        let share = factor * (length / dot(s, unit, unit, n).sqrt());
        add_scaled(s, x, s.splat(share), unit, n);
    }
}

#[inline(always)]
unsafe fn clamp(x: *mut f32, low: f32, high: f32, n: usize) {
    for i in 0..n {
        // SAFETY: guaranteed by the caller.
        let x = unsafe { &mut *x.add(i) };
        // The comparison keeps NaN.
        if *x < low {
            *x = low;
        } else if *x > high {
            *x = high;
        }
    }
}

/// Removes the component along a direction: `x - (x · u)(u · u)⁻¹ u`.
#[inline(always)]
unsafe fn project_out<S: Simd>(s: S, x: *mut f32, operand: *const f32, unit: *mut f32, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if shrink(s, operand, unit, n) == 0.0 {
            return;
        }
        let factor = -(dot(s, x, unit, n) / dot(s, unit, unit, n));
        add_scaled(s, x, s.splat(factor), unit, n);
    }
}
