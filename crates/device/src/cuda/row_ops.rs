//! Operations that are one kernel each.

use djinn_types::{Activation, NormKind, RopeStyle};

use super::CudaDevice;
use super::args::{MatArg, activation_arg};
use super::kernels::ROWS_MAX;
use super::launch::{THREADS, by_row, columns, elements, launch};
use super::shadow::LaunchState;
use crate::check::OpCheck;
use crate::{
    ChoiceOps, Edit, ElementwiseOps, LookupOps, NormParams, ProbeOps, Reduction, Result, RopeOps,
    Rotation, View,
};

/// Threads of a block of the norm, as in the CUDA sources.
const NORM_THREADS: usize = 512;
/// Threads of a block that chooses elements of a row, as in the CUDA sources.
const SAMPLE_THREADS: usize = 1024;

impl LookupOps for CudaDevice {
    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()> {
        let op = self.op("gather");
        op.gather(table, ids, out)?;
        let state = &mut *self.state();
        let (table, dtype) = self.floats(op, "table", table)?;
        let (ids, to) = (self.i32(op, "ids", ids)?, self.out(state, op, "out", out)?);
        let accumulate = i32::from(accumulate);
        launch!(self, state, "gather", elements(out); table, dtype, ids, to, accumulate,
                self.fault.start)
    }

    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        let op = self.op("scatter_add");
        op.scatter_add(src, ids, weights, out)?;
        let state = &mut *self.state();
        let size = columns(src.cols, 1);
        let (src, ids) = (self.f32(op, "src", src)?, self.i32(op, "ids", ids)?);
        let weights = self.f32(op, "weights", weights)?;
        let out = self.out(state, op, "out", out)?;
        launch!(self, state, "scatter_add", size; src, ids, weights, out, self.fault.start)
    }

    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()> {
        let op = self.op("split");
        op.split(x, first, stride, width, out)?;
        let state = &mut *self.state();
        let (x, to) = (self.f32(op, "x", x)?, self.out(state, op, "out", out)?);
        launch!(self, state, "split", elements(out); x, first as i32, stride as i32, width as i32,
                to)
    }
}

impl ElementwiseOps for CudaDevice {
    fn norm(&self, params: NormParams, x: View, out: View) -> Result<()> {
        let op = self.op("norm");
        op.norm(x, params.weight, params.bias, out)?;
        self.normalise(&mut self.state(), op, params, MatArg::NONE, x, out)
    }

    fn activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        let op = self.op("activate");
        op.activate(x, out)?;
        let state = &mut *self.state();
        let (x, to) = (self.f32(op, "x", x)?, self.out(state, op, "out", out)?);
        let shadow = self.shadow_for(state, out);
        launch!(self, state, "activate", elements(out); activation_arg(f), x, to, shadow)
    }

    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        let op = self.op("gate");
        op.gate(gate, up, out)?;
        let state = &mut *self.state();
        let (gate, up) = (self.f32(op, "gate", gate)?, self.f32(op, "up", up)?);
        let to = self.out(state, op, "out", out)?;
        let shadow = self.shadow_for(state, out);
        // Each thread computes four elements.
        let size = columns(out.cols.div_ceil(4), out.rows);
        launch!(self, state, "gate", size; activation_arg(f), gate, up, to, shadow)
    }

    fn add(&self, x: View, out: View) -> Result<()> {
        let op = self.op("add");
        op.add(x, out)?;
        let state = &mut *self.state();
        let size = elements(x);
        let (x, to) = (self.f32(op, "x", x)?, self.out(state, op, "out", out)?);
        launch!(self, state, "add", size; x, to)
    }
}

impl CudaDevice {
    /// Launches a norm of checked operands. The kernel first adds `added` to `x`, if `added` is
    /// present.
    pub(super) fn normalise(
        &self,
        state: &mut LaunchState,
        op: OpCheck,
        params: NormParams,
        added: MatArg,
        x: View,
        out: View,
    ) -> Result<()> {
        let (bias, bias_dtype, has_bias) = self.bias(op, params.bias)?;
        let (weight, weight_dtype) = self.floats(op, "weight", params.weight)?;
        let layer = i32::from(params.kind == NormKind::Layer);
        let (from, to) = (self.f32(op, "x", x)?, self.out(state, op, "out", out)?);
        let shadow = self.shadow_for(state, out);
        // Heads that are normalised one by one may be more rows than one launch takes.
        for first in (0..x.rows).step_by(ROWS_MAX) {
            let count = ROWS_MAX.min(x.rows - first);
            let at = |mat: MatArg| mat.rows(first, count);
            let size = by_row(x.rows(first, count), NORM_THREADS);
            launch!(self, state, "normalise", size; layer, params.eps, at(from), at(added), weight,
                    weight_dtype, bias, bias_dtype, has_bias, at(to), shadow.from(first))?;
        }
        Ok(())
    }
}

