//! Attention, with captures and edits of its pattern.

use djinn_device::{Attention, KvLayer, Phase, Qkv, Rotation, Rows, View};
use djinn_kv::KvRegion;
use djinn_model::{Site, program::Buf};

use super::{
    active_rows::ActiveRows,
    apply_edits::{on_device, runs},
    pass::Pass,
};
use crate::{EngineError, executor::batch::RowSpan};

/// Attention of one block in a pass.
#[derive(Clone, Copy)]
struct AttentionLayer {
    block: usize,
    site: Site,
    kv: KvLayer,
    how: Attention,
    q: View,
    z: View,
}

impl Pass<'_> {
    /// Appends keys and values to the KV cache, and attends for every row. The pattern is computed
    /// separately only where a session captures or edits it, and values are mixed again only
    /// where a session edited the pattern.
    pub(super) fn attend(
        &mut self,
        stage: &ActiveRows,
        block: usize,
        scale: f32,
        window: Option<usize>,
        rotation: Option<Rotation>,
    ) -> Result<(), EngineError> {
        let [q, k, v, z] = [Buf::Q, Buf::K, Buf::V, Buf::Z].map(|buf| self.view(stage, buf));
        self.wait_for_slices(block)?;
        let layer = AttentionLayer {
            block,
            site: Site::Pattern(block),
            kv: self.kv_layer(block),
            how: Attention {
                heads: self.program.dims.heads,
                scale,
                window,
            },
            q,
            z,
        };
        for (phase, at) in stage.runs() {
            let part = |view: View| view.rows(at.start, at.len());
            let rows = self.rows(block, phase, at.start, at.len());
            let (kv, how, out) = (layer.kv, layer.how, part(z));
            let [q, k, v] = [q, k, v].map(part);
            if let Some(rotation) = rotation {
                let rotation = Rotation {
                    table: part(rotation.table),
                    ..rotation
                };
                let qkv = Qkv { q, k, v };
                self.device
                    .rope_append_attend(qkv, rotation, rows, kv, how, out)?;
            } else {
                self.device.append(k, v, rows, kv)?;
                self.device.attend(q, rows, kv, how, out)?;
            }
        }
        for group in &stage.groups {
            let session = &self.members[group.member];
            let (probe, prompt) = (&session.probe, session.prompt());
            if !probe.touches(layer.site) {
                continue;
            }
            let looks =
                |p| probe.reads(layer.site, p, prompt) || probe.changes_at(layer.site, p, prompt);
            for run in runs(group, looks) {
                self.take_apart(layer, run)?;
            }
        }
        self.copy_next_slices(block)
    }

    /// Returns the positions, sequences and block tables of some rows.
    fn rows(&self, block: usize, phase: Phase, first: usize, count: usize) -> Rows {
        Rows {
            positions: self.ids.positions,
            sequences: self.ids.sequences,
            tables: self.ids.tables[KvRegion::half_of(block)],
            phase,
        }
        .rows(first, count)
    }

    /// Computes the pattern of a run of rows, a few at a time, and edits and captures it.
    fn take_apart(&mut self, layer: AttentionLayer, run: RowSpan) -> Result<(), EngineError> {
        let together = self.arena.pattern.rows / layer.how.heads;
        for first in (0..run.rows).step_by(together) {
            let part = RowSpan {
                first_row: run.first_row + first,
                rows: together.min(run.rows - first),
                position: run.position + first,
                ..run
            };
            let pattern = View::new(
                self.arena.pattern.offset,
                self.arena.pattern.dtype,
                part.rows * layer.how.heads,
                part.position + part.rows,
            );
            let rows = self.rows(layer.block, part.phase, part.first_row, part.rows);
            let q = layer.q.rows(part.first_row, part.rows);
            self.device.pattern(q, rows, layer.kv, layer.how, pattern)?;
            self.edit_pattern(layer, part, pattern)?;
            self.capture_pattern(layer.site, part, pattern)?;
        }
        Ok(())
    }

    /// Edits the patterns of selected rows, and mixes the values of these rows again.
    fn edit_pattern(
        &self,
        layer: AttentionLayer,
        part: RowSpan,
        pattern: View,
    ) -> Result<(), EngineError> {
        let heads = layer.how.heads;
        let session = &self.members[part.member];
        let (probe, prompt) = (&session.probe, session.prompt());
        for run in runs(&part, |p| probe.changes_at(layer.site, p, prompt)) {
            let first = run.first_row - part.first_row;
            let changed = pattern.rows(first * heads, run.rows * heads);
            for i in 0..run.rows {
                let row = changed.rows(i * heads, heads);
                let selected = |p: usize| {
                    let changes = probe.changes(layer.site);
                    changes.filter(move |edit| edit.positions.contains(p, prompt))
                };
                for edit in selected(run.position + i) {
                    let change = || unreachable!("edits of a pattern have no operand");
                    let change = on_device(&edit.change, change);
                    // The columns of an edit of a pattern are heads, which are rows here.
                    for heads in &edit.columns {
                        self.device
                            .edit(row.rows(heads.start, heads.len()), change)?;
                    }
                }
            }
            let rows = self.rows(layer.block, run.phase, run.first_row, run.rows);
            let z = layer.z.rows(run.first_row, run.rows);
            self.device.mix(changed, rows, layer.kv, layer.how, z)?;
        }
        Ok(())
    }

    /// Captures patterns, laid out `[row, head]` by keys.
    fn capture_pattern(
        &mut self,
        site: Site,
        part: RowSpan,
        pattern: View,
    ) -> Result<(), EngineError> {
        let heads = self.program.dims.heads;
        let session = &mut self.members[part.member];
        let prompt = session.prompt();
        let Some(capture) = session.probe.capture(site) else {
            return Ok(());
        };
        for i in 0..part.rows {
            let position = part.position + i;
            if capture.positions.contains(position, prompt) {
                let keys = position + 1;
                let row = pattern.rows(i * heads, heads).cols(0, keys);
                let mut read = Vec::new();
                for some in &capture.columns {
                    let mut data = vec![0.0; some.len() * keys];
                    self.device
                        .download(row.rows(some.start, some.len()), &mut data)?;
                    read.extend(data);
                }
                session.captured.push_pattern(site, keys, read);
            }
        }
        Ok(())
    }
}
