//! Lookups of rows, scattered sums, and copies of columns.

use std::marker::PhantomData;
use std::ops::Range;

use crate::{LookupOps, Result, View};

use super::CpuDevice;
use super::element::{Element, with_element};
use super::lanes::{Kernel, LANES, Simd};
use super::row::add_scaled;
use crate::check::Mat;

impl LookupOps for CpuDevice {
    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()> {
        let op = self.op("gather");
        op.gather(table, ids, out)?;
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

    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        let op = self.op("scatter_add");
        op.scatter_add(src, ids, weights, out)?;
        let (src, ids) = (op.f32("src", src)?, op.i32("ids", ids)?);
        let (weights, out) = (op.f32("weights", weights)?, op.out("out", out)?);
        let chosen = self.indices("scatter_add", "out", ids, out.rows)?;
        // Threads divide the columns, so that rows keep their order even if ids repeat.
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

    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()> {
        let op = self.op("split");
        op.split(x, first, stride, width, out)?;
        let groups = out.cols / width;
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

impl CpuDevice {
    /// Converts ids to row numbers below `limit`; the error names the first invalid row.
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
                    "the id of row {row} is not one of the {limit} rows of {of}"
                )),
            })
            .collect()
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
            // SAFETY: ids and shapes were checked; no two chunks share a column.
            unsafe {
                let weight = self.weights.row(row).read_unaligned();
                add_scaled(s, to, s.splat(weight), from, self.cols.len());
            }
        }
    }
}
