//! Attention over paged keys and values.
//!
//! Consecutive rows of one session form a tile. A task is a tile with one key-value head: it
//! reads the pages once for all queries of the tile. Each query has its own range of keys and a
//! fixed order of summation: scores by the canonical dot product, softmax in lanes from its first
//! key, and values in one chain over ascending keys. Tiles therefore change the speed, but never
//! the bits.

use std::ops::Range;

use crate::{Attention, AttentionOps, KvLayer, Result, Rows, View};

use super::CpuDevice;
use super::attention_tile::{AttentionJob, AttentionOutput, Tile, TileKernel, seen};
use super::element::{Store, with_element};
use crate::check::{Mat, OpCheck};

/// Least and largest number of queries of a tile.
const TILE_QUERIES: std::ops::RangeInclusive<usize> = 6..=48;
/// Number of scores of a tile, which should stay in the second-level cache.
const TILE_SCORES: usize = 128 << 10;

/// Consecutive rows of one session.
struct SessionRun {
    sequence: usize,
    rows: Range<usize>,
    /// Union of the keys that the rows see.
    keys: Range<usize>,
}

impl AttentionOps for CpuDevice {
    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("attend");
        op.attend(q, rows, &kv, how, out)?;
        let goal = AttentionOutput::Attend {
            q: op.f32("q", q)?,
            out: op.out("out", out)?,
        };
        self.attention(op, rows, kv, how, goal, usize::MAX)
    }

    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("pattern");
        op.pattern(q, rows, &kv, how, out)?;
        let goal = AttentionOutput::Pattern {
            q: op.f32("q", q)?,
            out: op.out("out", out)?,
        };
        self.attention(op, rows, kv, how, goal, out.cols)
    }

    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("mix");
        op.mix(pattern, rows, &kv, how, out)?;
        let goal = AttentionOutput::Mix {
            pattern: op.f32("pattern", pattern)?,
            out: op.out("out", out)?,
        };
        self.attention(op, rows, kv, how, goal, pattern.cols)
    }

    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        let op = self.op("append");
        let width = kv.kv_heads.saturating_mul(kv.d_head);
        op.append(k, v, rows, &kv)?;
        let sources = [op.f32("k", k)?, op.f32("v", v)?];
        let placed = Placed::check(&op, rows, k.rows)?;
        let slots = placed.slots(&op, &kv)?;
        let base = SlabPtr(op.base.wrapping_add(kv.offset as usize));
        let run = |chunk: usize| {
            let (head, source) = (chunk / 2, sources[chunk % 2]);
            let half = kv.half_bytes() as usize * (chunk % 2);
            for (row, &(page, token)) in slots.iter().enumerate() {
                let from = source.row(row).wrapping_add(head * kv.d_head);
                let vector = (head * kv.page_tokens + token) * kv.d_head * kv.dtype.bytes();
                let to = base.at(page * kv.page_bytes as usize + half + vector);
                // Page and token were checked, so the vector lies in the layer's half of that
                // page. Each chunk has its own head and half.
                with_element!(kv.dtype, E => {
                    self.engine.run(Store::<E> { from, n: kv.d_head, to: to.cast() });
                });
            }
        };
        // Rows stay in order inside a chunk. If two rows have the same slot, the later row
        // remains.
        if k.rows * width < 1 << 13 {
            (0..2 * kv.kv_heads).for_each(run);
        } else {
            self.pool.run(2 * kv.kv_heads, &|_, chunk| run(chunk));
        }
        Ok(())
    }
}

impl CpuDevice {
    fn attention(
        &self,
        op: OpCheck,
        rows: Rows,
        kv: KvLayer,
        how: Attention,
        goal: AttentionOutput,
        keys_max: usize,
    ) -> Result<()> {
        let count = match goal {
            AttentionOutput::Attend { q, .. } | AttentionOutput::Pattern { q, .. } => q.rows,
            AttentionOutput::Mix { out, .. } => out.rows,
        };
        let placed = Placed::check(&op, rows, count)?;
        let runs = placed.runs(&op, &kv, &how, keys_max)?;
        let job = AttentionJob {
            kv,
            pages: op.base.wrapping_add(kv.offset as usize),
            tables: placed.tables,
            positions: placed.positions,
            how,
            goal,
        };
        self.run_tiles(&job, &runs);
        Ok(())
    }

