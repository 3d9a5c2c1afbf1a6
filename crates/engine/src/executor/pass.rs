//! A pass: one run of a batch of sessions through the program of the model.

use std::{collections::BTreeMap, ops::Range, time::Instant};

use djinn_device::{Device, Event, Stream, View};
use djinn_kv::{PageStream, PendingPages};
use djinn_model::program::{Buf, Op, Program, SegmentKind};
use djinn_weights::Streamer;

use crate::{
    Blueprint, EngineError,
    arena::{Arena, BatchIds},
    executor::batch::{Batch, RowSpan},
    probe::{checkpoint::Checkpoint, staging::Staging},
    session::Session,
};

use super::{active_rows::ActiveRows, progress::PassProgress};
use crate::upload::upload_ids;

/// Results of a pass.
pub(crate) struct PassResult {
    /// Inputs for sampling the next token of members whose last token ran.
    pub samples: Vec<SampleInput>,
    /// Checkpoints of the members that paused, by index of the member.
    pub paused: BTreeMap<usize, Checkpoint>,
    /// Host time in seconds spent on saving paused members.
    pub pause_s: f64,
}

/// Input for sampling the next token of a member.
pub(crate) struct SampleInput {
    pub member: usize,
    pub scores: TokenScores,
}

/// Logits of the last token of a member, or the token that the device sampled from them.
pub(crate) enum TokenScores {
    /// Logits for sampling on the host.
    Logits(Vec<f32>),
    /// Token that the device sampled; `None` if the logits contain NaN.
    Chosen(Option<u32>),
}

/// A pass over one batch, with everything that its operations need.
pub(crate) struct Pass<'a> {
    pub device: &'a dyn Device,
    pub program: &'a Program,
    pub blueprint: &'a Blueprint,
    pub arena: &'a Arena,
    pub streamer: &'a mut dyn Streamer,
    pub staging: &'a mut Staging,
    pub members: &'a mut [Session],
    pub batch: &'a Batch,
    pub ids: BatchIds,
    /// KV pages that are still in transit.
    pub arrivals: &'a PendingPages<Event>,
    /// KV pages that stream through the window.
    pub stream: Option<&'a PageStream>,
    /// Whether the recorder is on; a recorded pass is not replayed.
    pub recording: bool,
    /// Progress of the pass.
    pub progress: PassProgress,
}

/// Rows of a pass: active in the blocks, active in the head, and entering later.
pub(super) struct PassRows {
    pub body: ActiveRows,
    pub head: ActiveRows,
    /// Spans that enter in the middle of the pass, each with its segment.
    pub later: Vec<(SegmentKind, RowSpan)>,
}

impl PassRows {
    /// Returns the active rows of a segment.
    pub fn of(&mut self, kind: SegmentKind) -> &mut ActiveRows {
        match kind {
            SegmentKind::Head => &mut self.head,
            _ => &mut self.body,
        }
    }
}

