//! One operation of the program as calls of the device.

use djinn_device::{NormParams, Rotation, View, Weight};
use djinn_model::program::{Op, TensorId};
use djinn_types::Order;
use djinn_weights::Region;

use super::{active_rows::ActiveRows, experts, pass::Pass};
use crate::EngineError;

impl Pass<'_> {
    /// Runs an operation over the rows of a stage.
    pub(super) fn op(&mut self, stage: &ActiveRows, op: &Op) -> Result<(), EngineError> {
        let device = self.device;
        let weight = |id| self.blueprint.tensors().one(id);
        let view = |buf| self.view(stage, buf);
        match *op {
            Op::Embed { table, to } => {
                let to = view(to);
                let (ids, numbers) = (self.ids.tokens, &self.batch.tokens);
                self.look_up(table, ids, numbers, to, false)?;
            }
            Op::EmbedPositions { table, to } => {
                let to = view(to);
                let (ids, numbers) = (self.ids.positions, &self.batch.positions);
                self.look_up(table, ids, numbers, to, true)?;
            }
            Op::Norm {
                kind,
                eps,
                width,
                weight: w,
                bias,
                from,
                to,
            } => {
                let (from, to) = (view(from).reshaped(width), view(to).reshaped(width));
                let params = NormParams {
                    kind,
                    eps,
                    weight: weight(w),
                    bias: bias.map(weight),
                };
                device.norm(params, from, to)?;
            }
            Op::Linear {
                weight: w,
                order,
                bias,
                from,
                to,
            } => {
                let (from, bias, to) = (view(from), bias.map(weight), view(to));
                self.linear(stage, from, (w, order), bias, to)?;
            }
            Op::Split {
                from,
                first,
                stride,
                width,
                to,
            } => device.split(view(from), first, stride, width, view(to))?,
            Op::Rope { buf } => {
                let rope = self.program.rope.as_ref();
                let style = rope.expect("a program that rotates has a rope").style;
                let table = self.arena.rope.rows(0, stage.rows);
                let rotation = Rotation {
                    table,
                    d_head: self.program.dims.d_head,
                    style,
                };
                device.rope(view(buf), rotation)?;
            }
            Op::Attend {
                block,
                scale,
                window,
            } => self.attend(stage, block, scale, window)?,
            Op::Activate { f, from, to } => device.activate(f, view(from), view(to))?,
            Op::Gate { f, gate, up, to } => device.gate(f, view(gate), view(up), view(to))?,
            Op::Add { from, to } => device.add(view(from), view(to))?,
            Op::Experts { .. } => {
                let weights = self.blueprint.tensors();
                experts::run(device, self.arena, weights, self.streamer, op, stage)?;
            }
            Op::Hook { site, buf } => {
                self.change(stage, site, view(buf))?;
            }
        }
        Ok(())
    }

    /// A product, part by part of its matrix: each output is a product of its own.
    fn linear(
        &mut self,
        stage: &ActiveRows,
        x: View,
        (matrix, order): (TensorId, Order),
        bias: Option<View>,
        out: View,
    ) -> Result<(), EngineError> {
        for part in self.blueprint.tensors().parts(matrix) {
            if let Region::Ring(visit) = part.placement.region {
                self.streamer.need(visit)?;
            }
            let weight = Weight {
                view: part.view(),
                order,
            };
            let whole = order == Order::InOut;
            let cut = |view: View| match whole {
                true => view,
                false => view.cols(part.rows.start, part.rows.len()),
            };
            for (phase, rows) in stage.phases() {
                let at = |view: View| view.rows(rows.start, rows.len());
                self.device
                    .linear(at(x), weight, bias.map(cut), cut(at(out)), phase)?;
            }
        }
        Ok(())
    }

    /// Rows of a table, by number: from memory, or read from the slow tier.
    fn look_up(
        &mut self,
        table: TensorId,
        ids: View,
        numbers: &[i32],
        to: View,
        accumulate: bool,
    ) -> Result<(), EngineError> {
        let (ids, numbers) = (ids.rows(0, to.rows), &numbers[..to.rows]);
        if !self.blueprint.tensors().is_read_by_row(table) {
            let table = self.blueprint.tensors().one(table);
            return Ok(self.device.gather(table, ids, to, accumulate)?);
        }
        let spec = self.program.tensor(table);
        let rows = View::new(
            self.arena.table_rows.offset,
            spec.dtype,
            to.rows,
            spec.matrix().1,
        );
        self.streamer.rows(table, numbers, rows)?;
        let in_order = self.arena.row_numbers.rows(0, to.rows);
        Ok(self.device.gather(rows, in_order, to, accumulate)?)
    }
}
