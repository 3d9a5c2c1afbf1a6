//! Captures at hooks: reduced on the device where requested, and copied to the host while the pass
//! computes.

use std::{collections::BTreeMap, sync::Arc};

use djinn_device::{Edit, Reduction, View};
use djinn_model::{
    Site,
    program::{Buf, SegmentKind},
};
use djinn_types::DType;

use super::{
    active_rows::ActiveRows,
    apply_edits::runs,
    pass::Pass,
    progress::{LensRows, PendingCapture},
};
use crate::{EngineError, Reduce, executor::batch::RowSpan, probe::capture::Capture};

impl Pass<'_> {
    /// Captures a hook for all sessions with rows in these spans.
    pub(super) fn read(
        &mut self,
        kind: SegmentKind,
        groups: &[RowSpan],
        (site, buf): (Site, Buf),
        head: &mut ActiveRows,
    ) -> Result<(), EngineError> {
        // Contiguous rows of each member, in order of positions.
        let mut wanted: BTreeMap<usize, Vec<View>> = BTreeMap::new();
        for group in groups {
            let session = &self.members[group.member];
            let prompt = session.prompt();
            let runs = runs(group, |p| session.probe.reads(site, p, prompt));
            let rows = runs.iter().map(|run| self.rows_of(kind, buf, run));
            let rows: Vec<View> = rows.collect();
            if !rows.is_empty() {
                wanted.entry(group.member).or_default().extend(rows);
            }
        }
        for (member, runs) in wanted {
            let capture = self.members[member].probe.capture(site);
            let capture = Arc::clone(capture.expect("the hook is captured"));
            match capture.reduce {
                Reduce::Mean => self.add_up(member, site, &capture, &runs)?,
                Reduce::Lens(_) => {
                    for rows in runs {
                        self.put_under(member, site, rows, head)?;
                    }
                }
                _ => {
                    for rows in runs {
                        self.send_rows(member, site, &capture, rows)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies captured rows to the host, reduced if requested.
    fn send_rows(
        &mut self,
        member: usize,
        site: Site,
        capture: &Capture,
        at: View,
    ) -> Result<(), EngineError> {
        let how = capture.reduce.on_device();
        if how.is_none() && !capture.is_part() {
            return self.send(member, site, at, None);
        }
        for rows in tiles(at, self.arena.packed.rows) {
            let part = self.packed(rows, capture)?;
            let made = match how {
                Some(how) => self.reduced(part, how, capture.reduce.width())?,
                None => part,
            };
            self.send(member, site, made, None)?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        member: usize,
        site: Site,
        at: View,
        summed: Option<usize>,
    ) -> Result<(), EngineError> {
        let sent = self.staging.send(self.device, at)?;
        self.progress.read.push(PendingCapture {
            member,
            site,
            sent,
            summed,
        });
        Ok(())
    }

    /// Packs the captured part of rows into contiguous memory.
    fn packed(&self, rows: View, capture: &Capture) -> Result<View, EngineError> {
        if !capture.is_part() {
            return Ok(rows);
        }
        let offset = self.arena.packed.offset;
        let packed = View::new(offset, DType::F32, rows.rows, capture.width());
        let mut done = 0;
        for columns in &capture.columns {
            let (first, width) = (columns.start, columns.len());
            let to = packed.cols(done, width);
            self.device.split(rows, first, width, width, to)?;
            done += width;
        }
        Ok(packed)
    }

    /// Reduces each row.
    fn reduced(&self, rows: View, how: Reduction, width: usize) -> Result<View, EngineError> {
        let reduced = View::new(self.arena.reduced.offset, DType::F32, rows.rows, width);
        self.device.reduce(rows, how, reduced)?;
        Ok(reduced)
    }

    /// Adds rows to the running sum in order of positions, so that the sum does not depend on how
    /// the passes are cut.
    fn add_up(
        &mut self,
        member: usize,
        site: Site,
        capture: &Capture,
        runs: &[View],
    ) -> Result<(), EngineError> {
        let sums = View::new(self.arena.sums.offset, DType::F32, 2, capture.width());
        match self.members[member].captured.sum(site) {
            Some(sum) => self.staging.bring(self.device, sum, sums)?,
            None => self.device.edit(sums, Edit::Zero)?,
        }
        for &at in runs {
            for rows in tiles(at, self.arena.packed.rows) {
                let part = self.packed(rows, capture)?;
                self.device.reduce(part, Reduction::Sum, sums)?;
            }
        }
        let count = runs.iter().map(|rows| rows.rows).sum();
        self.send(member, site, sums, Some(count))
    }

    /// Sends rows through the head as if they were the last residual.
    fn put_under(
        &mut self,
        member: usize,
        site: Site,
        rows: View,
        head: &mut ActiveRows,
    ) -> Result<(), EngineError> {
        let asked = rows.rows;
        let first_row = head.lend(asked).ok_or(EngineError::Limit {
            kind: crate::error::LimitKind::LensRows,
            asked,
            limit: self.blueprint.settings.probe_limits.lens_rows,
        })?;
        let to = self.arena.head_resid.rows(first_row, asked);
        self.device.copy(rows.span(), to.span())?;
        self.progress.under.push(LensRows {
            member,
            site,
            first_row,
            rows: asked,
        });
        Ok(())
    }

    /// Captures the logit lens, once the logits are computed.
    pub(super) fn look_through(&mut self, logits: View) -> Result<(), EngineError> {
        for under in std::mem::take(&mut self.progress.under) {
            let LensRows { member, site, .. } = under;
            let capture = self.members[member].probe.capture(site);
            let width = capture.expect("the hook is captured").reduce.width();
            for rows in tiles(
                logits.rows(under.first_row, under.rows),
                self.arena.packed.rows,
            ) {
                let likeliest = self.reduced(rows, Reduction::Likeliest, width)?;
                self.send(member, site, likeliest, None)?;
            }
        }
        Ok(())
    }

    /// Stores the captures in their sessions.
    pub(super) fn tell_read(&mut self) -> Result<(), EngineError> {
        self.staging.settle(self.device)?;
        for read in self.progress.read.drain(..) {
            let session = &mut self.members[read.member];
            let capture = session
                .probe
                .capture(read.site)
                .expect("the hook is captured");
            let (dims, numbers) = (&self.program.dims, self.staging.read(read.sent));
            let captured = &mut session.captured;
            match read.summed {
                Some(count) => captured.set_sum(read.site, capture, dims, (numbers, count)),
                None => captured.push_rows(read.site, capture, dims, numbers),
            }
        }
        Ok(())
    }
}

/// Splits rows into tiles of at most `most` rows.
fn tiles(at: View, most: usize) -> impl Iterator<Item = View> {
    (0..at.rows)
        .step_by(most)
        .map(move |first| at.rows(first, most.min(at.rows - first)))
}
