//! Operations that are a kernel each, or go with their neighbours.

use super::CudaDevice;
use super::args::{MatArg, ShadowArg, activation_arg, dtype_arg};
use super::kernels::ROWS_MAX;
use super::work::{Pending, Sum, THREADS, Turn, Work, by_row, columns, elements, launch};
use crate::check::{Op, overlap};
use crate::{Edit, Reduction, Result, View};
use djinn_types::{Activation, DType, NormKind, RopeStyle};

/// Threads of a block that takes a norm, as the sources have it.
const NORM_THREADS: usize = 512;
/// Threads of a block that chooses one of a row, or some.
const SAMPLE_THREADS: usize = 1024;

impl CudaDevice {
    /// A float input and its dtype's number.
    pub(super) fn floats(&self, op: Op, what: &str, view: View) -> Result<(MatArg, i32)> {
        let mat = MatArg::new(op.name, op.floats(what, view)?, view.dtype)?;
        Ok((mat, dtype_arg(view.dtype)))
    }

    pub(super) fn f32(&self, op: Op, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.f32(what, view)?, DType::F32)
    }

    pub(super) fn i32(&self, op: Op, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.i32(what, view)?, DType::I32)
    }

    pub(super) fn out(&self, work: &mut Work, op: Op, what: &str, view: View) -> Result<MatArg> {
        let mat = MatArg::new(op.name, op.out(what, view)?, DType::F32)?;
        work.wrote(view);
        Ok(mat)
    }

    fn out_ids(&self, op: Op, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.out_ids("ids", view)?, DType::I32)
    }

    /// A bias that may be left out: where it is, its dtype, whether it is there.
    pub(super) fn bias(&self, op: Op, bias: Option<View>) -> Result<(MatArg, i32, i32)> {
        let Some(bias) = bias else {
            return Ok((MatArg::NONE, 0, 0));
        };
        let (mat, dtype) = self.floats(op, "bias", bias)?;
        Ok((mat, dtype, 1))
    }

    pub(super) fn do_gather(
        &self,
        table: View,
        ids: View,
        out: View,
        accumulate: bool,
    ) -> Result<()> {
        let op = self.op("gather");
        op.gather(table, ids, out)?;
        let work = &mut *self.ready()?;
        let (table, dtype) = self.floats(op, "table", table)?;
        let (ids, to) = (self.i32(op, "ids", ids)?, self.out(work, op, "out", out)?);
        let accumulate = i32::from(accumulate);
        launch!(self, work, "gather", elements(out); table, dtype, ids, to, accumulate,
                self.fault.start)
    }

    pub(super) fn do_scatter_add(
        &self,
        src: View,
        ids: View,
        weights: View,
        out: View,
    ) -> Result<()> {
        let op = self.op("scatter_add");
        op.scatter_add(src, ids, weights, out)?;
        let work = &mut *self.ready()?;
        let size = columns(src.cols, 1);
        let (src, ids) = (self.f32(op, "src", src)?, self.i32(op, "ids", ids)?);
        let weights = self.f32(op, "weights", weights)?;
        let out = self.out(work, op, "out", out)?;
        launch!(self, work, "scatter_add", size; src, ids, weights, out, self.fault.start)
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
        op.norm(x, weight, bias, out)?;
        let work = &mut *self.lock();
        let added = self.sum_before(work, x, out)?;
        let (bias, bias_dtype, has_bias) = self.bias(op, bias)?;
        let (weight, weight_dtype) = self.floats(op, "weight", weight)?;
        let layer = i32::from(kind == NormKind::Layer);
        let (from, to) = (self.f32(op, "x", x)?, self.out(work, op, "out", out)?);
        let shadow = self.shadow_for(work, out);
        // Heads that are normalised one by one can be more rows than a launch takes.
        for first in (0..x.rows).step_by(ROWS_MAX) {
            let count = ROWS_MAX.min(x.rows - first);
            let at = |mat: MatArg| mat.rows(first, count);
            let size = by_row(x.rows(first, count), NORM_THREADS);
            launch!(self, work, "normalise", size; layer, eps, at(from), at(added), weight,
                    weight_dtype, bias, bias_dtype, has_bias, at(to), shadow.from(first))?;
        }
        Ok(())
    }

    /// What is still to be added to the input of a norm, if that can be done on the way;
    /// anything else that is held back goes first.
    fn sum_before(&self, work: &mut Work, x: View, out: View) -> Result<MatArg> {
        match work.pending {
            // Rows go one by one: an output in the place of what is added must be that row.
            Pending::Sum(sum) if sum.out.0 == x && (sum.x.0 == out || !overlap(sum.x.0, out)) => {
                work.pending = Pending::Nothing;
                Ok(sum.x.1)
            }
            _ => {
                self.put_pending(work)?;
                Ok(MatArg::NONE)
            }
        }
    }

    pub(super) fn do_rope_table(
        &self,
        positions: View,
        frequencies: View,
        scale: f32,
        out: View,
    ) -> Result<()> {
        let op = self.op("rope_table");
        op.rope_table(positions, frequencies, out)?;
        let work = &mut *self.ready()?;
        let size = columns(frequencies.cols, out.rows);
        let (frequencies, dtype) = self.floats(op, "frequencies", frequencies)?;
        let positions = self.i32(op, "positions", positions)?;
        let out = self.out(work, op, "out", out)?;
        launch!(self, work, "rope_table", size; positions, frequencies, dtype, scale, out)
    }

    pub(super) fn do_rope(
        &self,
        x: View,
        table: View,
        d_head: usize,
        style: RopeStyle,
    ) -> Result<()> {
        let op = self.op("rope");
        op.rope(x, table, d_head)?;
        let work = &mut *self.lock();
        if !matches!(&work.pending, Pending::Turns(turns) if turns.len() < 2) {
            self.put_pending(work)?;
        }
        let turn = Turn {
            table: (table, self.f32(op, "table", table)?),
            x: (x, self.out(work, op, "x", x)?),
            d_head,
            interleaved: i32::from(style == RopeStyle::Interleaved),
        };
        match &mut work.pending {
            Pending::Turns(turns) => turns.push(turn),
            pending => *pending = Pending::Turns(vec![turn]),
        }
        Ok(())
    }

    pub(super) fn do_activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        let op = self.op("activate");
        op.activate(x, out)?;
        let work = &mut *self.ready()?;
        let (x, to) = (self.f32(op, "x", x)?, self.out(work, op, "out", out)?);
        let shadow = self.shadow_for(work, out);
        launch!(self, work, "activate", elements(out); activation_arg(f), x, to, shadow)
    }

    pub(super) fn do_gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        let op = self.op("gate");
        op.gate(gate, up, out)?;
        let work = &mut *self.lock();
        let (gate, up) = (self.f32(op, "gate", gate)?, self.f32(op, "up", up)?);
        if self.gated(work, f, gate, up, out)? {
            return Ok(());
        }
        self.put_pending(work)?;
        let to = self.out(work, op, "out", out)?;
        let shadow = self.shadow_for(work, out);
        // Four elements a thread.
        let size = columns(out.cols.div_ceil(4), out.rows);
        launch!(self, work, "gate", size; activation_arg(f), gate, up, to, shadow)
    }

    pub(super) fn do_add(&self, x: View, out: View) -> Result<()> {
        let op = self.op("add");
        op.add(x, out)?;
        let work = &mut *self.ready()?;
        work.pending = Pending::Sum(Sum {
            x: (x, self.f32(op, "x", x)?),
            out: (out, self.out(work, op, "out", out)?),
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
        op.split(x, first, stride, width, out)?;
        let work = &mut *self.ready()?;
        let (x, to) = (self.f32(op, "x", x)?, self.out(work, op, "out", out)?);
        launch!(self, work, "split", elements(out); x, first as i32, stride as i32, width as i32, to)
    }

    pub(super) fn do_route(
        &self,
        logits: View,
        renormalise: bool,
        ids: View,
        weights: View,
    ) -> Result<()> {
        let op = self.op("route");
        op.route(logits, ids, weights)?;
        let work = &mut *self.ready()?;
        let size = columns(logits.rows, 1);
        let (logits, ids) = (self.f32(op, "logits", logits)?, self.out_ids(op, ids)?);
        let weights = self.out(work, op, "weights", weights)?;
        launch!(self, work, "route", size; logits, i32::from(renormalise), ids, weights)
    }

    pub(super) fn do_sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        let op = self.op("sample");
        op.sample(x, draws, ids)?;
        let work = &mut *self.ready()?;
        let size = by_row(x, SAMPLE_THREADS);
        let (x, draws) = (self.f32(op, "x", x)?, self.i32(op, "draws", draws)?);
        let ids = self.out_ids(op, ids)?;
        launch!(self, work, "sample", size; x, draws, ids)
    }

    pub(super) fn do_edit(&self, x: View, edit: Edit) -> Result<()> {
        let op = self.op("edit");
        let operand = op.operand(x, edit)?;
        let work = &mut *self.ready()?;
        let operand = operand
            .map(|view| self.f32(op, "operand", view))
            .transpose()?;
        let operand = operand.unwrap_or(MatArg::NONE);
        let (each, row) = (elements(x), by_row(x, THREADS));
        let x = self.out(work, op, "x", x)?;
        match edit {
            Edit::Scale(factor) => launch!(self, work, "edit_scale", each; x, factor),
            Edit::Zero => launch!(self, work, "edit_zero", each; x),
            Edit::Add { factor, .. } => launch!(self, work, "edit_add", each; x, operand, factor),
            Edit::Replace(_) => launch!(self, work, "edit_replace", each; x, operand),
            Edit::ProjectOut(_) => launch!(self, work, "edit_project_out", row; x, operand),
            Edit::AddMatched { factor, .. } => {
                launch!(self, work, "edit_add_matched", row; x, operand, factor)
            }
            Edit::Clamp { low, high } => launch!(self, work, "edit_clamp", each; x, low, high),
        }
    }

    pub(super) fn do_reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        let op = self.op("reduce");
        op.reduce(x, how, out)?;
        let work = &mut *self.ready()?;
        let (sum, row) = (columns(x.cols, 1), by_row(x, THREADS));
        let largest = by_row(x, SAMPLE_THREADS);
        let (x, out) = (self.f32(op, "x", x)?, self.out(work, op, "out", out)?);
        match how {
            Reduction::Norm => launch!(self, work, "reduce_norm", row; x, out),
            Reduction::Sum => launch!(self, work, "reduce_sum", sum; x, out),
            Reduction::Largest => launch!(self, work, "reduce_largest", largest; x, 0i32, out),
            Reduction::Likeliest => launch!(self, work, "reduce_largest", largest; x, 1i32, out),
        }
    }

    /// Where attention puts a copy of its output.
    pub(super) fn out_with_shadow(
        &self,
        work: &mut Work,
        op: Op,
        out: View,
    ) -> Result<(MatArg, ShadowArg)> {
        let to = self.out(work, op, "out", out)?;
        Ok((to, self.shadow_for(work, out)))
    }
}
