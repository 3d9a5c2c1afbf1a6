//! The rows that operations now run over: of the whole batch, or of those that go through
//! the head. Rows come in the middle of a pass, and leave it there.

use std::ops::Range;

use djinn_device::{Phase, View};

use super::batch::{RowSpan, generated};

/// Rows, and who is in them. Operations that work on every row by itself run over all up to
/// the last that somebody is in: what lies between is nobody's, and costs little.
pub(crate) struct ActiveRows {
    /// How many rows that is.
    pub rows: usize,
    /// Where rows of prompts begin.
    pub prompts: usize,
    /// Those of generated tokens up to the last that somebody is in.
    generated: usize,
    /// Who is in it, in order of their rows.
    pub groups: Vec<RowSpan>,
    /// Where the residual of all rows lies.
    resid: View,
    /// Rows of all who may come, and those behind them in which nobody is.
    seats: usize,
    more: usize,
}

impl ActiveRows {
    /// The rows of all these groups, with nobody in them yet.
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

    /// Rows of nobody, behind everybody's, which are gone through too; says which is the
    /// first. Nothing where there are no more.
    pub fn lend(&mut self, rows: usize) -> Option<usize> {
        let first = self.seats + self.more;
        if first + rows > self.resid.rows {
            return None;
        }
        self.more += rows;
        self.count();
        Some(first)
    }

    /// The rows that are somebody's.
    pub fn seated(&self) -> usize {
        self.rows.min(self.seats)
    }

    /// Some come.
    pub fn enter(&mut self, groups: impl IntoIterator<Item = RowSpan>) {
        self.groups.extend(groups);
        self.groups.sort_by_key(|group| group.first_row);
        self.count();
    }

    /// A member leaves with all its rows from a position on; says which.
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

    /// The residual.
    pub fn resid(&self) -> View {
        self.resid.rows(0, self.rows)
    }

    /// The rows of each phase.
    pub fn phases(&self) -> impl Iterator<Item = (Phase, Range<usize>)> {
        let both = [
            (Phase::Generated, 0..self.generated),
            (Phase::Prompt, self.prompts..self.rows),
        ];
        both.into_iter().filter(|(_, rows)| !rows.is_empty())
    }

    /// The rows that somebody is in, side by side as far as they lie so.
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

    /// Whether somebody is in a row.
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
    fn rows_come_and_go() {
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
        // Rows between are gone through, but nobody is in them.
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
    fn what_lies_before_a_position_goes_on() {
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
