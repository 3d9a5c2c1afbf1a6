//! What happens at hooks: edits, then stops, then captures: who stops is read when it goes
//! on, since it may be changed before.

use djinn_device::{Device, Edit as DeviceEdit, View};
use djinn_model::hook::Site;

use super::{Pass, Result, Stage, upload_numbers};
use crate::{Change, batch::Group, edit::Edit, outbox::Sent};

impl Pass<'_, '_> {
    /// Makes the changes that sessions asked for here.
    pub(super) fn change(&self, stage: &Stage, site: Site, at: View) -> Result<()> {
        for group in &stage.groups {
            let session = &*self.members[group.member];
            for edit in session.probe.changes(site) {
                self.change_rows(edit, group, at.rows(group.first_row, group.rows))?;
            }
        }
        Ok(())
    }

    /// Makes a change to those of a group's rows that it is for.
    pub(super) fn change_rows(&self, edit: &Edit, group: &Group, at: View) -> Result<()> {
        let prompt = self.members[group.member].prompt();
        for run in runs(group, |p| edit.positions.contains(p, prompt)) {
            let first = edit.positions.ordinal(run.position, prompt);
            let rows = at.rows(run.first_row - group.first_row, run.rows);
            apply(self.device, self.arena.operand, edit, first, rows)?;
        }
        Ok(())
    }

    /// Reads what sessions asked for here.
    pub(super) fn read(&mut self, stage: &Stage, site: Site, at: View) -> Result<()> {
        for group in &stage.groups {
            self.read_rows(group, site, at.rows(group.first_row, group.rows))?;
        }
        Ok(())
    }

    /// Reads those of a group's rows that its session asked for.
    pub(super) fn read_rows(&mut self, group: &Group, site: Site, at: View) -> Result<()> {
        let (member, session) = (group.member, &self.members[group.member]);
        if !session.probe.captures(site) {
            return Ok(());
        }
        let prompt = session.prompt();
        for run in runs(group, |p| session.probe.reads(p, prompt)) {
            let rows = at.rows(run.first_row - group.first_row, run.rows);
            let sent = self.outbox.send(self.device, rows)?;
            self.so_far.read.push(Read { member, site, sent });
        }
        Ok(())
    }

    /// Gives sessions what was read of them.
    pub(super) fn tell_read(&mut self) -> Result<()> {
        self.outbox.settle(self.device)?;
        for Read { member, site, sent } in self.so_far.read.drain(..) {
            let captured = &mut self.members[member].captured;
            captured.push_rows(site, self.outbox.read(sent));
        }
        Ok(())
    }
}

/// What was read of a session at a hook.
pub(super) struct Read {
    member: usize,
    site: Site,
    sent: Sent,
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
    let width = edit.width();
    let operand = match edit.operand() {
        None => None,
        Some(operand) => {
            let one_row = operand.data.len() == width;
            let (start, count) = if one_row { (0, 1) } else { (first, rows.rows) };
            let data = &operand.data[start * width..(start + count) * width];
            let view = View::new(scratch.offset, scratch.dtype, count, width);
            upload_numbers(device, view, data)?;
            Some(view)
        }
    };
    // The operand's columns lie side by side, whichever they are for.
    let mut done = 0;
    for columns in &edit.columns {
        let operand = || {
            let operand = operand.expect("asked only of edits that have one");
            operand.cols(done, columns.len())
        };
        let at = rows.cols(columns.start, columns.len());
        device.edit(at, on_device(&edit.change, operand))?;
        done += columns.len();
    }
    Ok(())
}

/// What a device is to do.
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
