//! Limits of probes: the memory that an engine reserves for captures and edits.

use djinn_model::program::{Dims, Program};

use super::{Probe, capture::Reduce};
use crate::{
    error::{EngineError, LimitKind},
    session::request::Request,
};

/// Memory for captures and edits; the default reserves none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeLimits {
    /// Maximum number of keys of an attention pattern.
    pub pattern_keys: usize,
    /// Number of rows whose attention patterns are computed together; at least 1 is used.
    pub pattern_rows: usize,
    /// Maximum width of the operand of an edit.
    pub operand_width: usize,
    /// Maximum width of a captured part of a hook, or of a mean.
    pub packed_width: usize,
    /// Maximum number of values that a row is reduced to.
    pub reduced_width: usize,
    /// Number of rows whose captured parts are reduced together; at least 1 is used.
    pub packed_rows: usize,
    /// Maximum number of logit-lens rows in a pass.
    pub lens_rows: usize,
}

impl ProbeLimits {
    /// Default number of logit-lens rows in a pass; models with many blocks get more.
    const LENS_ROWS: usize = 512;
    /// Number of rows whose attention patterns are computed together where memory is plentiful.
    const PATTERN_ROWS: usize = 16;
    /// Number of rows whose captured parts are reduced together where memory is plentiful.
    const PACKED_ROWS: usize = 64;

    /// Reserves memory for every probe of a model, over `context` positions.
    pub fn anything(program: &Program, context: usize) -> Self {
        let widest = widest(&program.dims);
        ProbeLimits {
            pattern_keys: context,
            pattern_rows: Self::PATTERN_ROWS,
            operand_width: widest,
            packed_width: widest.max(program.dims.vocab),
            reduced_width: Reduce::Lens(Reduce::MOST).width(),
            packed_rows: Self::PACKED_ROWS,
            lens_rows: Self::LENS_ROWS.max(5 * program.dims.blocks),
        }
    }

    /// Reserves memory for these requests, over `context` positions each.
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
                pattern_rows: all.pattern_rows.max(one.pattern_rows),
                packed_rows: all.packed_rows.max(one.packed_rows),
                lens_rows: all.lens_rows.max(one.lens_rows),
            };
            lens_rows += probe.lens_rows(0..context, tokens.len());
        }
        all.lens_rows = all.lens_rows.max(lens_rows.min(Self::LENS_ROWS));
        all
    }

    /// Returns the memory that a probe needs at least.
    fn least(probe: &Probe, positions: usize) -> Self {
        ProbeLimits {
            pattern_rows: Self::PATTERN_ROWS,
            packed_rows: Self::PACKED_ROWS,
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

    /// Refuses a probe that needs more memory than is reserved.
    pub(crate) fn check(&self, probe: &Probe, positions: usize) -> Result<(), EngineError> {
        let least = ProbeLimits::least(probe, positions);
        LimitKind::PatternKeys.check(least.pattern_keys, self.pattern_keys)?;
        LimitKind::OperandWidth.check(least.operand_width, self.operand_width)?;
        LimitKind::CaptureWidth.check(least.packed_width, self.packed_width)?;
        LimitKind::ReducedWidth.check(least.reduced_width, self.reduced_width)?;
        LimitKind::LensRows.check(least.lens_rows, self.lens_rows)
    }
}

/// Returns the width of the widest hook except logits.
fn widest(dims: &Dims) -> usize {
    dims.d_model.max(dims.d_mlp).max(dims.heads * dims.d_head)
}
