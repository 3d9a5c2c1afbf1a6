//! One trip of a batch of sessions through the model.

mod attention;
mod hooks;
mod stage;
mod stops;

use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

use djinn_device::{Device, DeviceError, Event, Order, Span, Stream, View, Weight};
use djinn_model::{
    Site,
    program::{Buf, Op, Program, SegmentKind, TensorId},
};

use crate::{
    Blueprint, EngineError,
    arena::{Arena, Ids},
    batch::{Batch, Group, generated},
    experts,
    outbox::Outbox,
    pager::Arrivals,
    session::Session,
    stream::Streamer,
    stretch::Stretch,
    weights::Home,
};

use hooks::Read;
pub(crate) use stage::Stage;
use stops::Stopped;

type Result<T> = std::result::Result<T, EngineError>;

/// What a pass came to.
pub(crate) struct Ran {
    /// What every session that will sample does so by.
    pub last: Vec<Last>,
    /// The members that stopped on the way.
    pub stopped: Vec<usize>,
    /// Seconds of the host that went into what they need to go on.
    pub stop_s: f64,
}

/// What a member's next token is chosen by.
pub(crate) struct Last {
    pub member: usize,
    pub scores: Scores,
}

/// The logits after a member's last token, or what the device chose by them.
pub(crate) enum Scores {
    Logits(Vec<f32>),
    /// `None` where a logit is not a number.
    Chosen(Option<u32>),
}

/// Walks the program over one batch.
pub(crate) struct Pass<'a, 's> {
    pub device: &'a dyn Device,
    pub program: &'a Program,
    pub blueprint: &'a Blueprint,
    pub arena: &'a Arena,
    pub streamer: &'a mut dyn Streamer,
    pub outbox: &'a mut Outbox,
    pub members: &'a mut [&'s mut Session],
    pub batch: &'a Batch,
    pub ids: Ids,
    /// Pages that are still on their way.
    pub arrivals: &'a Arrivals<Event>,
    /// Whether what happens is put on record.
    pub recording: bool,
    /// What it has come to so far.
    pub so_far: SoFar,
}

/// How far a pass has come.
#[derive(Default)]
pub(crate) struct SoFar {
    /// The segment whose operations run.
    segment: Option<SegmentKind>,
    /// The last block that ran.
    block: Option<usize>,
    /// What was read, in order.
    read: Vec<Read>,
    /// Who stopped, and how long the host took to see to it.
    stopped: Vec<Stopped>,
    stop_time: Duration,
}

/// Everybody's rows: in the blocks, in the head, and those that come later.
struct Stages {
    body: Stage,
    head: Stage,
    /// Each with where it goes.
    later: Vec<(SegmentKind, Group)>,
}

impl Stages {
    fn of(&mut self, kind: SegmentKind) -> &mut Stage {
        match kind {
            SegmentKind::Head => &mut self.head,
            _ => &mut self.body,
        }
    }
}

impl Pass<'_, '_> {
    /// Runs the batch.
    pub fn run(&mut self) -> Result<Ran> {
        self.streamer.begin_pass()?;
        upload_ids(self.device, self.ids.all, &self.batch.ids())?;
        self.compute()?;
        let last = self.read_last()?;
        self.tell_read()?;
        let start = Instant::now();
        let stopped = self.tell_stopped();
        let stop_s = match stopped.is_empty() {
            true => 0.0,
            false => (self.so_far.stop_time + start.elapsed()).as_secs_f64(),
        };
        Ok(Ran {
            last,
            stopped,
            stop_s,
        })
    }

    /// Whether what the pass puts on the compute stream in a stretch follows from numbers
    /// alone, but for the operations at which somebody looks: nobody stops, nothing is on its
    /// way, and every row is a generated token that goes all the way.
    fn can_be_replayed(&self) -> bool {
        if !self.arrivals.is_empty() || self.recording {
            return false;
        }
        let rows = self.batch.rows();
        let generated = generated(&self.batch.groups) == rows && self.batch.head.len() == rows;
        let is_plain = |group: &Group| {
            let session = &self.members[group.member];
            group.enter == 0 && !session.may_stop(group.positions())
        };
        generated && self.batch.groups.iter().all(is_plain)
    }

