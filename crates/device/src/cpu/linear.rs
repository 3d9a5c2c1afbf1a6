//! Matrix products with stored weights.

use std::marker::PhantomData;
use std::ops::Range;

use crate::{Phase, ProductOps, Result, View, Weight};
use djinn_types::{DType, Order};

use super::CpuDevice;
use super::chain::{Chains, TILE_ROWS};
use super::dot::{Products, Sink, StridedRows};
use super::element::{Convert, Element, with_element};
use super::lanes::{Kernel, LANES, Simd};
use super::panel;
use super::row;
use super::split::Split;
use crate::check::Mat;

/// Largest number of rows for which a product converts its weights tile by tile. For more rows it
/// converts them once into a panel.
const FEW_ROWS: usize = 24;

/// A checked product.
#[derive(Clone, Copy)]
struct LinearJob {
    x: Mat<f32>,
    weight: Mat<u8>,
    bias: Option<(DType, Mat<u8>)>,
    out: Mat<f32>,
}

impl ProductOps for CpuDevice {
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        _: Phase,
    ) -> Result<()> {
        let op = self.op("linear");
        op.linear(x, weight, bias, out)?;
        let mut job = LinearJob {
            x: op.f32("x", x)?,
            weight: op.floats("weight", weight.view)?,
            bias: None,
            out: op.out("out", out)?,
        };
        if let Some(bias) = bias {
            job.bias = Some((bias.dtype, op.floats("bias", bias)?));
        }
        with_element!(weight.view.dtype, E => match weight.order {
            Order::OutIn => self.out_in::<E>(job),
            Order::InOut => self.in_out::<E>(job),
        });
        Ok(())
    }
}

impl CpuDevice {
    fn out_in<E: Element>(&self, job: LinearJob) {
        let (rows, cols, k) = (job.x.rows, job.out.cols, job.x.cols);
        let few = rows <= FEW_ROWS;
        let split = if few {
            Split::few(rows, cols, k * size_of::<E>(), self.threads())
        } else {
            Split::many(rows, cols, panel::columns(k), self.threads())
        };
        self.pool.run(split.chunks(), &|thread, chunk| {
            let (rows, cols) = split.chunk(chunk);
            let bias_floats = cols.len().next_multiple_of(LANES);
            let panel_floats = if few { 0 } else { panel::floats(cols.len(), k) };
            self.with_scratch(thread, bias_floats + panel_floats, |scratch| {
                let products = Products {
                    x: StridedRows {
                        ptr: job.x.row(rows.start).cast_const(),
                        stride: job.x.stride,
                    },
                    rows: rows.len(),
                    w: StridedRows {
                        ptr: job.weight_row::<E>(cols.start),
                        stride: job.weight.stride,
                    },
                    cols: cols.len(),
                    k,
                    out: Sink {
                        ptr: job.out.row(rows.start).wrapping_add(cols.start),
                        stride: job.out.stride,
                        bias: self.bias(&job, &cols, scratch),
                    },
                };
                let panel = (!few).then_some(scratch.wrapping_add(bias_floats));
                self.engine.run(OutIn { products, panel });
            });
        });
    }

    fn in_out<E: Element>(&self, job: LinearJob) {
        let (rows, cols) = (job.x.rows, job.out.cols);
        let (split, depth) = if rows <= FEW_ROWS {
            (Split::wide(rows, cols, self.threads()), 8)
        } else {
            (Split::many(rows, cols, 8 * LANES, self.threads()), 256)
        };
        self.pool.run(split.chunks(), &|thread, chunk| {
            let (rows, cols) = split.chunk(chunk);
            let width = cols.len().next_multiple_of(LANES);
            self.with_scratch(thread, width * (depth + 1), |scratch| {
                let bias = self.bias(&job, &cols, scratch);
                let panel = (rows.len() > TILE_ROWS).then_some(scratch.wrapping_add(width));
                let e = PhantomData;
                self.engine.run(InOut::<E> {
                    job,
                    rows,
                    cols,
                    bias,
                    panel,
                    depth,
                    e,
                });
            });
        });
    }

    /// Converts the bias of some columns to f32 in `scratch`.
    fn bias(&self, job: &LinearJob, cols: &Range<usize>, scratch: *mut f32) -> Option<*const f32> {
        let (dtype, bias) = job.bias?;
        with_element!(dtype, B => {
            let from = bias.row(0).cast_const().cast::<B>().wrapping_add(cols.start);
            self.engine.run(Convert { from, n: cols.len(), to: scratch, ahead: 0 });
        });
        Some(scratch)
    }
}

impl LinearJob {
    fn weight_row<E>(&self, row: usize) -> *const E {
        let start: *const u8 = self.weight.row(0);
        start.cast::<E>().wrapping_add(row * self.weight.stride)
    }
}

/// A chunk of a product with an `[out, in]` weight. The operation has checked the matrices, and
/// chunks share no output element.
struct OutIn<E> {
    products: Products<E>,
    /// Scratch for a panel, if there are enough rows.
    panel: Option<*mut f32>,
}

impl<E: Element> Kernel for OutIn<E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: checked by the operation, and the panel is large enough.
        unsafe {
            match self.panel {
                None => self.products.run(s),
                Some(panel) => panel::run(s, self.products, panel),
            }
        }
    }
}

/// A chunk of a product with an `[in, out]` weight. The operation has checked the matrices, and
/// chunks share no output element.
struct InOut<E> {
    job: LinearJob,
    rows: Range<usize>,
    cols: Range<usize>,
    bias: Option<*const f32>,
    /// Scratch for `depth` rows of the columns' weights as f32, if there are enough rows to
    /// convert the weights once.
    panel: Option<*mut f32>,
    depth: usize,
    e: PhantomData<E>,
}

impl<E: Element> Kernel for InOut<E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let InOut {
            job,
            rows,
            cols,
            bias,
            panel,
            depth,
            ..
        } = self;
        let (k, n) = (job.x.cols, cols.len());
        let width = n.next_multiple_of(LANES);
        let out = |row| job.out.row(row).wrapping_add(cols.start);
        for row in rows.clone() {
            // SAFETY: checked by the operation; +0.0 is all zeros.
            unsafe { std::ptr::write_bytes(out(row).cast::<u8>(), 0, n * size_of::<f32>()) };
        }
        for start in (0..k).step_by(depth) {
            let links = depth.min(k - start);
            let weights = StridedRows {
                ptr: job.weight_row::<E>(start).wrapping_add(cols.start),
                stride: job.weight.stride,
            };
            // Prefetches the next rows of weights while these are used.
            let ahead = depth * job.weight.stride;
            let chains = Chains {
                out: out(rows.start),
                stride: job.out.stride,
                x: StridedRows {
                    ptr: job.x.row(rows.start).wrapping_add(start).cast_const(),
                    stride: job.x.stride,
                },
                rows: rows.len(),
                w: weights,
                ahead,
                cols: n,
                k: links,
            };
            let Some(panel) = panel else {
                // SAFETY: checked by the operation.
                unsafe { chains.extend(s) };
                continue;
            };
            for i in 0..links {
                let (from, to) = (weights.at(i, 0), panel.wrapping_add(i * width));
                s.call(Convert { from, n, to, ahead });
            }
            let w = StridedRows {
                ptr: panel.cast_const(),
                stride: width,
            };
            // SAFETY: checked by the operation.
            unsafe { chains.with(w).extend(s) };
        }
        if let Some(bias) = bias {
            for row in rows {
                // SAFETY: checked by the operation.
                unsafe { row::add(s, out(row), bias, n) };
            }
        }
    }
}
