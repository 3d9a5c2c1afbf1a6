//! Operations that treat rows or elements one by one: lookups, norms, activations.

use std::marker::PhantomData;
use std::ops::Range;

use crate::{Activation, DType, NormKind, Result, View};

use super::CpuDevice;
use super::check::Mat;
use super::element::{Convert, Element, with_element};
use super::isa::Kernel;
use super::lanes::{LANES, Simd};
use super::linear::add_row;
use super::math;

impl CpuDevice {
    pub(super) fn do_gather(
        &self,
        table: View,
        ids: View,
        out: View,
        accumulate: bool,
    ) -> Result<()> {
        let op = self.op("gather");
        op.shape("ids", ids, out.rows, 1)?;
        op.shape("table", table, table.rows, out.cols)?;
        op.apart(out, table)?;
        op.apart(out, ids)?;
        let (dtype, table) = (table.dtype, op.floats("table", table)?);
        let (ids, out) = (op.i32("ids", ids)?, op.out("out", out)?);
        let chosen = self.indices("gather", "table", ids, table.rows)?;
        self.by_rows(out.rows, out.cols, &|_, rows| {
            with_element!(dtype, E => self.engine.run(Gather::<E> {
                table, chosen: &chosen, out, rows, accumulate, e: PhantomData,
            }));
        });
        Ok(())
    }

    pub(super) fn do_scatter_add(
        &self,
        src: View,
        ids: View,
        weights: View,
        out: View,
    ) -> Result<()> {
        let op = self.op("scatter_add");
        op.shape("ids", ids, src.rows, 1)?;
        op.shape("weights", weights, src.rows, 1)?;
        op.shape("out", out, out.rows, src.cols)?;
        for input in [src, ids, weights] {
            op.apart(out, input)?;
        }
        let (src, ids) = (op.f32("src", src)?, op.i32("ids", ids)?);
        let (weights, out) = (op.f32("weights", weights)?, op.out("out", out)?);
        let chosen = self.indices("scatter_add", "out", ids, out.rows)?;
        // By columns: then rows keep their order even if ids repeat.
        self.by_columns(src.cols, src.rows, &|_, cols| {
            self.engine.run(ScatterAdd {
                src,
                chosen: &chosen,
                weights,
                out,
                cols,
            });
        });
        Ok(())
    }

    /// Ids as row numbers of something, or an error that names the bad one.
    pub(super) fn indices(
        &self,
        op: &'static str,
        of: &str,
        ids: Mat<i32>,
        limit: usize,
    ) -> Result<Vec<usize>> {
        let op = self.op(op);
        (0..ids.rows)
            .map(|row| match ids.index(row, 0, limit) {
                Some(index) => Ok(index),
                None => op.fail(format!(
                    "id of row {row} is not among the {limit} rows of {of}"
                )),
            })
            .collect()
    }

    pub(super) fn do_norm(
        &self,
        kind: NormKind,
        eps: f32,
        x: View,
        weight: View,
        bias: Option<View>,
        out: View,
    ) -> Result<()> {
        let op = self.op("norm");
        op.shape("out", out, x.rows, x.cols)?;
        op.same_or_apart(out, x)?;
        let w = op.float_row("weight", weight, x.cols)?;
        op.apart(out, weight)?;
        let mut parameters = vec![(weight.dtype, w)];
        if let Some(bias) = bias {
            parameters.push((bias.dtype, op.float_row("bias", bias, x.cols)?));
            op.apart(out, bias)?;
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
                self.engine.run(Norm {
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

    /// A row as f32: itself, or converted into `scratch`, which has room for it.
    fn as_f32(&self, dtype: DType, row: Mat<u8>, scratch: *mut f32) -> *const f32 {
        if dtype == DType::F32 {
            return row.row(0).cast_const().cast();
        }
        with_element!(dtype, E => {
            let from = row.row(0).cast_const().cast::<E>();
            self.engine.run(Convert { from, n: row.cols, to: scratch });
        });
        scratch
    }

    pub(super) fn do_activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        let op = self.op("activate");
        op.shape("out", out, x.rows, x.cols)?;
        op.same_or_apart(out, x)?;
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
        op.shape("up", up, gate.rows, gate.cols)?;
        op.shape("out", out, gate.rows, gate.cols)?;
        op.same_or_apart(out, gate)?;
        op.apart(out, up)?;
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
        op.shape("out", out, x.rows, x.cols)?;
        op.apart(out, x)?;
        let (x, out) = (op.f32("x", x)?, op.out("out", out)?);
        self.by_rows(x.rows, x.cols, &|_, rows| {
            self.engine.run(Add { x, out, rows })
        });
        Ok(())
    }

    pub(super) fn do_split(
        &self,
        x: View,
        first: usize,
        stride: usize,
        width: usize,
        out: View,
    ) -> Result<()> {
        let op = self.op("split");
        op.ensure(width > 0 && out.cols.is_multiple_of(width), || {
            format!("out has {} columns, not a multiple of {width}", out.cols)
        })?;
        op.ensure(x.rows == out.rows, || {
            format!("out has {} rows, x {}", out.rows, x.rows)
        })?;
        let groups = out.cols / width;
        let last = groups.saturating_sub(1).checked_mul(stride);
        let end = last.and_then(|last| last.checked_add(first)?.checked_add(width));
        op.ensure(groups == 0 || end.is_some_and(|end| end <= x.cols), || {
            format!(
                "{groups} groups of {width} at {first}, {stride} apart, do not fit in {} columns",
                x.cols
            )
        })?;
        op.apart(out, x)?;
        let (x, out) = (op.f32("x", x)?, op.out("out", out)?);
        self.by_rows(out.rows, out.cols, &|_, rows| {
            for row in rows {
                for group in 0..groups {
                    let from = x.row(row).wrapping_add(first + group * stride);
                    let to = out.row(row).wrapping_add(group * width);
                    // SAFETY: both were checked to have `width` elements there and
                    // to lie apart; as bytes there is no alignment to keep.
                    unsafe {
                        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), width * 4);
                    }
                }
            }
        });
        Ok(())
    }
}

struct Gather<'a, E> {
    table: Mat<u8>,
    chosen: &'a [usize],
    out: Mat<f32>,
    rows: Range<usize>,
    accumulate: bool,
    e: PhantomData<E>,
}