    /// The operations at which a session reads or changes something in this pass.
    fn looked_at(&self, steps: &[(SegmentKind, &Op)]) -> BTreeSet<usize> {
        let probes = self.batch.groups.iter().filter_map(|group| {
            let session = &self.members[group.member];
            let looks = session.probe.looks_at(group.positions(), session.prompt());
            looks.then_some(&session.probe)
        });
        let probes: Vec<_> = probes.collect();
        if probes.is_empty() {
            return BTreeSet::new();
        }
        let looks = |&(_, (_, op)): &(usize, &(SegmentKind, &Op))| {
            let site = match **op {
                Op::Hook { site, .. } => site,
                Op::Attend { block, .. } => Site::Pattern(block),
                _ => return false,
            };
            probes.iter().any(|probe| probe.touches(site))
        };
        let looked = steps.iter().enumerate().filter(looks);
        looked.map(|(at, _)| at).collect()
    }

    /// Puts the operations of the pass on the compute stream, stretch by stretch.
    fn compute(&mut self) -> Result<()> {
        let (device, program, blueprint) = (self.device, self.program, self.blueprint);
        let steps: Vec<_> = program.steps().collect();
        let mut stages = self.stages();
        let (can, chooses) = (self.can_be_replayed(), self.chooses());
        let looked = match can {
            true => self.looked_at(&steps),
            false => BTreeSet::new(),
        };
        let parts = |stretch: &Stretch| stretch.around(&looked);
        for Stretch { steps: part, still } in blueprint.stretches.iter().flat_map(parts) {
            // Its last operation may be to choose.
            let chooses = chooses && part.end == steps.len();
            let [start, end, rows] = [part.start, part.end, self.batch.rows()].map(|n| n as u64);
            let number = (start << 42) + (end << 20) + 2 * rows + u64::from(chooses);
            if !(can && still) {
                self.walk(&steps, part, &mut stages)?;
                continue;
            }
            // Where it is may be walked once more, or not at all.
            let (before, after) = (self.so_far.segment, steps[part.end - 1].0);
            device.replay(number, &mut || {
                self.so_far.segment = before;
                let walked = self.walk(&steps, part.clone(), &mut stages);
                walked.map_err(of_device)
            })?;
            self.so_far.segment = Some(after);
        }
        // Whoever had come to the last hook has only to choose.
        if self.enter(steps.len(), &mut stages)? && self.chooses() {
            self.sample(&stages.head)?;
        }
        match self.so_far.segment.take() {
            Some(_) => self.streamer.end_segment(),
            None => Ok(()),
        }
    }

    /// Everybody's rows, before the first operation.
    fn stages(&self) -> Stages {
        let resid = self.arena.buf(Buf::Resid, self.batch.rows());
        let head = renumber(&self.batch.head);
        let mut stages = Stages {
            body: Stage::new(&self.batch.groups, resid),
            head: Stage::new(&head, self.arena.head_resid),
            later: Vec::new(),
        };
        let first = self
            .program
            .steps()
            .take_while(|(kind, _)| *kind != SegmentKind::Head);
        let first = first.count();
        for &group in &self.batch.groups {
            match group.enter {
                0 => stages.body.enter(group),
                _ => stages.later.push((SegmentKind::Embedding, group)),
            }
        }
        for group in head {
            match group.enter <= first {
                true => stages.head.enter(group),
                false => stages.later.push((SegmentKind::Head, group)),
            }
        }
        // Who goes on in the head has nothing to do before it.
        stages
            .later
            .retain(|(kind, group)| *kind == SegmentKind::Head || group.enter <= first);
        stages
    }

    /// Runs some of the program's operations, over the rows of the batch and then over
    /// those that go through the head.
    fn walk(
        &mut self,
        steps: &[(SegmentKind, &Op)],
        range: Range<usize>,
        stages: &mut Stages,
    ) -> Result<()> {
        for at in range {
            let (kind, op) = steps[at];
            self.enter(at, stages)?;
            let stage = stages.of(kind);
            if stage.rows == 0 {
                continue;
            }
            self.begin_segment(kind, stage)?;
            self.op(stage, op)?;
            if let Op::Hook { site, buf } = *op {
                self.stop(kind, at + 1, stages)?;
                let stage = stages.of(kind);
                self.read(stage, site, self.view(stage, buf))?;
            }
            if at + 1 == steps.len() && self.chooses() {
                self.sample(&stages.head)?;
            }
        }
        Ok(())
    }