    fn run_tiles(&self, job: &AttentionJob, runs: &[SessionRun]) {
        let (group, kv_heads) = (job.group(), job.kv.kv_heads);
        let mut tiles = Vec::new();
        for run in runs {
            let queries = TILE_SCORES / run.keys.len().max(1);
            let queries = queries.clamp(*TILE_QUERIES.start(), *TILE_QUERIES.end());
            let tile_rows = (queries / group).max(1);
            for start in run.rows.clone().step_by(tile_rows) {
                tiles.push((run.sequence, start..(start + tile_rows).min(run.rows.end)));
            }
        }
        // Each query head is a task of its own if there are too few tasks for the threads.
        let few = tiles.len() * kv_heads < 3 * self.threads() && self.threads() > 1;
        let heads_each = if few { 1 } else { group };
        let parts = group.div_ceil(heads_each);
        self.pool
            .run(tiles.len() * kv_heads * parts, &|thread, chunk| {
                // The last rows see the most keys. They start first, so that threads end together.
                let (sequence, rows) = tiles[tiles.len() - 1 - chunk / (kv_heads * parts)].clone();
                let kv_head = chunk / parts % kv_heads;
                let first_head = kv_head * group + chunk % parts * heads_each;
                let heads = first_head..(first_head + heads_each).min((kv_head + 1) * group);
                let tile = Tile::new(job, sequence, rows, kv_head, heads);
                let mut scratch = self.scratch(thread);
                let scratch = scratch.floats(tile.floats());
                self.engine.run(TileKernel::new(job, tile, scratch));
            });
    }
}

/// An address that threads share. Each use states why its accesses do not conflict.
#[derive(Clone, Copy)]
struct SlabPtr(*mut u8);

impl SlabPtr {
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

// SAFETY: the struct holds only an address.
unsafe impl Send for SlabPtr {}
// SAFETY: the struct holds only an address.
unsafe impl Sync for SlabPtr {}

/// Checked positions, sequences and page tables.
struct Placed {
    positions: Mat<i32>,
    sequences: Mat<i32>,
    tables: Mat<i32>,
}

impl Placed {
    fn check(op: &OpCheck, rows: Rows, count: usize) -> Result<Self> {
        op.shape("positions", rows.positions, count, 1)?;
        op.shape("sequences", rows.sequences, count, 1)?;
        Ok(Placed {
            positions: op.i32("positions", rows.positions)?,
            sequences: op.i32("sequences", rows.sequences)?,
            tables: op.i32("tables", rows.tables)?,
        })
    }

    /// Returns the session and the position of a row.
    fn row(&self, op: &OpCheck, kv: &KvLayer, row: usize) -> Result<(usize, usize)> {
        let Some(sequence) = self.sequences.index(row, 0, self.tables.rows) else {
            return op.fail(format!(
                "row {row} belongs to none of the {} sessions",
                self.tables.rows
            ));
        };
        let tokens = self.tables.cols.saturating_mul(kv.page_tokens);
        let Some(position) = self.positions.index(row, 0, tokens) else {
            return op.fail(format!(
                "the position of row {row} exceeds the {tokens} tokens of its page table"
            ));
        };
        Ok((sequence, position))
    }

    fn page(&self, op: &OpCheck, kv: &KvLayer, sequence: usize, index: usize) -> Result<usize> {
        match self.tables.index(sequence, index, kv.pages) {
            Some(page) => Ok(page),
            None => op.fail(format!(
                "page {index} of session {sequence} is not one of the {} pages",
                kv.pages
            )),
        }
    }

    /// Returns the page of each row's key and value, and the token within the page.
    fn slots(&self, op: &OpCheck, kv: &KvLayer) -> Result<Vec<(usize, usize)>> {
        (0..self.positions.rows)
            .map(|row| {
                let (sequence, position) = self.row(op, kv, row)?;
                let page = self.page(op, kv, sequence, position / kv.page_tokens)?;
                Ok((page, position % kv.page_tokens))
            })
            .collect()
    }

    /// Groups rows by session, and checks once every page that the rows read.
    fn runs(
        &self,
        op: &OpCheck,
        kv: &KvLayer,
        how: &Attention,
        keys_max: usize,
    ) -> Result<Vec<SessionRun>> {
        let mut runs: Vec<SessionRun> = Vec::new();
        for row in 0..self.positions.rows {
            let (sequence, position) = self.row(op, kv, row)?;
            op.ensure(position < keys_max, || {
                format!("row {row} at position {position} sees more than the {keys_max} keys of the pattern")
            })?;
            let keys = seen(position, how);
            match runs.last_mut() {
                Some(run) if run.sequence == sequence => {
                    run.rows.end = row + 1;
                    run.keys = run.keys.start.min(keys.start)..run.keys.end.max(keys.end);
                }
                _ => runs.push(SessionRun {
                    sequence,
                    rows: row..row + 1,
                    keys,
                }),
            }
        }
        for SessionRun { sequence, keys, .. } in &runs {
            for index in keys.start / kv.page_tokens..keys.end.div_ceil(kv.page_tokens) {
                self.page(op, kv, *sequence, index)?;
            }
        }
        Ok(runs)
    }
}
