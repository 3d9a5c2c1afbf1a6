//! What happens at hooks: edits, then captures.

use djinn_device::{Device, Edit as DeviceEdit, View};
use djinn_model::hook::Site;

use super::{Pass, Result, Stage, upload_numbers};
use crate::{Change, batch::Group, edit::Edit};

impl Pass<'_, '_> {
    /// Edits, then captures, for each session that asked for them here.
    pub(super) fn hook(&mut self, stage: &Stage, site: Site, at: View) -> Result<()> {
        for group in &stage.groups {
            if !self.members[group.member].probe.touches(site) {
                continue;
            }
            let (device, operand) = (self.device, self.arena.operand);
            let session = &mut *self.members[group.member];
            for edit in session.probe.changes(site) {
                let prompt = session.prompt();
                for run in runs(group, |p| edit.positions.contains(p, prompt)) {
                    let first = edit.positions.ordinal(run.position, prompt);
                    let rows = at.rows(run.first_row, run.rows);
                    apply(device, operand, edit, first, rows)?;
                }
            }
            if session.probe.captures(site) {
                let prompt = session.prompt();
                for run in runs(group, |p| session.probe.reads(p, prompt)) {
                    let mut data = vec![0.0; run.rows * at.cols];
                    device.download(at.rows(run.first_row, run.rows), &mut data)?;
                    session.captured.push_rows(site, &data);
                }
            }
        }
        Ok(())
    }
}

/// The parts of a group whose positions are selected.
pub(super) fn runs(group: &Group, selected: impl Fn(usize) -> bool) -> Vec<Group> {
    let mut runs: Vec<Group> = Vec::new();
    for i in 0..group.rows {
        let (row, position) = (group.first_row + i, group.position + i);
        if !selected(position) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.first_row + run.rows == row => run.rows += 1,
            _ => runs.push(Group {
                first_row: row,
                rows: 1,
                position,
                ..*group
            }),
        }
    }
    runs
}

/// Applies one edit to rows whose first is the `first`-th selected position.
fn apply(device: &dyn Device, scratch: View, edit: &Edit, first: usize, rows: View) -> Result<()> {
    let upload = || -> Result<View> {
        let operand = edit.operand().expect("asked only of edits that have one");
        let one_row = operand.data.len() == rows.cols;
        let (start, count) = if one_row { (0, 1) } else { (first, rows.rows) };
        let data = &operand.data[start * rows.cols..(start + count) * rows.cols];
        let view = View::new(scratch.offset, scratch.dtype, count, rows.cols);
        upload_numbers(device, view, data)?;
        Ok(view)
    };
    let change = match edit.change {
        Change::Scale(factor) => DeviceEdit::Scale(factor),
        Change::Zero => DeviceEdit::Zero,
        Change::Add { factor, .. } => DeviceEdit::Add {
            operand: upload()?,
            factor,
        },
        Change::Replace(_) => DeviceEdit::Replace(upload()?),
        Change::ProjectOut(_) => DeviceEdit::ProjectOut(upload()?),
    };
    Ok(device.edit(rows, change)?)
}
