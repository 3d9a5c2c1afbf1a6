//! One trip of a batch of sessions through the model.

use djinn_device::{
    Attention, Device, Edit as DeviceEdit, Order, Phase, Span, Stream, View, Weight,
};
use djinn_model::{
    Weights,
    hook::Site,
    program::{Buf, Op, Program, SegmentKind, TensorId},
};

use crate::{
    Blueprint, Change, EngineError,
    arena::Arena,
    batch::{Batch, Group},
    edit::Edit,
    experts,
    session::Session,
    stream::{Chunk, Streamer},
    weights::Home,
};

type Result<T> = std::result::Result<T, EngineError>;

/// The logits after a member's last token.
pub(crate) struct LastLogits {
    pub member: usize,
    pub logits: Vec<f32>,
}

/// Walks the program over one batch.
pub(crate) struct Pass<'a, 's> {
    pub device: &'a dyn Device,
    pub program: &'a Program,
    pub blueprint: &'a Blueprint,
    pub arena: &'a Arena,
    pub weights: &'a dyn Weights,
    pub streamer: &'a mut Streamer,
    pub members: &'a mut [&'s mut Session],
}

/// The rows that operations now run over: the whole batch, or those that go through
/// the head.
struct Stage {
    rows: usize,
    groups: Vec<Group>,
    /// Where the residual lies.
    resid: View,
}

impl Pass<'_, '_> {
    /// Runs the batch and returns the logits of every session that will sample.
    pub fn run(&mut self, batch: &Batch) -> Result<Vec<LastLogits>> {
        self.upload_batch(batch)?;
        let program = self.program;
        let stage = Stage {
            rows: batch.rows(),
            groups: batch.groups.clone(),
            resid: self.arena.buf(Buf::Resid, batch.rows()),
        };
        self.segment(&stage, SegmentKind::Embedding, &program.embed)?;
        for (block, ops) in program.blocks.iter().enumerate() {
            self.segment(&stage, SegmentKind::Block(block), ops)?;
        }
        self.head(batch)
    }

    /// Runs the operations of one segment.
    fn segment(&mut self, stage: &Stage, kind: SegmentKind, ops: &[Op]) -> Result<()> {
        let label = self.blueprint.segment_label(kind);
        self.streamer.begin_segment(label);
        for op in ops {
            self.op(stage, op)?;
        }
        self.streamer.end_segment();
        Ok(())
    }

    fn upload_batch(&self, batch: &Batch) -> Result<()> {
        let (arena, rows) = (self.arena, batch.rows());
        upload_ids(self.device, arena.tokens, &batch.tokens)?;
        upload_ids(self.device, arena.positions, &batch.positions)?;
        upload_ids(self.device, arena.sequences, &batch.sequences)?;
        upload_ids(self.device, arena.tables, &batch.tables)?;
        if let Some(rope) = &self.program.rope {
            let (positions, table) = (arena.positions.rows(0, rows), arena.rope.rows(0, rows));
            self.device
                .rope_table(positions, arena.frequencies, rope.scale, table)?;
        }
        Ok(())
    }

    /// Takes the rows whose logits are wanted through the head, if there are any.
    fn head(&mut self, batch: &Batch) -> Result<Vec<LastLogits>> {
        let rows: Vec<Group> = batch
            .groups
            .iter()
            .flat_map(|group| self.wanted_rows(group))
            .collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let program = self.program;
        let ids: Vec<i32> = rows.iter().map(|row| row.first_row as i32).collect();
        upload_ids(self.device, self.arena.head_ids, &ids)?;
        let stage = Stage {
            rows: rows.len(),
            groups: renumber(&rows),
            resid: self.arena.head_resid.rows(0, rows.len()),
        };
        let resid = self.arena.buf(Buf::Resid, batch.rows());
        let ids = self.arena.head_ids.rows(0, rows.len());
        self.device.gather(resid, ids, stage.resid, false)?;
        self.segment(&stage, SegmentKind::Head, &program.head)?;
        self.read_last(&stage)
    }

    /// The rows of a group that go through the head, one by one.
    fn wanted_rows(&self, group: &Group) -> Vec<Group> {
        let session = &self.members[group.member];
        let row = |i: usize| Group {
            first_row: group.first_row + i,
            rows: 1,
            position: group.position + i,
            ..*group
        };
        let wanted = |row: &Group| {
            let sampled = session.samples() && row.position + 1 == session.tokens.len();
            let captured =
                session.probe.captures_head() && session.probe.reads(row.position, session.prompt);
            sampled || captured
        };
        (0..group.rows).map(row).filter(wanted).collect()
    }

