//! Fusing pass: finds runs of operations that a device can do in one call.
//!
//! The pass runs once, when a model is laid out in memory, and does not change the program: a
//! [`Fusion`] covers a range of its operations. The interpreter uses the fused form of a range if
//! no session needs a value inside it, and the plain operations otherwise. Hooks, checkpoints and
//! operation indexes therefore mean the same with and without fusing. Both forms give the same
//! bits.

use std::collections::BTreeSet;
use std::ops::Range;

use djinn_types::{Activation, NormKind, Order};

use super::Program;
use super::op::{Buf, Op};
use super::tensor::{SegmentKind, TensorId};

/// Placement of a weight matrix during a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightResidency {
    /// Matrix in device memory for the whole pass, in one part.
    Whole,
    /// Matrix in device memory for the whole pass, in several parts.
    Split,
    /// Matrix that is copied to the device during the pass, at least in part.
    Streamed,
}

/// One matrix product of a fused operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedProjection {
    /// Weight matrix.
    pub weight: TensorId,
    /// Storage order of the matrix.
    pub order: Order,
    /// Bias vector, added to every row.
    pub bias: Option<TensorId>,
    /// Output buffer.
    pub to: Buf,
}

/// Fused form of a run of operations. All buffers of a fused operation are distinct.
#[derive(Clone, Debug, PartialEq)]
pub enum FusedOp {
    /// Sum and norm: `sum += from`, then `to = norm(sum)` over whole rows.
    AddNorm {
        /// Buffer to add.
        from: Buf,
        /// Buffer that holds the sum.
        sum: Buf,
        /// Kind of normalisation.
        kind: NormKind,
        /// Constant added to the variance under the root.
        eps: f32,
        /// Scale vector.
        weight: TensorId,
        /// Bias vector.
        bias: Option<TensorId>,
        /// Output buffer of the norm.
        to: Buf,
    },
    /// Several products of the same input, such as queries, keys and values.
    Projections {
        /// Input buffer.
        from: Buf,
        /// Products, in order.
        projections: Vec<FusedProjection>,
    },
    /// Hidden layer of a gated MLP: `to = f(from · gateᵀ) · (from · upᵀ)`. The buffers of the
    /// two products hold no defined value afterwards.
    GatedProjections {
        /// Input buffer.
        from: Buf,
        /// Product that goes through the activation.
        gate: FusedProjection,
        /// Product that multiplies the activated gate.
        up: FusedProjection,
        /// Activation function.
        f: Activation,
        /// Output buffer.
        to: Buf,
    },
    /// Rotary embedding of `Q` and `K` followed by attention, as in [`Op::Attend`].
    RotateAttend {
        /// Number of the block that owns the KV cache.
        block: usize,
        /// Factor on the scores.
        scale: f32,
        /// Sliding window: largest number of keys a row sees, its own included.
        window: Option<usize>,
    },
}

/// Run of operations with a fused form.
#[derive(Clone, Debug, PartialEq)]
pub struct Fusion {
    /// Indexes into [`Program::steps`]. The first and the last operation are not hooks.
    pub range: Range<usize>,
    /// Fused form of the range.
    pub op: FusedOp,
}

/// All fusions of a program: disjoint, in order of their ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fusions(Vec<Fusion>);

impl Fusions {
    /// Returns the fusion with a range that starts at operation `index`.
    pub fn at(&self, index: usize) -> Option<&Fusion> {
        let found = self
            .0
            .binary_search_by_key(&index, |fusion| fusion.range.start);
        found.ok().map(|position| &self.0[position])
    }

    /// Returns all fusions in order.
    pub fn iter(&self) -> impl Iterator<Item = &Fusion> {
        self.0.iter()
    }
}

/// Finds the runs of operations of `program` that have a fused form.
///
/// `residency` returns where a weight matrix is during a pass. A product with streamed weights
/// waits for them, so it joins no other operation.
pub fn fuse(program: &Program, residency: impl Fn(TensorId) -> WeightResidency) -> Fusions {
    let peephole = Peephole {
        program,
        steps: program.steps().collect(),
        live: live_after(program),
        residency,
    };
    let mut fusions = Vec::new();
    let mut at = 0;
    while at < peephole.steps.len() {
        match peephole.fusion(at) {
            Some(fusion) => {
                at = fusion.range.end;
                fusions.push(fusion);
            }
            None => at += 1,
        }
    }
    Fusions(fusions)
}

/// Returns, for every operation, the buffers that later operations and hooks still read.
fn live_after(program: &Program) -> Vec<BTreeSet<Buf>> {
    let ops: Vec<&Op> = program.ops().collect();
    let mut live = BTreeSet::from([Buf::Logits]);
    let mut after = Vec::with_capacity(ops.len());
    for op in ops.iter().rev() {
        after.push(live.clone());
        let (reads, overwritten) = op.buffers();
        if let Some(buf) = overwritten {
            live.remove(&buf);
        }
        live.extend(reads);
        if let Op::Hook { buf, .. } = **op {
            live.insert(buf);
        }
    }
    after.reverse();
    after
}

/// Matcher of one program's operations against the patterns of fused operations.
struct Peephole<'a, R> {
    program: &'a Program,
    steps: Vec<(SegmentKind, &'a Op)>,
    live: Vec<BTreeSet<Buf>>,
    residency: R,
}

