//! One trip of a batch of sessions through the model.

mod attention;
mod hooks;

use std::ops::Range;

use djinn_device::{Device, DeviceError, Event, Order, Phase, Span, Stream, View, Weight};
use djinn_model::program::{Buf, Op, Program, SegmentKind, TensorId};

use crate::{
    Blueprint, EngineError,
    arena::{Arena, Ids},
    batch::{Batch, Group, generated, phases},
    experts,
    pager::Arrivals,
    session::Session,
    stream::Streamer,
    weights::Home,
};

type Result<T> = std::result::Result<T, EngineError>;

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
    pub members: &'a mut [&'s mut Session],
    pub batch: &'a Batch,
    pub ids: Ids,
    /// Pages that are still on their way.
    pub arrivals: &'a Arrivals<Event>,
    /// Whether what happens is put on record.
    pub recording: bool,
}

/// The rows that operations now run over: the whole batch, or those that go through
/// the head.
pub(crate) struct Stage {
    pub rows: usize,
    /// How many of them, the first ones, are of generated tokens.
    pub generated: usize,
    groups: Vec<Group>,
    /// Where the residual lies.
    resid: View,
}

impl Stage {
    fn new(groups: Vec<Group>, resid: View) -> Self {
        let rows = groups.iter().map(|group| group.rows).sum();
        Stage {
            rows,
            generated: generated(&groups),
            groups,
            resid: resid.rows(0, rows),
        }
    }

    /// The rows of each phase.
    fn phases(&self) -> impl Iterator<Item = (Phase, Range<usize>)> {
        phases(self.generated, self.rows)
    }
}

impl Pass<'_, '_> {
    /// Runs the batch and returns what every session that will sample does so by.
    pub fn run(&mut self) -> Result<Vec<Last>> {
        self.streamer.begin_pass()?;
        upload_ids(self.device, self.ids.all, &self.batch.ids())?;
        self.compute()?;
        self.read_last()
    }

    /// Whether what the pass puts on the compute stream in a stretch follows from numbers
    /// alone: nobody looks, nothing is on its way, and every row is a generated token.
    fn can_be_replayed(&self) -> bool {
        if !self.arrivals.is_empty() {
            return false;
        }
        let rows = self.batch.rows();
        let generated = generated(&self.batch.groups) == rows && self.batch.head.len() == rows;
        let watched = self.recording || self.members.iter().any(|m| !m.probe.is_empty());
        generated && !watched
    }

    /// Puts the operations of the pass on the compute stream, stretch by stretch.
    fn compute(&mut self) -> Result<()> {
        let (device, program, blueprint) = (self.device, self.program, self.blueprint);
        let steps: Vec<_> = program.steps().collect();
        let resid = self.arena.buf(Buf::Resid, self.batch.rows());
        let body = Stage::new(self.batch.groups.clone(), resid);
        let head = self.head();
        let (can, chooses) = (self.can_be_replayed(), self.chooses());
        for (index, stretch) in (0u64..).zip(&blueprint.stretches) {
            // Its last operation may be to choose.
            let chooses = chooses && stretch.steps.end == steps.len();
            let rows = self.batch.rows() as u64;
            let number = (index << 32) + 2 * rows + u64::from(chooses);
            let number = (can && stretch.still).then_some(number);
            let mut walk = || self.walk(&steps, stretch.steps.clone(), [&body, &head]);
            match number {
                Some(number) => device.replay(number, &mut || walk().map_err(of_device))?,
                None => walk()?,
            }
        }
        self.streamer.end_segment()
    }

    /// Runs some of the program's operations, over the rows of the batch and then over
    /// those that go through the head.
    fn walk(
        &mut self,
        steps: &[(SegmentKind, &Op)],
        range: Range<usize>,
        [body, head]: [&Stage; 2],
    ) -> Result<()> {
        for at in range {
            let (kind, op) = steps[at];
            let is_head = kind == SegmentKind::Head;
            let stage = if is_head { head } else { body };
            if stage.rows == 0 {
                break;
            }
            if at == 0 {
                self.rope_table()?;
            }
            if at == 0 || steps[at - 1].0 != kind {
                self.begin_segment(kind)?;
                if is_head {
                    self.device
                        .gather(body.resid, self.ids.head, head.resid, false)?;
                }
            }
            self.op(stage, op)?;
            if at + 1 == steps.len() && self.chooses() {
                self.sample(stage)?;
            }
        }
        Ok(())
    }

    /// One segment's operations end where the next one's begin.
    fn begin_segment(&mut self, kind: SegmentKind) -> Result<()> {
        if kind != SegmentKind::Embedding {
            self.streamer.end_segment()?;
        }
        if let SegmentKind::Block(block) = kind {
            for event in self.arrivals.before(block) {
                self.device.wait(Stream::Compute, event)?;
            }
        }
        let label = self.blueprint.segment_label(kind);
        self.streamer.begin_segment(label)
    }

    /// Has the device choose a token for every row of the head.
    fn sample(&self, head: &Stage) -> Result<()> {
        let logits = self.view(head, Buf::Logits);
        let chosen = self.arena.chosen.rows(0, head.rows);
        Ok(self.device.sample(logits, self.ids.draws, chosen)?)
    }

    /// The rows whose logits are wanted.
    fn head(&self) -> Stage {
        Stage::new(renumber(&self.batch.head), self.arena.head_resid)
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
        let stage = &self.head();
        let mut chosen = vec![0; stage.rows];
        if self.chooses() {
            let ids = self.arena.chosen.rows(0, stage.rows);
            self.device.download_ids(ids, &mut chosen)?;
        }
        let view = self.view(stage, Buf::Logits);
        let mut last = Vec::new();
        for group in &stage.groups {
            let session = &self.members[group.member];
            let end = group.position + group.rows;
            if !session.samples() || end != session.tokens.len() {
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
            Buf::Resid => stage.resid,
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
                let numbers = &self.batch.tokens;
                self.look_up(table, self.ids.tokens, numbers, to, false)?;
            }
            Op::EmbedPositions { table, to } => {
                let to = view(to);
                let numbers = &self.batch.positions;
                self.look_up(table, self.ids.positions, numbers, to, true)?;
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
                let at = view(buf);
                self.hook(stage, site, at)?;
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
            Some(g) if g.member == row.member && g.position + g.rows == row.position => g.rows += 1,
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
