//! What an engine has room for beside the pass itself: what sessions read and change there.

use djinn_model::program::{Dims, Program};

use super::{Probe, capture::Reduce};
use crate::{
    error::{EngineError, LimitKind},
    session::request::Request,
};

/// Room for what sessions read and change probe_limits a pass; nothing unless it is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeLimits {
    /// Keys of the longest attention pattern read.
    pub pattern_keys: usize,
    /// Width of the widest edit operand.
    pub operand_width: usize,
    /// Width of the widest part of a hook that is read, or of which there is a mean.
    pub packed_width: usize,
    /// Numbers that a row is reduced to.
    pub reduced_width: usize,
    /// Rows that go through the head beside those that come there by themselves.
    pub lens_rows: usize,
}

impl ProbeLimits {
    /// Rows through the lens in a pass, unless a token alone has more.
    const LENS_ROWS: usize = 512;

    /// Room for whatever a session may ask of a model, over so many positions.
    pub fn anything(program: &Program, context: usize) -> Self {
        let widest = widest(&program.dims);
        ProbeLimits {
            pattern_keys: context,
            operand_width: widest,
            packed_width: widest.max(program.dims.vocab),
            reduced_width: Reduce::Lens(Reduce::MOST).width(),
            lens_rows: Self::LENS_ROWS.max(5 * program.dims.blocks),
        }
    }

    /// What these requests need, over so many positions each.
    pub(crate) fn of(requests: &[Request], context: usize) -> Self {
        let mut all = ProbeLimits::default();
        let mut lens_rows = 0;
        for Request { probe, tokens, .. } in requests {
            let one = ProbeLimits::least(probe, context);
            all = ProbeLimits {
                pattern_keys: all.pattern_keys.max(one.pattern_keys),
                operand_width: all.operand_width.max(one.operand_width),
                packed_width: all.packed_width.max(one.packed_width),
                reduced_width: all.reduced_width.max(one.reduced_width),
                lens_rows: all.lens_rows.max(one.lens_rows),
            };
            lens_rows += probe.lens_rows(0..context, tokens.len());
        }
        all.lens_rows = all.lens_rows.max(lens_rows.min(Self::LENS_ROWS));
        all
    }

    /// What a session needs at least.
    fn least(probe: &Probe, positions: usize) -> Self {
        ProbeLimits {
            pattern_keys: match probe.touches_pattern() {
                true => positions,
                false => 0,
            },
            operand_width: probe.operand_width(),
            packed_width: probe.packed_width(),
            reduced_width: probe.reduced_width(),
            lens_rows: probe.lenses().count(),
        }
    }

    /// Refuses a session of so many positions that there is no room for.
    pub(crate) fn check(&self, probe: &Probe, positions: usize) -> Result<(), EngineError> {
        let least = ProbeLimits::least(probe, positions);
        LimitKind::PatternKeys.check(least.pattern_keys, self.pattern_keys)?;
        LimitKind::OperandWidth.check(least.operand_width, self.operand_width)?;
        LimitKind::CaptureWidth.check(least.packed_width, self.packed_width)?;
        LimitKind::ReducedWidth.check(least.reduced_width, self.reduced_width)?;
        LimitKind::LensRows.check(least.lens_rows, self.lens_rows)
    }
}

/// The widest hook there is, but for logits.
fn widest(dims: &Dims) -> usize {
    dims.d_model.max(dims.d_mlp).max(dims.heads * dims.d_head)
}