/// Product that can join others, and its index among the operations.
#[derive(Clone, Copy)]
struct JoinableProduct {
    index: usize,
    from: Buf,
    projection: FusedProjection,
}

impl<R: Fn(TensorId) -> WeightResidency> Peephole<'_, R> {
    /// Returns the fusion that starts at operation `at`, if the operations there match.
    fn fusion(&self, at: usize) -> Option<Fusion> {
        match *self.steps[at].1 {
            Op::Add { .. } => self.add_norm(at),
            Op::Rope { .. } => self.rotate_attend(at),
            Op::Linear { .. } => self.gated_projections(at).or_else(|| self.projections(at)),
            _ => None,
        }
    }

    /// Returns the operation that follows `at`, without hooks. The head runs over other rows than
    /// the blocks, so no operation follows the last one of the blocks.
    fn next(&self, at: usize) -> Option<(usize, &Op)> {
        let in_head = |index: usize| self.steps[index].0 == SegmentKind::Head;
        let is_hook = |index: &usize| matches!(self.steps[*index].1, Op::Hook { .. });
        let next = (at + 1..self.steps.len()).find(|index| !is_hook(index))?;
        (in_head(next) == in_head(at)).then(|| (next, self.steps[next].1))
    }

    fn add_norm(&self, at: usize) -> Option<Fusion> {
        let Op::Add { from, to: sum } = *self.steps[at].1 else {
            return None;
        };
        let (last, next) = self.next(at)?;
        let Op::Norm {
            kind,
            eps,
            width,
            weight,
            bias,
            from: normed,
            to,
        } = *next
        else {
            return None;
        };
        let whole_rows = width == self.program.width(sum);
        let fits = normed == sum && whole_rows && are_distinct(&[from, sum, to]);
        fits.then_some(Fusion {
            range: at..last + 1,
            op: FusedOp::AddNorm {
                from,
                sum,
                kind,
                eps,
                weight,
                bias,
                to,
            },
        })
    }

    fn rotate_attend(&self, at: usize) -> Option<Fusion> {
        let Op::Rope { buf: first } = *self.steps[at].1 else {
            return None;
        };
        let (second_at, &Op::Rope { buf: second }) = self.next(at)? else {
            return None;
        };
        let (last, next) = self.next(second_at)?;
        let Op::Attend {
            block,
            scale,
            window,
        } = *next
        else {
            return None;
        };
        let both = BTreeSet::from([first, second]) == BTreeSet::from([Buf::Q, Buf::K]);
        both.then_some(Fusion {
            range: at..last + 1,
            op: FusedOp::RotateAttend {
                block,
                scale,
                window,
            },
        })
    }

    /// Returns the product at `index` if its weights are in memory for the whole pass.
    fn candidate(&self, index: usize) -> Option<JoinableProduct> {
        let Op::Linear {
            weight,
            order,
            bias,
            from,
            to,
        } = *self.steps[index].1
        else {
            return None;
        };
        let resident = (self.residency)(weight) != WeightResidency::Streamed;
        resident.then_some(JoinableProduct {
            index,
            from,
            projection: FusedProjection {
                weight,
                order,
                bias,
                to,
            },
        })
    }

    fn projections(&self, at: usize) -> Option<Fusion> {
        let first = self.candidate(at)?;
        let mut bufs = vec![first.from, first.projection.to];
        let mut projections = vec![first.projection];
        let mut last = at;
        while let Some(next) = self.next(last).and_then(|(next, _)| self.candidate(next)) {
            bufs.push(next.projection.to);
            if next.from != first.from || !are_distinct(&bufs) {
                break;
            }
            projections.push(next.projection);
            last = next.index;
        }
        (projections.len() > 1).then_some(Fusion {
            range: at..last + 1,
            op: FusedOp::Projections {
                from: first.from,
                projections,
            },
        })
    }

    fn gated_projections(&self, at: usize) -> Option<Fusion> {
        let first = self.candidate(at)?;
        let second = self.candidate(self.next(at)?.0)?;
        let (last, next) = self.next(second.index)?;
        let Op::Gate { f, gate, up, to } = *next else {
            return None;
        };
        let named = |buf: Buf| [first, second].into_iter().find(|c| c.projection.to == buf);
        let (gate, up) = (named(gate)?, named(up)?);
        let whole =
            |c: JoinableProduct| (self.residency)(c.projection.weight) == WeightResidency::Whole;
        // The fused operation does not write the buffers of its two products.
        let unread = |c: JoinableProduct| !self.live[last].contains(&c.projection.to);
        let fits = gate.from == up.from
            && are_distinct(&[gate.from, gate.projection.to, up.projection.to, to])
            && [gate, up].into_iter().all(|c| whole(c) && unread(c));
        fits.then_some(Fusion {
            range: at..last + 1,
            op: FusedOp::GatedProjections {
                from: gate.from,
                gate: gate.projection,
                up: up.projection,
                f,
                to,
            },
        })
    }
}

fn are_distinct(bufs: &[Buf]) -> bool {
    BTreeSet::from_iter(bufs).len() == bufs.len()
}

#[cfg(test)]
mod tests;
