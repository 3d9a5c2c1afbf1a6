//! Rotary positions.

use std::ops::Range;

use crate::{Result, RopeOps, Rotation, View};
use djinn_types::RopeStyle;

use super::CpuDevice;
use super::element::{Element, with_element};
use super::lanes::{Kernel, LANES, Scalar, Simd};
use super::row::{part, store};
use crate::check::Mat;

impl RopeOps for CpuDevice {
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()> {
        let op = self.op("rope_table");
        let n = frequencies.cols;
        op.rope_table(positions, frequencies, out)?;
        let dtype = frequencies.dtype;
        let row = op.floats("frequencies", frequencies)?;
        let (positions, out) = (op.i32("positions", positions)?, op.out("out", out)?);
        // Converts the frequencies to f32 once.
        let frequencies: Vec<f32> = (0..n)
            .map(|i| {
                // SAFETY: a checked row of `n` elements.
                with_element!(dtype, E => unsafe {
                    E::load_part(Scalar, row.row(0).cast_const().cast::<E>().add(i), 1)[0]
                })
            })
            .collect();
        // A sine costs as much as about forty additions.
        self.by_rows(out.rows, n * 40, &|_, rows| {
            for row in rows {
                // SAFETY: checked rows of one and of `2n` elements; no other thread writes the
                // latter.
                unsafe {
                    let position = positions.row(row).read_unaligned() as f32;
                    for (i, &frequency) in frequencies.iter().enumerate() {
                        let (sin, cos) = f64::from(position * frequency).sin_cos();
                        out.row(row).add(i).write_unaligned(cos as f32 * scale);
                        out.row(row).add(n + i).write_unaligned(sin as f32 * scale);
                    }
                }
            }
        });
        Ok(())
    }

    fn rope(&self, x: View, rotation: Rotation) -> Result<()> {
        let Rotation {
            table,
            d_head,
            style,
        } = rotation;
        let op = self.op("rope");
        op.rope(x, table, d_head)?;
        let (x, table) = (op.out("x", x)?, op.f32("table", table)?);
        self.by_rows(x.rows, x.cols, &|_, rows| {
            self.engine.run(Rotate {
                x,
                table,
                d_head,
                style,
                rows,
            });
        });
        Ok(())
    }
}

struct Rotate {
    x: Mat<f32>,
    table: Mat<f32>,
    d_head: usize,
    style: RopeStyle,
    rows: Range<usize>,
}

impl Kernel for Rotate {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.table.cols / 2;
        for row in self.rows.clone() {
            let cos = self.table.row(row).cast_const();
            for head in (0..self.x.cols).step_by(self.d_head) {
                let x = self.x.row(row).wrapping_add(head);
                // SAFETY: `2n` elements of the head and of the table's row.
                unsafe {
                    match self.style {
                        RopeStyle::Halves => halves(s, x, cos, n),
                        RopeStyle::Interleaved => interleaved(x, cos, n),
                    }
                }
            }
        }
    }
}

/// Rotates `x[i]` with `x[n + i]`.
#[inline(always)]
unsafe fn halves<S: Simd>(s: S, x: *mut f32, table: *const f32, n: usize) {
    for i in (0..n).step_by(LANES) {
        let left = n - i;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (c, d) = (part(s, table.add(i), left), part(s, table.add(n + i), left));
            let (a, b) = (
                part(s, x.add(i).cast_const(), left),
                part(s, x.add(n + i).cast_const(), left),
            );
            let minus = s.mul(s.mul(b, d), s.splat(-1.0));
            store(s, s.fma(a, c, minus), x.add(i), left);
            store(s, s.fma(b, c, s.mul(a, d)), x.add(n + i), left);
        }
    }
}

/// Rotates `x[2i]` with `x[2i + 1]`, with the arithmetic of [`halves`].
#[inline(always)]
unsafe fn interleaved(x: *mut f32, table: *const f32, n: usize) {
    for i in 0..n {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (c, d) = (
                table.add(i).read_unaligned(),
                table.add(n + i).read_unaligned(),
            );
            let (a, b) = (
                x.add(2 * i).read_unaligned(),
                x.add(2 * i + 1).read_unaligned(),
            );
            x.add(2 * i).write_unaligned(a.mul_add(c, -(b * d)));
            x.add(2 * i + 1).write_unaligned(b.mul_add(c, a * d));
        }
    }
}