impl RopeOps for CudaDevice {
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()> {
        let op = self.op("rope_table");
        op.rope_table(positions, frequencies, out)?;
        let state = &mut *self.state();
        let size = columns(frequencies.cols, out.rows);
        let (frequencies, dtype) = self.floats(op, "frequencies", frequencies)?;
        let positions = self.i32(op, "positions", positions)?;
        let out = self.out(state, op, "out", out)?;
        launch!(self, state, "rope_table", size; positions, frequencies, dtype, scale, out)
    }

    fn rope(&self, x: View, rotation: Rotation) -> Result<()> {
        let op = self.op("rope");
        op.rope(x, rotation.table, rotation.d_head)?;
        let state = &mut *self.state();
        let pairs = x.cols / rotation.d_head * (rotation.table.cols / 2);
        let size = columns(pairs, x.rows);
        let table = self.f32(op, "table", rotation.table)?;
        let x = self.out(state, op, "x", x)?;
        launch!(self, state, "rope", size; x, table, rotation.d_head as i32, interleaved(rotation))
    }
}

/// Number that encodes the pairing of rotated elements for a kernel.
pub(super) fn interleaved(rotation: Rotation) -> i32 {
    i32::from(rotation.style == RopeStyle::Interleaved)
}

impl ChoiceOps for CudaDevice {
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()> {
        let op = self.op("route");
        op.route(logits, ids, weights)?;
        let state = &mut *self.state();
        let size = columns(logits.rows, 1);
        let (logits, ids) = (self.f32(op, "logits", logits)?, self.out_ids(op, ids)?);
        let weights = self.out(state, op, "weights", weights)?;
        launch!(self, state, "route", size; logits, i32::from(renormalise), ids, weights)
    }

    fn sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        let op = self.op("sample");
        op.sample(x, draws, ids)?;
        let state = &mut *self.state();
        let size = by_row(x, SAMPLE_THREADS);
        let (x, draws) = (self.f32(op, "x", x)?, self.i32(op, "draws", draws)?);
        let ids = self.out_ids(op, ids)?;
        launch!(self, state, "sample", size; x, draws, ids)
    }
}

impl ProbeOps for CudaDevice {
    fn edit(&self, x: View, edit: Edit) -> Result<()> {
        let op = self.op("edit");
        let operand = op.operand(x, edit)?;
        let state = &mut *self.state();
        let operand = operand
            .map(|view| self.f32(op, "operand", view))
            .transpose()?;
        let operand = operand.unwrap_or(MatArg::NONE);
        let (each, row) = (elements(x), by_row(x, THREADS));
        let x = self.out(state, op, "x", x)?;
        match edit {
            Edit::Scale(factor) => launch!(self, state, "edit_scale", each; x, factor),
            Edit::Zero => launch!(self, state, "edit_zero", each; x),
            Edit::Add { factor, .. } => launch!(self, state, "edit_add", each; x, operand, factor),
            Edit::Replace(_) => launch!(self, state, "edit_replace", each; x, operand),
            Edit::ProjectOut(_) => launch!(self, state, "edit_project_out", row; x, operand),
            Edit::AddMatched { factor, .. } => {
                launch!(self, state, "edit_add_matched", row; x, operand, factor)
            }
            Edit::Clamp { low, high } => launch!(self, state, "edit_clamp", each; x, low, high),
        }
    }

    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        let op = self.op("reduce");
        op.reduce(x, how, out)?;
        let state = &mut *self.state();
        let (sum, row) = (columns(x.cols, 1), by_row(x, THREADS));
        let largest = by_row(x, SAMPLE_THREADS);
        let (x, out) = (self.f32(op, "x", x)?, self.out(state, op, "out", out)?);
        match how {
            Reduction::Norm => launch!(self, state, "reduce_norm", row; x, out),
            Reduction::Sum => launch!(self, state, "reduce_sum", sum; x, out),
            Reduction::Largest => launch!(self, state, "reduce_largest", largest; x, 0i32, out),
            Reduction::Likeliest => launch!(self, state, "reduce_largest", largest; x, 1i32, out),
        }
    }
}
