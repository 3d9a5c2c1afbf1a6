//! Edits at hooks. At a hook edits come first, then breakpoints, then captures: a paused session
//! is captured when it resumes, because it may be edited before.

use djinn_device::{Device, Edit as DeviceEdit, View};
use djinn_model::Site;

use super::{active_rows::ActiveRows, pass::Pass};
use crate::{
    Change, EngineError, executor::batch::RowSpan, probe::edit::BoundEdit, probe::staging::Staging,
};

impl Pass<'_> {
    /// Applies the edits of all sessions at a hook.
    pub(super) fn change(
        &mut self,
        stage: &ActiveRows,
        site: Site,
        at: View,
    ) -> Result<(), EngineError> {
        let mut changer = Changer {
            device: self.device,
            staging: &mut *self.staging,
            operand: self.arena.operand,
        };
        for group in &stage.groups {
            let session = &self.members[group.member];
            let rows = at.rows(group.first_row, group.rows);
            for edit in session.probe.changes(site) {
                changer.change(edit, group, session.prompt(), rows)?;
            }
        }
        Ok(())
    }
}

/// Applies edits on the device.
pub(super) struct Changer<'a> {
    pub device: &'a dyn Device,
    pub staging: &'a mut Staging,
    /// Device memory for operands.
    pub operand: View,
}

impl Changer<'_> {
    /// Applies an edit to the rows of a span that it selects.
    pub fn change(
        &mut self,
        edit: &BoundEdit,
        group: &RowSpan,
        prompt: usize,
        at: View,
    ) -> Result<(), EngineError> {
        for run in runs(group, |p| edit.positions.contains(p, prompt)) {
            let first = edit.positions.ordinal(run.position, prompt);
            let rows = at.rows(run.first_row - group.first_row, run.rows);
            let operand = self.copy_operand_in(edit, first, run.rows)?;
            // The columns of the operand are contiguous, whichever columns the edit selects.
            let mut done = 0;
            for columns in &edit.columns {
                let operand = || {
                    let operand = operand.expect("the edit has an operand");
                    operand.cols(done, columns.len())
                };
                let at = rows.cols(columns.start, columns.len());
                self.device.edit(at, on_device(&edit.change, operand))?;
                done += columns.len();
            }
        }
        Ok(())
    }

    /// Copies the operand of an edit to the device, for `rows` rows from the `first`-th selected
    /// position on.
    fn copy_operand_in(
        &mut self,
        edit: &BoundEdit,
        first: usize,
        rows: usize,
    ) -> Result<Option<View>, EngineError> {
        let (width, Some(operand)) = (edit.width(), edit.operand()) else {
            return Ok(None);
        };
        let one_row = operand.data.len() == width;
        let (start, count) = if one_row { (0, 1) } else { (first, rows) };
        let data = &operand.data[start * width..(start + count) * width];
        let view = View::new(self.operand.offset, self.operand.dtype, count, width);
        self.staging.bring(self.device, data, view)?;
        Ok(Some(view))
    }
}

/// Returns the runs of rows of a span whose positions are selected.
pub(super) fn runs(group: &RowSpan, selected: impl Fn(usize) -> bool) -> Vec<RowSpan> {
    let mut runs: Vec<RowSpan> = Vec::new();
    for i in 0..group.rows {
        let (row, position) = (group.first_row + i, group.position + i);
        if !selected(position) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.first_row + run.rows == row => run.rows += 1,
            _ => runs.push(RowSpan {
                first_row: row,
                rows: 1,
                position,
                ..*group
            }),
        }
    }
    runs
}

/// Converts an edit to the form of the device.
pub(super) fn on_device<T>(change: &Change<T>, operand: impl FnOnce() -> View) -> DeviceEdit {
    match *change {
        Change::Scale(factor) => DeviceEdit::Scale(factor),
        Change::Zero => DeviceEdit::Zero,
        Change::Clamp { low, high } => DeviceEdit::Clamp { low, high },
        Change::Add { factor, .. } => DeviceEdit::Add {
            operand: operand(),
            factor,
        },
        Change::AddMatched { factor, .. } => DeviceEdit::AddMatched {
            operand: operand(),
            factor,
        },
        Change::Replace(_) => DeviceEdit::Replace(operand()),
        Change::ProjectOut(_) => DeviceEdit::ProjectOut(operand()),
    }
}
