//! Operations of the program as calls of the device.

use djinn_device::{NormParams, View};
use djinn_model::{
    FusedProjection,
    program::{Op, TensorId},
};

use super::{active_rows::ActiveRows, experts, pass::Pass};
use crate::EngineError;

impl Pass<'_> {
    /// Runs an operation over the active rows.
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
                let projection = FusedProjection {
                    weight: w,
                    order,
                    bias,
                    to,
                };
                self.products(stage, from, &[projection])?;
            }
            Op::Split {
                from,
                first,
                stride,
                width,
                to,
            } => device.split(view(from), first, stride, width, view(to))?,
            Op::Rope { buf } => device.rope(view(buf), self.rotation(stage))?,
            Op::Attend {
                block,
                scale,
                window,
            } => self.attend(stage, block, scale, window, None)?,
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

    /// Looks up rows of a table in memory, or reads them from the slow tier.
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