    /// One segment's operations end where the next one's begin.
    fn begin_segment(&mut self, kind: SegmentKind, stage: &Stage) -> Result<()> {
        if self.so_far.segment == Some(kind) {
            return Ok(());
        }
        match self.so_far.segment.replace(kind) {
            None => self.rope_table()?,
            Some(_) => self.streamer.end_segment()?,
        }
        if let SegmentKind::Block(block) = kind {
            for event in self.arrivals.before(block, self.so_far.block) {
                self.device.wait(Stream::Compute, event)?;
            }
            self.so_far.block = Some(block);
        }
        self.streamer
            .begin_segment(self.blueprint.segment_label(kind))?;
        if kind == SegmentKind::Head {
            let body = self.arena.buf(Buf::Resid, self.batch.rows());
            let head = self.ids.head.rows(0, stage.rows);
            self.device.gather(body, head, stage.resid(), false)?;
        }
        Ok(())
    }

    /// Has the device choose a token for every row of the head.
    fn sample(&self, head: &Stage) -> Result<()> {
        if head.rows == 0 {
            return Ok(());
        }
        let logits = self.view(head, Buf::Logits);
        let chosen = self.arena.chosen.rows(0, head.rows);
        let draws = self.ids.draws.rows(0, head.rows);
        Ok(self.device.sample(logits, draws, chosen)?)
    }

    fn rope_table(&self) -> Result<()> {
        if let Some(rope) = &self.program.rope {
            let table = self.arena.rope.rows(0, self.batch.rows());
            let frequencies = self.arena.frequencies;
            self.device
                .rope_table(self.ids.positions, frequencies, rope.scale, table)?;
        }
        Ok(())
    }

    /// Whether the device chooses the next token of some session.
    fn chooses(&self) -> bool {
        let chooses = |row: &Group| {
            let session = &self.members[row.member];
            session.samples() && session.sampling.needs_logits_alone()
        };
        self.batch.head.iter().any(chooses)
    }