    fn read_last(&self, stage: &Stage) -> Result<Vec<LastLogits>> {
        let mut last = Vec::new();
        let view = self.view(stage, Buf::Logits);
        for group in &stage.groups {
            let session = &self.members[group.member];
            let end = group.position + group.rows;
            if session.samples() && end == session.tokens.len() {
                let row = group.first_row + group.rows - 1;
                let mut logits = vec![0.0; view.cols];
                self.device.download(view.rows(row, 1), &mut logits)?;
                last.push(LastLogits {
                    member: group.member,
                    logits,
                });
            }
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
                self.look_up(table, self.arena.tokens, to, false)?;
            }
            Op::EmbedPositions { table, to } => {
                let to = view(to);
                self.look_up(table, self.arena.positions, to, true)?;
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
                self.linear(from, w, order, bias, to)?;
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
                experts::run(device, self.arena, weights, self.streamer, op, stage.rows)?;
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
        x: View,
        matrix: TensorId,
        order: Order,
        bias: Option<View>,
        out: View,
    ) -> Result<()> {
        let parts = self.blueprint.weights.parts(matrix);
        for part in parts {
            if let Home::Ring(visit) = part.home {
                self.streamer.need(visit)?;
            }
            let weight = Weight {
                view: part.view,
                order,
            };
            if parts.len() == 1 {
                self.device.linear(x, weight, bias, out, Phase::Prompt)?;
            } else {
                let (first, count) = (part.rows.start, part.rows.len());
                let bias = bias.map(|bias| bias.cols(first, count));
                self.device
                    .linear(x, weight, bias, out.cols(first, count), Phase::Prompt)?;
            }
        }
        Ok(())
    }

    /// Rows of a table, by number: from memory, or read from the slow tier.
    fn look_up(&mut self, table: TensorId, ids: View, to: View, accumulate: bool) -> Result<()> {
        let ids = ids.rows(0, to.rows);
        if !self.blueprint.weights.is_read_by_row(table) {
            let table = self.blueprint.weights.one(table);
            return Ok(self.device.gather(table, ids, to, accumulate)?);
        }
        let mut numbers = vec![0; to.rows];
        self.device.download_ids(ids, &mut numbers)?;
        let spec = self.program.tensor(table);
        let rows = View::new(
            self.arena.table_rows.offset,
            spec.dtype,
            to.rows,
            spec.matrix().1,
        );
        let extent = self.weights.extent(table);
        let row_bytes = (rows.cols * spec.dtype.bytes()) as u64;
        let label = self.blueprint.rows_label();
        let read = numbers.iter().enumerate().map(|(row, &number)| Chunk {
            file: extent.file,
            from: extent.offset + number as u64 * row_bytes,
            to: rows.rows(row, 1).span(),
            label,
        });
        self.streamer.rows(read.collect())?;
        let in_order = self.arena.row_numbers.rows(0, to.rows);
        Ok(self.device.gather(rows, in_order, to, accumulate)?)
    }

    /// Attention, taken apart only for sessions that look at its pattern.
    fn attend(
        &mut self,
        stage: &Stage,
        block: usize,
        scale: f32,
        window: Option<usize>,
    ) -> Result<()> {
        let how = Attention {
            heads: self.program.dims.heads,
            scale,
            window,
        };
        let rows = self.arena.rows(stage.rows);
        let kv = self.arena.kv(block);
        let [q, k, v, z] = [Buf::Q, Buf::K, Buf::V, Buf::Z].map(|buf| self.view(stage, buf));
        self.device.append(k, v, rows, kv)?;

        let site = Site::Pattern(block);
        let touched = |group: &&Group| self.members[group.member].probe.touches(site);
        let open: Vec<Group> = stage.groups.iter().filter(touched).copied().collect();
        if open.len() < stage.groups.len() {
            self.device.attend(q, rows, kv, how, z)?;
        }
        for group in open {
            for first in (0..group.rows).step_by(Arena::PATTERN_ROWS) {
                let part = Group {
                    first_row: group.first_row + first,
                    rows: Arena::PATTERN_ROWS.min(group.rows - first),
                    position: group.position + first,
                    ..group
                };
                let at = |view: View| view.rows(part.first_row, part.rows);
                let rows = rows.rows(part.first_row, part.rows);
                let keys = part.position + part.rows;
                let pattern = View::new(
                    self.arena.pattern.offset,
                    self.arena.pattern.dtype,
                    part.rows * how.heads,
                    keys,
                );
                self.device.pattern(at(q), rows, kv, how, pattern)?;
                self.hook_pattern(site, part, pattern)?;
                self.device.mix(pattern, rows, kv, how, at(z))?;
            }
        }
        Ok(())
    }

    /// Edits and captures of a pattern, laid out `[row, head]` by keys.
    fn hook_pattern(&mut self, site: Site, part: Group, pattern: View) -> Result<()> {
        let heads = self.program.dims.heads;
        let device = self.device;
        let session = &mut *self.members[part.member];
        for i in 0..part.rows {
            let position = part.position + i;
            let row = pattern.rows(i * heads, heads);
            for edit in session.probe.edits(site) {
                if edit.positions.contains(position, session.prompt) {
                    match edit.change {
                        Change::Scale(factor) => device.edit(row, DeviceEdit::Scale(factor))?,
                        Change::Zero => device.edit(row, DeviceEdit::Zero)?,
                        _ => unreachable!("refused when the edit was bound"),
                    }
                }
            }
            if session.probe.captures(site) && session.probe.reads(position, session.prompt) {
                let keys = position + 1;
                let mut data = vec![0.0; heads * keys];
                device.download(row.cols(0, keys), &mut data)?;
                session.captured.push_pattern(site, keys, data);
            }
        }
        Ok(())
    }

    /// Edits, then captures, for each session that asked for them here.
    fn hook(&mut self, stage: &Stage, site: Site, at: View) -> Result<()> {
        for group in &stage.groups {
            if !self.members[group.member].probe.touches(site) {
                continue;
            }
            let (device, operand) = (self.device, self.arena.operand);
            let session = &mut *self.members[group.member];
            for edit in session.probe.edits(site) {
                let prompt = session.prompt;
                for run in runs(group, |p| edit.positions.contains(p, prompt)) {
                    let first = edit.positions.ordinal(run.position, prompt);
                    let rows = at.rows(run.first_row, run.rows);
                    apply(device, operand, edit, first, rows)?;
                }
            }
            if session.probe.captures(site) {
                let prompt = session.prompt;
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
fn runs(group: &Group, selected: impl Fn(usize) -> bool) -> Vec<Group> {
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
