//! Norms, activations and sums.

use std::ops::Range;

use crate::{ElementwiseOps, NormParams, Result, View};
use djinn_types::{Activation, DType, NormKind};

use super::CpuDevice;
use super::element::{Convert, with_element};
use super::lanes::{Kernel, LANES, Simd};
use super::math;
use super::row::{self, part, store};
use crate::check::Mat;

impl ElementwiseOps for CpuDevice {
    fn norm(&self, params: NormParams, x: View, out: View) -> Result<()> {
        let NormParams {
            kind,
            eps,
            weight,
            bias,
        } = params;
        let op = self.op("norm");
        op.norm(x, weight, bias, out)?;
        let mut parameters = vec![(weight.dtype, op.floats("weight", weight)?)];
        if let Some(bias) = bias {
            parameters.push((bias.dtype, op.floats("bias", bias)?));
        }
        let (x, out) = (op.f32("x", x)?, op.out("out", out)?);
        self.by_rows(x.rows, x.cols, &|thread, rows| {
            let width = x.cols.next_multiple_of(LANES);
            self.with_scratch(thread, 2 * width, |scratch| {
                let row = |i: usize| -> Option<*const f32> {
                    let (dtype, row) = *parameters.get(i)?;
                    Some(self.as_f32(dtype, row, scratch.wrapping_add(i * width)))
                };
                let (weight, bias) = (row(0), row(1));
                let weight = weight.unwrap_or(scratch);
                self.engine.run(NormRows {
                    kind,
                    eps,
                    x,
                    weight,
                    bias,
                    out,
                    rows,
                });
            });
        });
        Ok(())
    }

    fn activate(&self, f: Activation, x: View, out: View) -> Result<()> {
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

    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
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

    fn add(&self, x: View, out: View) -> Result<()> {
        let op = self.op("add");
        op.add(x, out)?;
        let (x, out) = (op.f32("x", x)?, op.out("out", out)?);
        self.by_rows(x.rows, x.cols, &|_, rows| {
            self.engine.run(Add { x, out, rows });
        });
        Ok(())
    }
}

impl CpuDevice {
    /// Returns a row as f32: the row itself, or its conversion in `scratch`.
    fn as_f32(&self, dtype: DType, row: Mat<u8>, scratch: *mut f32) -> *const f32 {
        if dtype == DType::F32 {
            return row.row(0).cast_const().cast();
        }
        with_element!(dtype, E => {
            let from = row.row(0).cast_const().cast::<E>();
            self.engine.run(Convert { from, n: row.cols, to: scratch, ahead: 0 });
        });
        scratch
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
        // The match is outside the loop, so that each function has its own loop.
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

struct NormRows {
    kind: NormKind,
    eps: f32,
    x: Mat<f32>,
    weight: *const f32,
    bias: Option<*const f32>,
    out: Mat<f32>,
    rows: Range<usize>,
}

impl Kernel for NormRows {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.cols;
        for row in self.rows.clone() {
            let x = self.x.row(row).cast_const();
            // SAFETY: checked rows of `n` elements; `out` is `x` or apart, and each
            // element is read before it is written.
            unsafe {
                let mean = match self.kind {
                    NormKind::Rms => 0.0,
                    NormKind::Layer => mean(s, x, n),
                };
                let scale = 1.0 / (mean_square(s, x, mean, n) + self.eps).sqrt();
                for i in (0..n).step_by(LANES) {
                    self.write(s, row, i, n - i, mean, scale);
                }
            }
        }
    }
}

impl NormRows {
    /// Writes up to sixteen of the `n` elements from `i` on.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, row: usize, i: usize, n: usize, mean: f32, scale: f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let v = part(s, self.x.row(row).cast_const().wrapping_add(i), n);
            let v = s.mul(s.sub(v, s.splat(mean)), s.splat(scale));
            let weight = part(s, self.weight.wrapping_add(i), n);
            let v = match self.bias {
                None => s.mul(v, weight),
                Some(bias) => s.fma(v, weight, part(s, bias.wrapping_add(i), n)),
            };
            store(s, v, self.out.row(row).wrapping_add(i), n);
        }
    }
}

/// Mean of `n` elements.
///
/// # Safety
/// `x` must be readable over `n` elements.
#[inline(always)]
unsafe fn mean<S: Simd>(s: S, x: *const f32, n: usize) -> f32 {
    let mut acc = s.splat(0.0);
    for i in (0..n).step_by(LANES) {
        // SAFETY: guaranteed by the caller.
        acc = s.add(acc, unsafe { part(s, x.wrapping_add(i), n - i) });
    }
    s.sum(acc) / n as f32
}

/// Mean of `(x - centre)²` over `n` elements.
///
/// # Safety
/// `x` must be readable over `n` elements.
#[inline(always)]
unsafe fn mean_square<S: Simd>(s: S, x: *const f32, centre: f32, n: usize) -> f32 {
    let mut acc = s.splat(0.0);
    let full = n / LANES * LANES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for i in (0..full).step_by(LANES) {
            let d = s.sub(s.load(x.add(i)), s.splat(centre));
            acc = s.fma(d, d, acc);
        }
        if full < n {
            // Lanes past the end must count as zero, not as `-centre`.
            let mut tail = [0.0; LANES];
            let d = s.sub(s.load_part(x.add(full), n - full), s.splat(centre));
            s.store_part(d, tail.as_mut_ptr(), n - full);
            let d = s.load(tail.as_ptr());
            acc = s.fma(d, d, acc);
        }
    }
    s.sum(acc) / n as f32
}
