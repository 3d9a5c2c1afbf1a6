//! Fused operations of the program as calls of the device.
//!
//! The fusing pass of `djinn_model` finds runs of operations with a fused form when the model is
//! laid out. A pass uses the fused form of a run unless a session needs a value inside it.

use std::collections::BTreeSet;

use djinn_device::{NormParams, Projection, Rotation, View, Weight};
use djinn_model::{
    FusedOp, FusedProjection, Fusion,
    program::{Buf, Op, SegmentKind},
};
use djinn_types::Order;
use djinn_weights::Region;

use super::{active_rows::ActiveRows, pass::Pass};
use crate::EngineError;

impl<'a> Pass<'a> {
    /// Notes the operations of this pass at which a session reads, edits or enters, and whether
    /// a session may pause. A fused operation must not cover any of these points.
    pub(super) fn note_observed(&mut self, looked_at: &BTreeSet<usize>) {
        let mut observed = looked_at.clone();
        let spans = || self.batch.groups.iter().chain(&self.batch.head);
        // A session that enters before operation `n` stopped at the hook `n - 1`.
        observed.extend(spans().filter_map(|span| span.enter.checked_sub(1)));
        let may_pause = spans().any(|span| self.members[span.member].may_pause(span.positions()));
        self.progress.observed = observed;
        self.progress.may_pause = may_pause;
    }

    /// Returns the fusion that starts at operation `at`, if its range ends at or before `end` and
    /// no session observes an operation in it.
    pub(super) fn fusion_at(
        &self,
        steps: &[(SegmentKind, &Op)],
        at: usize,
        end: usize,
    ) -> Option<&'a Fusion> {
        let fusion = self.blueprint.fusions.at(at)?;
        let range = fusion.range.clone();
        let is_observed = self.progress.observed.range(range.clone()).next().is_some();
        let is_hook = |(_, op): &(SegmentKind, &Op)| matches!(op, Op::Hook { .. });
        let may_pause = self.progress.may_pause && steps[range.clone()].iter().any(is_hook);
        (range.end <= end && !is_observed && !may_pause).then_some(fusion)
    }

    /// Runs a fused operation over the active rows.
    pub(super) fn fused_op(&mut self, rows: &ActiveRows, op: &FusedOp) -> Result<(), EngineError> {
        match *op {
            FusedOp::AddNorm {
                from,
                sum,
                kind,
                eps,
                weight,
                bias,
                to,
            } => {
                let one = |id| self.blueprint.tensors().one(id);
                let params = NormParams {
                    kind,
                    eps,
                    weight: one(weight),
                    bias: bias.map(one),
                };
                let [addend, sum, out] = [from, sum, to].map(|buf| self.view(rows, buf));
                Ok(self.device.add_norm(addend, sum, params, out)?)
            }
            FusedOp::Projections {
                from,
                ref projections,
            } => self.products(rows, from, projections),
            FusedOp::GatedProjections {
                from,
                gate,
                up,
                f,
                to,
            } => {
                let phases: Vec<_> = rows.phases().collect();
                if let [(phase, span)] = &phases[..] {
                    let [gate, up] = [gate, up].map(|p| self.whole_projection(rows, p));
                    let at = |view: View| view.rows(span.start, span.len());
                    let cut = |p: Projection| Projection {
                        out: at(p.out),
                        ..p
                    };
                    let (x, out) = (at(self.view(rows, from)), at(self.view(rows, to)));
                    let device = self.device;
                    return Ok(device.linear_gated(x, cut(gate), cut(up), f, out, *phase)?);
                }
                self.products(rows, from, &[gate, up])?;
                let [gate, up, out] = [gate.to, up.to, to].map(|buf| self.view(rows, buf));
                Ok(self.device.gate(f, gate, up, out)?)
            }
            FusedOp::RotateAttend {
                block,
                scale,
                window,
            } => {
                let rotation = self.rotation(rows);
                self.attend(rows, block, scale, window, Some(rotation))
            }
        }
    }

    /// Returns the rotary embedding of the active rows.
    pub(super) fn rotation(&self, rows: &ActiveRows) -> Rotation {
        let rope = self.program.rope.as_ref();
        Rotation {
            table: self.arena.rope.rows(0, rows.rows),
            d_head: self.program.dims.d_head,
            style: rope.expect("a program that rotates has a rope").style,
        }
    }

    /// Returns a product whose matrix is in memory in one part.
    fn whole_projection(&self, rows: &ActiveRows, p: FusedProjection) -> Projection {
        let one = |id| self.blueprint.tensors().one(id);
        Projection {
            weight: Weight {
                view: one(p.weight),
                order: p.order,
            },
            bias: p.bias.map(one),
            out: self.view(rows, p.to),
        }
    }

    /// Runs products of the same input. The parts of a matrix are separate products, since each
    /// gives separate outputs; parts that arrive together run together.
    pub(super) fn products(
        &mut self,
        rows: &ActiveRows,
        from: Buf,
        projections: &[FusedProjection],
    ) -> Result<(), EngineError> {
        let x = self.view(rows, from);
        let (mut group, mut arrived) = (Vec::new(), None);
        let tensors = self.blueprint.tensors();
        for p in projections {
            let (bias, out) = (p.bias.map(|id| tensors.one(id)), self.view(rows, p.to));
            for part in tensors.parts(p.weight) {
                if let Region::Ring(visit) = part.placement.region {
                    if arrived != Some(visit) {
                        self.run_group(rows, x, &mut group)?;
                    }
                    self.streamer.need(visit)?;
                    arrived = Some(visit);
                }
                let columns = |view: View| match p.order {
                    Order::InOut => view,
                    Order::OutIn => view.cols(part.rows.start, part.rows.len()),
                };
                group.push(Projection {
                    weight: Weight {
                        view: part.view(),
                        order: p.order,
                    },
                    bias: bias.map(columns),
                    out: columns(out),
                });
            }
        }
        self.run_group(rows, x, &mut group)
    }

    /// Runs and clears a group of products, once for each phase.
    fn run_group(
        &self,
        rows: &ActiveRows,
        x: View,
        group: &mut Vec<Projection>,
    ) -> Result<(), EngineError> {
        for (phase, span) in rows.phases().filter(|_| !group.is_empty()) {
            let at = |view: View| view.rows(span.start, span.len());
            let cut = |p: &Projection| Projection {
                out: at(p.out),
                ..*p
            };
            let cut: Vec<Projection> = group.iter().map(cut).collect();
            self.device.linear_group(at(x), &cut, phase)?;
        }
        group.clear();
        Ok(())
    }
}