impl Pass<'_> {
    /// Starts the batch on the device.
    pub fn begin(&mut self) -> Result<(), EngineError> {
        self.streamer.begin_pass()?;
        self.copy_first_slices()?;
        upload_ids(self.device, self.ids.all, &self.batch.ids())?;
        self.compute()
    }

    /// Reads the results after the device has finished.
    pub fn end(&mut self) -> Result<PassResult, EngineError> {
        let samples = self.read_last()?;
        self.tell_read()?;
        let start = Instant::now();
        let paused = self.take_checkpoints();
        let pause_s = match paused.is_empty() {
            true => 0.0,
            false => (self.progress.stop_time + start.elapsed()).as_secs_f64(),
        };
        Ok(PassResult {
            samples,
            paused,
            pause_s,
        })
    }

    /// Returns the rows before the first operation.
    pub(super) fn stages(&self) -> PassRows {
        let resid = self.arena.buf(Buf::Resid, self.batch.rows());
        let head = renumber(&self.batch.head);
        let first = self.program.first_of_head();
        let begins = |group: &&RowSpan| group.enter == 0;
        let mut body = ActiveRows::new(&self.batch.groups, resid);
        body.enter(self.batch.groups.iter().filter(begins).copied());
        // A session that continues in the head has nothing to run before it.
        let in_body = self
            .batch
            .groups
            .iter()
            .filter(|g| (1..=first).contains(&g.enter));
        let in_head = head.iter().filter(|group| group.enter > first);
        let later = in_body.map(|&group| (SegmentKind::Embedding, group));
        let later = later.chain(in_head.map(|&group| (SegmentKind::Head, group)));
        let mut stages = PassRows {
            body,
            head: ActiveRows::new(&head, self.arena.head_resid),
            later: later.collect(),
        };
        let through = head.into_iter().filter(|group| group.enter <= first);
        stages.head.enter(through);
        stages
    }

    /// Runs a range of operations over the active rows.
    pub(super) fn walk(
        &mut self,
        steps: &[(SegmentKind, &Op)],
        range: Range<usize>,
        stages: &mut PassRows,
    ) -> Result<(), EngineError> {
        let mut next = range.start;
        while next < range.end {
            let at = next;
            let (kind, op) = steps[at];
            next += 1;
            self.enter(at, stages)?;
            let stage = stages.of(kind);
            if stage.rows == 0 {
                continue;
            }
            if let Some(fusion) = self.fusion_at(steps, at, range.end) {
                for &(kind, _) in &steps[fusion.range.clone()] {
                    self.begin_segment(kind, stages.of(kind))?;
                }
                self.fused_op(stages.of(kind), &fusion.op)?;
                next = fusion.range.end;
                continue;
            }
            self.begin_segment(kind, stage)?;
            self.op(stage, op)?;
            if let Op::Hook { site, buf } = *op {
                if self.progress.may_pause {
                    self.stop(kind, at + 1, stages)?;
                }
                let groups = stages.of(kind).groups.clone();
                self.read(kind, &groups, (site, buf), &mut stages.head)?;
            }
            if at + 1 == steps.len() {
                self.finish(&stages.head)?;
            }
        }
        Ok(())
    }

    /// Starts a segment if the operation is the first of it, and ends the one before.
    fn begin_segment(&mut self, kind: SegmentKind, stage: &ActiveRows) -> Result<(), EngineError> {
        if self.progress.segment == Some(kind) {
            return Ok(());
        }
        match self.progress.segment.replace(kind) {
            None => self.rope_table()?,
            Some(_) => self.streamer.end_segment()?,
        }
        if let SegmentKind::Block(block) = kind {
            for event in self.arrivals.events_before(block, self.progress.block) {
                self.device.wait(Stream::Compute, event)?;
            }
            self.progress.block = Some(block);
        }
        self.streamer
            .begin_segment(self.blueprint.weights().segment_label(kind))?;
        if kind == SegmentKind::Head {
            let body = self.arena.buf(Buf::Resid, self.batch.rows());
            let rows = stage.seated();
            let (head, to) = (self.ids.head.rows(0, rows), stage.resid().rows(0, rows));
            self.device.gather(body, head, to, false)?;
        }
        Ok(())
    }

    /// Samples tokens from the logits, and captures the logit lens.
    pub(super) fn finish(&mut self, head: &ActiveRows) -> Result<(), EngineError> {
        let logits = self.view(head, Buf::Logits);
        let rows = head.seated();
        if rows > 0 && self.chooses() {
            let (draws, chosen) = (
                self.ids.draws.rows(0, rows),
                self.arena.chosen.rows(0, rows),
            );
            self.device.sample(logits.rows(0, rows), draws, chosen)?;
        }
        self.look_through(logits)
    }

    fn rope_table(&self) -> Result<(), EngineError> {
        if let Some(rope) = &self.program.rope {
            let table = self.arena.rope.rows(0, self.batch.rows());
            let frequencies = self.arena.frequencies;
            self.device
                .rope_table(self.ids.positions, frequencies, rope.scale, table)?;
        }
        Ok(())
    }

    /// Whether the device samples the next token of some session.
    pub(super) fn chooses(&self) -> bool {
        let chooses = |row: &RowSpan| {
            let session = &self.members[row.member];
            session.samples() && session.sampling.needs_logits_alone()
        };
        self.batch.head.iter().any(chooses)
    }

    /// Reads back the sampled tokens, or the logits where the host samples.
    fn read_last(&self) -> Result<Vec<SampleInput>, EngineError> {
        let rows = self.batch.head.len();
        let mut chosen = vec![0; rows];
        if self.chooses() {
            let ids = self.arena.chosen.rows(0, rows);
            self.device.download_ids(ids, &mut chosen)?;
        }
        let view = self.arena.buf(Buf::Logits, rows);
        let mut last = Vec::new();
        for group in renumber(&self.batch.head) {
            let session = &self.members[group.member];
            let is_last = group.positions().end == session.tokens.len();
            if !session.samples() || !is_last || self.has_stopped(group.member) {
                continue;
            }
            let row = group.first_row + group.rows - 1;
            let scores = if session.sampling.needs_logits_alone() {
                TokenScores::Chosen(u32::try_from(chosen[row]).ok())
            } else {
                let mut logits = vec![0.0; view.cols];
                self.device.download(view.rows(row, 1), &mut logits)?;
                TokenScores::Logits(logits)
            };
            let member = group.member;
            last.push(SampleInput { member, scores });
        }
        Ok(last)
    }

    pub(super) fn view(&self, stage: &ActiveRows, buf: Buf) -> View {
        match buf {
            Buf::Resid => stage.resid(),
            buf => self.arena.buf(buf, stage.rows),
        }
    }
}

/// Merges rows gathered for the head into spans of consecutive rows.
fn renumber(rows: &[RowSpan]) -> Vec<RowSpan> {
    let mut groups: Vec<RowSpan> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        match groups.last_mut() {
            Some(g) if g.is_followed_by(row) => g.rows += 1,
            _ => groups.push(RowSpan {
                first_row: at,
                ..*row
            }),
        }
    }
    groups
}