    /// Reads back what tokens are chosen by: of most sessions one number.
    fn read_last(&self) -> Result<Vec<Last>> {
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
                Scores::Chosen(u32::try_from(chosen[row]).ok())
            } else {
                let mut logits = vec![0.0; view.cols];
                self.device.download(view.rows(row, 1), &mut logits)?;
                Scores::Logits(logits)
            };
            let member = group.member;
            last.push(Last { member, scores });
        }
        Ok(last)
    }

    fn view(&self, stage: &Stage, buf: Buf) -> View {
        match buf {
            Buf::Resid => stage.resid(),
            buf => self.arena.buf(buf, stage.rows),
        }
    }

    fn op(&mut self, stage: &Stage, op: &Op) -> Result<()> {
        let device = self.device;
        let weight = |id| self.blueprint.weights.one(id);
        let view = |buf| self.view(stage, buf);
        match *op {
            Op::Embed { table, to } => {
                let to = view(to);
                let (ids, numbers) = (self.ids.tokens, &self.batch.tokens);
                self.look_up(table, ids, numbers, to, false)?;
            }
            Op::EmbedPositions { table, to } => {
                let to = view(to);
                let (ids, numbers) = (self.ids.positions, &self.batch.positions);
                self.look_up(table, ids, numbers, to, true)?;
            }
            Op::Norm {
                kind,
                eps,
                width,
                weight: w,
                bias,
                from,
                to,
            } => {
                let (from, to) = (view(from).reshaped(width), view(to).reshaped(width));
                device.norm(kind, eps, from, weight(w), bias.map(weight), to)?;
            }
            Op::Linear {
                weight: w,
                order,
                bias,
                from,
                to,
            } => {
                let (from, bias, to) = (view(from), bias.map(weight), view(to));
                self.linear(stage, from, (w, order), bias, to)?;
            }
            Op::Split {
                from,
                first,
                stride,
                width,
                to,
            } => device.split(view(from), first, stride, width, view(to))?,
            Op::Rope { buf } => {
                let rope = self.program.rope.as_ref();
                let style = rope.expect("a program that rotates has a rope").style;
                let table = self.arena.rope.rows(0, stage.rows);
                device.rope(view(buf), table, self.program.dims.d_head, style)?;
            }
            Op::Attend {
                block,
                scale,
                window,
            } => self.attend(stage, block, scale, window)?,
            Op::Activate { f, from, to } => device.activate(f, view(from), view(to))?,
            Op::Gate { f, gate, up, to } => device.gate(f, view(gate), view(up), view(to))?,
            Op::Add { from, to } => device.add(view(from), view(to))?,
            Op::Experts { .. } => {
                let weights = &self.blueprint.weights;
                experts::run(device, self.arena, weights, self.streamer, op, stage)?;
            }
            Op::Hook { site, buf } => {
                self.change(stage, site, view(buf))?;
            }
        }
        Ok(())
    }

    /// A product, part by part of its matrix: each output is a product of its own.
    fn linear(
        &mut self,
        stage: &Stage,
        x: View,
        (matrix, order): (TensorId, Order),
        bias: Option<View>,
        out: View,
    ) -> Result<()> {
        for part in self.blueprint.weights.parts(matrix) {
            if let Home::Ring(visit) = part.home {
                self.streamer.need(visit)?;
            }
            let weight = Weight {
                view: part.view,
                order,
            };
            let whole = order == Order::InOut;
            let cut = |view: View| match whole {
                true => view,
                false => view.cols(part.rows.start, part.rows.len()),
            };
            for (phase, rows) in stage.phases() {
                let at = |view: View| view.rows(rows.start, rows.len());
                self.device
                    .linear(at(x), weight, bias.map(cut), cut(at(out)), phase)?;
            }
        }
        Ok(())
    }

    /// Rows of a table, by number: from memory, or read from the slow tier.
    fn look_up(
        &mut self,
        table: TensorId,
        ids: View,
        numbers: &[i32],
        to: View,
        accumulate: bool,
    ) -> Result<()> {
        let (ids, numbers) = (ids.rows(0, to.rows), &numbers[..to.rows]);
        if !self.blueprint.weights.is_read_by_row(table) {
            let table = self.blueprint.weights.one(table);
            return Ok(self.device.gather(table, ids, to, accumulate)?);
        }
        let spec = self.program.tensor(table);
        let rows = View::new(
            self.arena.table_rows.offset,
            spec.dtype,
            to.rows,
            spec.matrix().1,
        );
        self.streamer.rows(table, numbers, rows)?;
        let in_order = self.arena.row_numbers.rows(0, to.rows);
        Ok(self.device.gather(rows, in_order, to, accumulate)?)
    }
}

/// What failed, as the device tells it.
fn of_device(error: EngineError) -> DeviceError {
    match error {
        EngineError::Device(error) => error,
        other => std::io::Error::other(other).into(),
    }
}

/// Single rows gathered for the head, as groups of consecutive rows there.
fn renumber(rows: &[Group]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        match groups.last_mut() {
            Some(g) if g.is_followed_by(row) => g.rows += 1,
            _ => groups.push(Group {
                first_row: at,
                ..*row
            }),
        }
    }
    groups
}

/// Writes ids into the first elements of a view.
pub(crate) fn upload_ids(device: &dyn Device, to: View, ids: &[i32]) -> Result<()> {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    upload(device, to, &bytes)
}

/// Writes numbers into the first elements of a view.
pub(crate) fn upload_numbers(device: &dyn Device, to: View, numbers: &[f32]) -> Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    upload(device, to, &bytes)
}

fn upload(device: &dyn Device, to: View, bytes: &[u8]) -> Result<()> {
    let span = Span {
        offset: to.offset,
        bytes: bytes.len() as u64,
    };
    Ok(device.upload(Stream::Compute, span, bytes)?)
}
