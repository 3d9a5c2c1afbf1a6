//! Active rows: the rows that operations currently run over, of the whole batch or of the head.
//! Sessions enter and leave in the middle of a pass.

use std::ops::Range;

use djinn_device::{Phase, View};

use super::batch::{RowSpan, generated};

/// Rows of a pass, and the sessions in them. Operations that treat every row separately run over
/// all rows up to the last active one; the padding rows in between cost little.
pub(crate) struct ActiveRows {
    /// Number of rows up to the last active one.
    pub rows: usize,
    /// Index of the first row of a prompt.
    pub prompts: usize,
    /// Number of rows of generated tokens up to the last active one.
    generated: usize,
    /// Active spans, in order of their rows.
    pub groups: Vec<RowSpan>,
    /// Residual of all rows.
    resid: View,
    /// Number of rows of all spans that may become active.
    seats: usize,
    /// Number of rows lent behind the rows of the spans.
    more: usize,
}

impl ActiveRows {
    /// Creates the rows of these spans, none of them active yet.
    pub fn new(all: &[RowSpan], resid: View) -> Self {
        ActiveRows {
            rows: 0,
            prompts: generated(all),
            generated: 0,
            groups: Vec::new(),
            resid,
            seats: all.iter().map(|group| group.rows).sum(),
            more: 0,
        }
    }

    /// Lends rows behind those of the spans and returns the index of the first; `None` if too few
    /// are left.
    pub fn lend(&mut self, rows: usize) -> Option<usize> {
        let first = self.seats + self.more;
        if first + rows > self.resid.rows {
            return None;
        }
        self.more += rows;
        self.count();
        Some(first)
    }

    /// Number of rows of the spans, without lent rows.
    pub fn seated(&self) -> usize {
        self.rows.min(self.seats)
    }

    /// Activates spans.
    pub fn enter(&mut self, groups: impl IntoIterator<Item = RowSpan>) {
        self.groups.extend(groups);
        self.groups.sort_by_key(|group| group.first_row);
        self.count();
    }

    /// Deactivates the rows of a member from a position on, and returns them.
    pub fn leave(&mut self, member: usize, position: usize) -> Vec<RowSpan> {
        let mut left = Vec::new();
        let leaves = |group: &RowSpan| group.member == member && group.positions().end > position;
        for group in self.groups.iter_mut().filter(|group| leaves(group)) {
            let stays = position.saturating_sub(group.position);
            left.push(RowSpan {
                first_row: group.first_row + stays,
                rows: group.rows - stays,
                position: group.position + stays,
                ..*group
            });
            group.rows = stays;
        }
        self.groups.retain(|group| group.rows > 0);
        self.count();
        left
    }

    fn count(&mut self) {
        let end = |of: Option<Phase>| {
            let of = |group: &&RowSpan| of.is_none_or(|phase| group.phase == phase);
            let groups = self.groups.iter().filter(of);
            groups.map(|group| group.first_row + group.rows).max()
        };
        self.rows = match self.more {
            0 => end(None).unwrap_or(0),
            more => self.seats + more,
        };
        self.generated = end(Some(Phase::Generated)).unwrap_or(0);
    }

    /// Returns the residual of the rows up to the last active one.
    pub fn resid(&self) -> View {
        self.resid.rows(0, self.rows)
    }

    /// Returns the rows of each phase up to the last active one.
    pub fn phases(&self) -> impl Iterator<Item = (Phase, Range<usize>)> {
        let both = [
            (Phase::Generated, 0..self.generated),
            (Phase::Prompt, self.prompts..self.rows),
        ];
        both.into_iter().filter(|(_, rows)| !rows.is_empty())
    }

    /// Returns the active rows, merged into contiguous runs of one phase.
    pub fn runs(&self) -> Vec<(Phase, Range<usize>)> {
        let mut runs: Vec<(Phase, Range<usize>)> = Vec::new();
        for group in &self.groups {
            let rows = group.first_row..group.first_row + group.rows;
            match runs.last_mut() {
                Some((phase, run)) if *phase == group.phase && run.end == rows.start => {
                    run.end = rows.end;
                }
                _ => runs.push((group.phase, rows)),
            }
        }
        runs
    }

    /// Whether a row is active.
    pub fn holds(&self, row: usize) -> bool {
        let is_in =
            |group: &RowSpan| (group.first_row..group.first_row + group.rows).contains(&row);
        self.groups.iter().any(is_in)
    }
}

#[cfg(test)]
mod tests {
    use djinn_device::{Phase, View};
    use djinn_types::DType;

    use super::ActiveRows;
    use crate::executor::batch::RowSpan;

    #[test]
    fn spans_enter_and_leave() {
        let group = |member, phase, first_row, rows| RowSpan {
            member,
            phase,
            first_row,
            rows,
            position: 0,
            enter: 0,
        };
        let all = [
            group(0, Phase::Generated, 0, 1),
            group(1, Phase::Generated, 1, 1),
            group(2, Phase::Prompt, 2, 5),
            group(1, Phase::Prompt, 7, 2),
        ];
        let mut stage = ActiveRows::new(&all, View::new(0, DType::F32, 9, 4));
        assert_eq!((stage.rows, stage.phases().count()), (0, 0));
        stage.enter([all[3], all[0]]);
        stage.enter([all[1], all[2]]);
        let (generated, prompt) = (Phase::Generated, Phase::Prompt);
        assert_eq!(stage.runs(), [(generated, 0..2), (prompt, 2..9)]);
        assert_eq!(stage.leave(2, 0), [all[2]]);
        // The rows in between are padding.
        let phases: Vec<_> = stage.phases().collect();
        assert_eq!(phases, [(generated, 0..2), (prompt, 2..9)]);
        assert_eq!(stage.runs(), [(generated, 0..2), (prompt, 7..9)]);
        assert!(stage.holds(8) && !stage.holds(4));
        assert_eq!(stage.leave(1, 0), [all[1], all[3]]);
        let phases: Vec<_> = stage.phases().collect();
        assert_eq!((stage.rows, phases), (1, vec![(generated, 0..1)]));
        assert_eq!(stage.resid().rows, 1);
    }

    #[test]
    fn rows_before_a_position_stay_active() {
        let group = RowSpan {
            member: 0,
            phase: Phase::Prompt,
            first_row: 3,
            rows: 6,
            position: 10,
            enter: 0,
        };
        let mut stage = ActiveRows::new(&[group], View::new(0, DType::F32, 9, 4));
        stage.enter([group]);
        let last = RowSpan {
            first_row: 7,
            rows: 2,
            position: 14,
            ..group
        };
        assert_eq!(stage.leave(0, 14), [last]);
        assert_eq!(stage.groups, [RowSpan { rows: 4, ..group }]);
        assert_eq!(stage.leave(0, 14), []);
        assert_eq!(stage.rows, 7);
    }
}
