//! Sessions that pause in the middle of a pass, and sessions that continue from there.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Instant};

use djinn_device::{View, host};
use djinn_model::{
    StopPoint,
    program::{Buf, SegmentKind},
};

use super::{
    active_rows::ActiveRows,
    apply_edits::Changer,
    pass::{Pass, PassRows},
    progress::PausedRows,
};
use crate::{
    EngineError, NormCondition, RunUntil, executor::batch::RowSpan, probe::checkpoint::Checkpoint,
    probe::staging::StagedRead,
};

impl Pass<'_> {
    /// Pauses the sessions that have a matching breakpoint at a hook, from the first matching
    /// position on, and copies the buffers that they need to continue.
    pub(super) fn stop(
        &mut self,
        kind: SegmentKind,
        next: usize,
        stages: &mut PassRows,
    ) -> Result<(), EngineError> {
        let stop = Arc::clone(&self.blueprint.stops[&next]);
        let mut first: BTreeMap<usize, usize> = BTreeMap::new();
        for group in &stages.of(kind).groups {
            if let Some(position) = self.stops_at(kind, &stop, group)? {
                let first = first.entry(group.member).or_insert(position);
                *first = position.min(*first);
            }
        }
        for (member, first) in first {
            let start = Instant::now();
            let position = self.stands_from(member, first, next, stages.of(kind));
            let groups = stages.of(kind).leave(member, position);
            stages.body.leave(member, position);
            stages.head.leave(member, position);
            let mut live = Vec::with_capacity(stop.live.len());
            for &buf in &stop.live {
                let mut sent = Vec::with_capacity(groups.len());
                for group in &groups {
                    let rows = self.rows_of(kind, buf, group);
                    sent.push(self.staging.send(self.device, rows)?);
                }
                live.push((buf, sent));
            }
            let stop = Arc::clone(&stop);
            self.progress.stopped.push(PausedRows {
                member,
                position,
                stop,
                live,
            });
            self.progress.stop_time += start.elapsed();
        }
        Ok(())
    }

    /// Returns the first position of a member that pauses, where `first` is the first that matches.
    /// A session pauses at one hook only: if earlier rows may pause at a later hook, all rows
    /// pause here.
    fn stands_from(&self, member: usize, first: usize, next: usize, stage: &ActiveRows) -> usize {
        let session = &self.members[member];
        let of = |group: &&RowSpan| group.member == member && group.position < first;
        let mut before = stage.groups.iter().filter(of);
        let later = |rows: Range<usize>| {
            let mut later = self.blueprint.stops.range(next + 1..);
            session.state.until() != RunUntil::Breakpoint
                || later.any(|(_, stop)| session.breaks(stop.site, rows.clone()).next().is_some())
        };
        let may_stop = |group: &RowSpan| later(group.position..group.positions().end.min(first));
        let Some(earliest) = before.clone().map(|group| group.position).min() else {
            return first;
        };
        match before.any(may_stop) {
            true => earliest,
            false => first,
        }
    }

    /// Returns the first position of a span that pauses at a hook, if any. Later positions have to
    /// wait for it, earlier ones do not.
    fn stops_at(
        &self,
        kind: SegmentKind,
        stop: &StopPoint,
        group: &RowSpan,
    ) -> Result<Option<usize>, EngineError> {
        let session = &self.members[group.member];
        if let Some(stops) = session.rewinds(stop.next) {
            return Ok(stops.then_some(group.position));
        }
        if session.state.until().is(stop.site) {
            return Ok(Some(group.position));
        }
        let mut first: Option<usize> = None;
        for (when, position) in session.breaks(stop.site, group.positions()) {
            if first.is_some_and(|first| first <= position) {
                continue;
            }
            let stops = match when.norm {
                None => true,
                Some(norm) => self.norm_holds(kind, stop.buf, group, position, norm)?,
            };
            first = if stops { Some(position) } else { first };
        }
        Ok(first)
    }

    /// Whether the norm of a row satisfies a condition.
    fn norm_holds(
        &self,
        kind: SegmentKind,
        buf: Buf,
        group: &RowSpan,
        position: usize,
        norm: NormCondition,
    ) -> Result<bool, EngineError> {
        let row = self
            .rows_of(kind, buf, group)
            .rows(position - group.position, 1);
        let mut numbers = vec![0.0; row.cols];
        self.device.download(row, &mut numbers)?;
        Ok(norm.holds(&numbers))
    }

    /// Activates the sessions that continue with this operation, and restores their buffers.
    /// Returns whether a session continues here.
    pub(super) fn enter(&mut self, at: usize, stages: &mut PassRows) -> Result<bool, EngineError> {
        // Called for every operation, and nearly always no session enters.
        if stages.later.iter().all(|(_, group)| group.enter != at) {
            return Ok(false);
        }
        let comes = |(_, group): &mut (SegmentKind, RowSpan)| group.enter == at;
        let mut coming: Vec<_> = stages.later.extract_if(.., comes).collect();
        coming.sort_by_key(|(_, group)| group.first_row);
        // Number of restored rows of each member.
        let mut brought = vec![0; self.members.len()];
        for &(kind, group) in &coming {
            stages.of(kind).enter([group]);
            self.restore(kind, &group, brought[group.member])?;
            brought[group.member] += group.rows;
        }
        // All of them continue from the same hook.
        if let Some(&(kind, group)) = coming.first() {
            let checkpoint = self.members[group.member].checkpoint();
            let stop = &checkpoint
                .expect("an entering session has a checkpoint")
                .stop;
            let hook = (stop.site, stop.buf);
            let groups: Vec<RowSpan> = coming.iter().map(|(_, group)| *group).collect();
            self.read(kind, &groups, hook, &mut stages.head)?;
        }
        Ok(true)
    }

    /// Restores rows of a checkpoint from the `first` on, and applies the edits made during the
    /// pause.
    fn restore(
        &mut self,
        kind: SegmentKind,
        group: &RowSpan,
        first: usize,
    ) -> Result<(), EngineError> {
        let session = &self.members[group.member];
        let checkpoint = session
            .checkpoint()
            .expect("an entering session has a checkpoint");
        for (buf, numbers) in checkpoint.live.iter() {
            let rows = self.rows_of(kind, *buf, group);
            let numbers = &numbers[first * rows.cols..(first + rows.rows) * rows.cols];
            self.staging.bring(self.device, numbers, rows)?;
        }
        let at = self.rows_of(kind, checkpoint.stop.buf, group);
        let mut changer = Changer {
            device: self.device,
            staging: &mut *self.staging,
            operand: self.arena.operand,
        };
        for edit in checkpoint
            .edits
            .iter()
            .filter(|edit| !edit.changes_nothing())
        {
            changer.change(edit, group, session.prompt(), at)?;
        }
        Ok(())
    }

    /// Returns the rows of a span in a buffer.
    pub(super) fn rows_of(&self, kind: SegmentKind, buf: Buf, group: &RowSpan) -> View {
        let end = group.first_row + group.rows;
        let all = match (buf, kind) {
            (Buf::Resid, SegmentKind::Head) => self.arena.head_resid,
            _ => self.arena.buf(buf, end),
        };
        all.rows(group.first_row, group.rows)
    }

    /// Whether a member has paused in this pass.
    pub(super) fn has_stopped(&self, member: usize) -> bool {
        self.progress
            .stopped
            .iter()
            .any(|stopped| stopped.member == member)
    }

    /// Returns the checkpoints of the members that paused, once all staged reads have arrived.
    pub(super) fn take_checkpoints(&mut self) -> BTreeMap<usize, Checkpoint> {
        let stopped = std::mem::take(&mut self.progress.stopped);
        let checkpoints = stopped.into_iter().map(|paused| {
            let member = paused.member;
            (member, self.checkpoint(paused))
        });
        checkpoints.collect()
    }

    /// Returns the checkpoint of a member that paused.
    fn checkpoint(&self, paused: PausedRows) -> Checkpoint {
        let PausedRows {
            member,
            position,
            stop,
            live,
        } = paused;
        let numbers = |sent: Vec<StagedRead>| {
            let parts = sent.into_iter().map(|sent| self.staging.read(sent));
            let parts: Vec<&[f32]> = parts.collect();
            let mut all = host::vec_in_huge_pages(parts.iter().map(|part| part.len()).sum());
            parts.iter().for_each(|part| all.extend_from_slice(part));
            all
        };
        let live = live.into_iter().map(|(buf, sent)| (buf, numbers(sent)));
        let live = Arc::new(live.collect());
        let of = |group: &&RowSpan| group.member == member;
        let groups = self.batch.groups.iter().filter(of);
        let end = groups.map(|group| group.positions().end).max();
        Checkpoint {
            stop,
            rows: end.unwrap_or(position) - position,
            live,
            edits: Vec::new(),
        }
    }
}