impl<E: Element> Kernel for Gather<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.cols;
        let full = n / LANES * LANES;
        for row in self.rows {
            let start = self.table.row(0).cast_const().cast::<E>();
            let from = start.wrapping_add(self.chosen[row] * self.table.stride);
            let to = self.out.row(row);
            // SAFETY: the id was checked against the table's rows; rows are `n` wide.
            unsafe {
                for i in (0..full).step_by(LANES) {
                    let mut v = E::load(s, from.add(i));
                    if self.accumulate {
                        v = s.add(s.load(to.add(i)), v);
                    }
                    s.store(v, to.add(i));
                }
                if full < n {
                    let mut v = E::load_part(s, from.wrapping_add(full), n - full);
                    if self.accumulate {
                        v = s.add(s.load_part(to.add(full), n - full), v);
                    }
                    s.store_part(v, to.add(full), n - full);
                }
            }
        }
    }
}

struct ScatterAdd<'a> {
    src: Mat<f32>,
    chosen: &'a [usize],
    weights: Mat<f32>,
    out: Mat<f32>,
    cols: Range<usize>,
}

impl Kernel for ScatterAdd<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, &target) in self.chosen.iter().enumerate() {
            let from = self.src.row(row).wrapping_add(self.cols.start);
            let to = self.out.row(target).wrapping_add(self.cols.start);
            // SAFETY: ids and shapes were checked; chunks have columns of their own.
            unsafe {
                let weight = self.weights.row(row).read_unaligned();
                add_scaled_row(s, to, s.splat(weight), from, self.cols.len());
            }
        }
    }
}

/// `out = factor · x + out`, fused.
///
/// # Safety
/// `x` must be readable and `out` writable over `n`.
#[inline(always)]
pub(super) unsafe fn add_scaled_row<S: Simd>(
    s: S,
    out: *mut f32,
    factor: S::V,
    x: *const f32,
    n: usize,
) {
    let full = n / LANES * LANES;
    // SAFETY: the caller's.
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

struct Norm {
    kind: NormKind,
    eps: f32,
    x: Mat<f32>,
    weight: *const f32,
    bias: Option<*const f32>,
    out: Mat<f32>,
    rows: Range<usize>,
}

impl Kernel for Norm {
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

impl Norm {
    /// Up to sixteen of the `n` elements from `i` on.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, row: usize, i: usize, n: usize, mean: f32, scale: f32) {
        // SAFETY: the caller's.
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

/// The first `n` of sixteen elements.
#[inline(always)]
pub(super) unsafe fn part<S: Simd>(s: S, p: *const f32, n: usize) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        if n >= LANES {
            s.load(p)
        } else {
            s.load_part(p, n)
        }
    }
}

/// Stores the first `n` of sixteen elements.
#[inline(always)]
pub(super) unsafe fn store<S: Simd>(s: S, v: S::V, p: *mut f32, n: usize) {
    // SAFETY: the caller's.
    unsafe {
        if n >= LANES {
            s.store(v, p)
        } else {
            s.store_part(v, p, n)
        }
    }
}

/// The mean of `n` elements.
#[inline(always)]
unsafe fn mean<S: Simd>(s: S, x: *const f32, n: usize) -> f32 {
    let mut acc = s.splat(0.0);
    for i in (0..n).step_by(LANES) {
        // SAFETY: the caller's.
        acc = s.add(acc, unsafe { part(s, x.wrapping_add(i), n - i) });
    }
    s.sum(acc) / n as f32
}

/// The mean of `(x - centre)²`.
#[inline(always)]
unsafe fn mean_square<S: Simd>(s: S, x: *const f32, centre: f32, n: usize) -> f32 {
    let mut acc = s.splat(0.0);
    let full = n / LANES * LANES;
    // SAFETY: the caller's.
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
            unsafe { add_row(s, self.out.row(row), self.x.row(row), self.x.cols) };
        }
    }
}
