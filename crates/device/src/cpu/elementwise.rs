//! Activations and sums, element by element.

use std::ops::Range;

use crate::{Result, View};
use djinn_types::Activation;

use super::CpuDevice;
use super::isa::Kernel;
use super::lanes::{LANES, Simd};
use super::math;
use super::row::{self, part, store};
use crate::check::Mat;

impl CpuDevice {
    pub(super) fn do_activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        let op = self.op("activate");
        op.activate(x, out)?;
        let (x, out) = (op.f32("x", x)?, op.out("out", out)?);
        self.by_rows(x.rows, x.cols, &|_, rows| {
            self.engine.run(Activate {
                f,
                x,
                up: None,
                out,
                rows,
            });
        });
        Ok(())
    }

    pub(super) fn do_gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        let op = self.op("gate");
        op.gate(gate, up, out)?;
        let (x, up) = (op.f32("gate", gate)?, op.f32("up", up)?);
        let out = op.out("out", out)?;
        self.by_rows(x.rows, x.cols, &|_, rows| {
            self.engine.run(Activate {
                f,
                x,
                up: Some(up),
                out,
                rows,
            });
        });
        Ok(())
    }

    pub(super) fn do_add(&self, x: View, out: View) -> Result<()> {
        let op = self.op("add");
        op.add(x, out)?;
        let (x, out) = (op.f32("x", x)?, op.out("out", out)?);
        self.by_rows(x.rows, x.cols, &|_, rows| {
            self.engine.run(Add { x, out, rows });
        });
        Ok(())
    }
}

struct Activate {
    f: Activation,
    x: Mat<f32>,
    up: Option<Mat<f32>>,
    out: Mat<f32>,
    rows: Range<usize>,
}

impl Kernel for Activate {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // One loop for each function, chosen outside it.
        match self.f {
            Activation::Silu => self.rows(s, Activation::Silu),
            Activation::Gelu => self.rows(s, Activation::Gelu),
            Activation::GeluTanh => self.rows(s, Activation::GeluTanh),
            Activation::Relu => self.rows(s, Activation::Relu),
        }
    }
}

impl Activate {
    #[inline(always)]
    fn rows<S: Simd>(&self, s: S, f: Activation) {
        let n = self.x.cols;
        for row in self.rows.clone() {
            for i in (0..n).step_by(LANES) {
                let left = n - i;
                // SAFETY: checked rows of `n` elements; `out` is `x` or apart, and
                // each element is read before it is written.
                unsafe {
                    let x = part(s, self.x.row(row).cast_const().wrapping_add(i), left);
                    let mut v = math::activation(s, f, x);
                    if let Some(up) = self.up {
                        v = s.mul(v, part(s, up.row(row).cast_const().wrapping_add(i), left));
                    }
                    store(s, v, self.out.row(row).wrapping_add(i), left);
                }
            }
        }
    }
}

struct Add {
    x: Mat<f32>,
    out: Mat<f32>,
    rows: Range<usize>,
}

impl Kernel for Add {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows {
            // SAFETY: checked rows that lie apart.
            unsafe { row::add(s, self.out.row(row), self.x.row(row), self.x.cols) };
        }
    }
}
