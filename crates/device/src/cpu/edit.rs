//! Changes to activations, and routing.

use std::ops::Range;

use crate::{Edit, Result, View};

use super::CpuDevice;
use super::dot::dot;
use super::isa::Kernel;
use super::lanes::{LANES, Simd};
use super::row::{add_scaled, part, store};
use crate::check::Mat;

impl CpuDevice {
    pub(super) fn do_edit(&self, x: View, edit: Edit) -> Result<()> {
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
}

struct EditRows {
    x: Mat<f32>,
    edit: Edit,
    operand: Option<Mat<f32>>,
    rows: Range<usize>,
    /// Room for a row.
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
                    (_, _) => std::ptr::write_bytes(x.cast::<u8>(), 0, 4 * n),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn scale<S: Simd>(s: S, x: *mut f32, factor: S::V, n: usize) {
    for i in (0..n).step_by(LANES) {
        // SAFETY: the caller's.
        unsafe {
            let v = s.mul(part(s, x.add(i).cast_const(), n - i), factor);
            store(s, v, x.add(i), n - i);
        }
    }
}

/// `x - (x · u)(u · u)⁻¹ u`, with `u` the operand over its largest magnitude, so that
/// neither a tiny nor a huge operand is lost in its square.
#[inline(always)]
unsafe fn project_out<S: Simd>(s: S, x: *mut f32, operand: *const f32, unit: *mut f32, n: usize) {
    // SAFETY: the caller's.
    unsafe {
        let mut most = s.splat(0.0);
        for i in (0..n).step_by(LANES) {
            most = s.max(s.abs(part(s, operand.add(i), n - i)), most);
        }
        let most = s.greatest(most);
        if most == 0.0 {
            return;
        }
        for i in (0..n).step_by(LANES) {
            let v = s.div(part(s, operand.add(i), n - i), s.splat(most));
            store(s, v, unit.add(i), n - i);
        }
        let factor = -(dot(s, x, unit, n) / dot(s, unit, unit, n));
        add_scaled(s, x, s.splat(factor), unit, n);
    }
}
