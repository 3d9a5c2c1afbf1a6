//! Attention: which kernel takes which. Type, head and phase decide, never the number of
//! rows.

use super::args::{AttendArg, FreshArg, KvArg, MatArg, UnitsArg};
use super::kernels::Size;
use super::scratch::UNIT_KEYS;
use super::work::{Fresh, Pending, THREADS, Turn, Work, columns, elements, launch};
use super::{Card, CudaDevice};
use crate::check::{Op, overlap};
use crate::{Attention, KvLayer, Phase, Result, Rows, View};
use djinn_types::DType;

/// Threads of a block of the fast kernels, query heads that one shares keys with, and rows
/// of a prompt it takes, as the sources have it.
const FAST_THREADS: usize = 128;
const ONE_HEADS: usize = 8;
const MANY_ROWS: usize = 64;
/// Pairs that a thread rotates.
const ROPE_PAIRS: usize = 4;
/// Tiles of keys and of values, two of each, of so many tokens.
const MANY_TILES: usize = 4 * 64;

impl CudaDevice {
    fn whose(&self, op: Op, rows: Rows) -> Result<[MatArg; 3]> {
        Ok([
            self.i32(op, "positions", rows.positions)?,
            self.i32(op, "sequences", rows.sequences)?,
            self.i32(op, "tables", rows.tables)?,
        ])
    }

    pub(super) fn do_append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        let op = self.op("append");
        op.append(k, v, rows, &kv)?;
        let work = &mut *self.lock();
        let (keys, values) = (self.f32(op, "k", k)?, self.f32(op, "v", v)?);
        let whose @ [positions, sequences, tables] = self.whose(op, rows)?;
        if let Some(turn) = turn_with(work, k, v, &kv) {
            work.pending = Pending::Fresh(Box::new(Fresh {
                turn,
                keys: (k, keys),
                values: (v, values),
                rows: (rows, whose),
                kv,
            }));
            return Ok(());
        }
        self.put_pending(work)?;
        let pages = KvArg::new(self.slab.address, &kv);
        launch!(self, work, "append", elements(k); keys, values, positions, sequences, tables,
                pages, self.fault.start)
    }

    /// Rotates queries and keys and puts those into their pages.
    pub(super) fn put_fresh(&self, work: &mut Work, fresh: &Fresh) -> Result<()> {
        let (turn, [positions, sequences, tables]) = (fresh.turn, fresh.rows.1);
        let pages = KvArg::new(self.slab.address, &fresh.kv);
        // Few blocks a row: each looks up where the row's page lies.
        let pairs = (turn.x.0.cols + 2 * fresh.keys.0.cols) / 2;
        let size = columns(pairs.div_ceil(ROPE_PAIRS), turn.x.0.rows);
        launch!(self, work, "rope_append", size; turn.x.1, fresh.keys.1, fresh.values.1, turn.table.1,
                turn.interleaved, positions, sequences, tables, pages, self.fault.start)
    }

    pub(super) fn do_attend(
        &self,
        q: View,
        rows: Rows,
        kv: KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        let op = self.op("attend");
        op.attend(q, rows, &kv, how, out)?;
        let work = &mut *self.lock();
        let fresh = fresh_for(work, q, rows, &kv, how, out);
        if fresh.is_none() {
            self.put_pending(work)?;
        }
        let Some(kernel) = fast(&kv) else {
            let keys = rows.tables.cols.saturating_mul(kv.page_tokens);
            let size = self.with_scores(op, how.heads, q.rows, keys)?;
            return self.simple_attention(work, op, size, q, (rows, kv, how), out);
        };
        let [positions, sequences, tables] = self.whose(op, rows)?;
        let from = self.f32(op, "q", q)?;
        let (to, shadow) = self.out_with_shadow(work, op, out)?;
        let (pages, attend) = (KvArg::new(self.slab.address, &kv), AttendArg::new(how));
        if rows.phase == Phase::Prompt {
            let size = Size {
                blocks: [how.heads, q.rows.div_ceil(MANY_ROWS), 1],
                threads: FAST_THREADS,
                shared: MANY_TILES * kernel.width * 2,
            };
            let name = format!("attend_many_{}", kernel.name);
            return launch!(self, work, &name, size; from, positions, sequences, tables, pages,
                           attend, to, shadow, self.fault.start);
        }
        let groups = kv.kv_heads * (how.heads / kv.kv_heads).div_ceil(ONE_HEADS);
        let units = self.units(op, groups, q.rows, rows, &kv, how)?;
        let size = Size {
            blocks: [units.count as usize, groups, q.rows],
            threads: FAST_THREADS,
            shared: 0,
        };
        if work.put_keys {
            // It reads keys of earlier tokens before it waits for the kernel before it.
            work.interrupted();
        }
        work.pending = Pending::Nothing;
        let puts_keys = fresh.is_some();
        let fresh = fresh.unwrap_or(FreshArg::NONE);
        let name = format!("attend_one_{}", kernel.name);
        launch!(self, work, &name, size; from, positions, sequences, tables, pages, attend, fresh,
                to, units, shadow, self.fault.start)?;
        work.put_keys = puts_keys;
        Ok(())
    }

    /// Where what the units of a context give is left until the last of them is done.
    fn units(
        &self,
        op: Op,
        groups: usize,
        count: usize,
        rows: Rows,
        kv: &KvLayer,
        how: Attention,
    ) -> Result<UnitsArg> {
        let units = (rows.tables.cols * kv.page_tokens).div_ceil(UNIT_KEYS);
        let (parts, finished) = (self.scratch.parts_at(), self.scratch.finished_at());
        let bytes = 4 * (count * how.heads * units * (kv.d_head + 2)) as u64;
        let counters = (4 * count * groups) as u64;
        let fits = bytes <= finished - parts && counters <= self.scratch.bytes() - finished;
        op.ensure(fits, || {
            format!("{count} rows of {units} units are more than was said to come")
        })?;
        Ok(UnitsArg {
            parts: self.scratch_at(parts),
            finished: self.scratch_at(finished),
            count: units as i32,
        })
    }

    pub(super) fn do_pattern(
        &self,
        q: View,
        rows: Rows,
        kv: KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        let op = self.op("pattern");
        op.pattern(q, rows, &kv, how, out)?;
        let size = self.with_scores(op, how.heads, q.rows, out.cols)?;
        let work = &mut *self.ready()?;
        self.simple_attention(work, op, size, q, (rows, kv, how), out)
    }

    pub(super) fn do_mix(
        &self,
        pattern: View,
        rows: Rows,
        kv: KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        let op = self.op("mix");
        op.mix(pattern, rows, &kv, how, out)?;
        let size = Size {
            blocks: [how.heads, out.rows, 1],
            threads: THREADS,
            shared: 0,
        };
        let work = &mut *self.ready()?;
        self.simple_attention(work, op, size, pattern, (rows, kv, how), out)
    }

    /// The simple kernel with the name of the operation: queries or a pattern in, values or
    /// a pattern out.
    fn simple_attention(
        &self,
        work: &mut Work,
        op: Op,
        size: Size,
        from: View,
        (rows, kv, how): (Rows, KvLayer, Attention),
        out: View,
    ) -> Result<()> {
        let [positions, sequences, tables] = self.whose(op, rows)?;
        let (pages, attend) = (KvArg::new(self.slab.address, &kv), AttendArg::new(how));
        let from = self.f32(op, "from", from)?;
        let to = self.out(work, op, "out", out)?;
        launch!(self, work, op.name, size; from, positions, sequences, tables, pages, attend, to,
                self.fault.start)
    }

    /// A block for every row and head, with room for the score of every key a row could see.
    fn with_scores(&self, op: Op, heads: usize, count: usize, keys: usize) -> Result<Size> {
        let most = self.card.scores_max();
        op.ensure(keys <= most, || {
            format!("contexts of {keys} keys; this card holds the scores of {most}")
        })?;
        Ok(Size {
            blocks: [heads, count, 1],
            threads: THREADS,
            shared: 4 * keys,
        })
    }
}

impl Card {
    /// Keys that a row can see at most, of this type and in heads of this width: without
    /// fast kernels a row's scores are kept.
    pub fn keys_max(&self, dtype: DType, d_head: usize) -> usize {
        match fast_for(dtype, d_head) {
            Some(_) => usize::MAX,
            None => self.scores_max(),
        }
    }

    /// Keys of a row whose scores are kept: where no fast kernel is, and of every pattern
    /// that is looked at.
    pub fn scores_max(&self) -> usize {
        self.kernels().shared_max / 4
    }
}

/// The rotation of queries that is held back with that of keys, if those are these keys.
fn turn_with(work: &Work, k: View, v: View, kv: &KvLayer) -> Option<Turn> {
    let Pending::Turns(turns) = &work.pending else {
        return None;
    };
    let [a, b] = turns[..] else { return None };
    let (q, key) = if b.x.0 == k { (a, b) } else { (b, a) };
    let same = q.table.0 == key.table.0 && q.interleaved == key.interleaved;
    let heads = q.d_head == kv.d_head && key.d_head == kv.d_head && kv.d_head.is_multiple_of(2);
    let rows = key.x.0 == k && q.x.0.rows == k.rows;
    let apart = [(q.x.0, k), (q.x.0, v), (k, v)];
    let apart = apart.into_iter().all(|(a, b)| !overlap(a, b));
    (same && heads && rows && apart).then_some(q)
}

/// The rotations and keys that are held back, if the kernel that attends can see to them:
/// queries of generated tokens, with a block for all that share a head of keys.
fn fresh_for(
    work: &Work,
    q: View,
    rows: Rows,
    kv: &KvLayer,
    how: Attention,
    out: View,
) -> Option<FreshArg> {
    let Pending::Fresh(fresh) = &work.pending else {
        return None;
    };
    let theirs = fresh.turn.x.0 == q && fresh.rows.0 == rows && fresh.kv == *kv;
    let read = [fresh.keys.0, fresh.values.0, fresh.turn.table.0];
    let apart = read.into_iter().all(|view| !overlap(view, out));
    let one = rows.phase == Phase::Generated && how.heads / kv.kv_heads <= ONE_HEADS;
    (theirs && apart && one && fast(kv).is_some()).then_some(FreshArg {
        keys: fresh.keys.1,
        values: fresh.values.1,
        table: fresh.turn.table.1,
        interleaved: fresh.turn.interleaved,
    })
}

/// A kernel for a type and a width of heads.
struct Fast {
    name: &'static str,
    /// Elements of a head at most.
    width: usize,
}

/// The fast kernels for these pages, if there are any.
fn fast(kv: &KvLayer) -> Option<Fast> {
    let aligned = kv.offset.is_multiple_of(16) && kv.page_bytes.is_multiple_of(16);
    let fits = aligned && kv.page_tokens.is_power_of_two();
    fast_for(kv.dtype, kv.d_head).filter(|_| fits)
}

/// The fast kernels for keys of this type and heads of this width, if there are any.
fn fast_for(dtype: DType, d_head: usize) -> Option<Fast> {
    if !d_head.is_multiple_of(8) {
        return None;
    }
    let (name, width) = match (dtype, d_head) {
        (DType::F16, ..=64) => ("f16_64", 64),
        (DType::F16, ..=128) => ("f16_128", 128),
        (DType::Bf16, ..=64) => ("bf16_64", 64),
        (DType::Bf16, ..=128) => ("bf16_128", 128),
        _ => return None,
    };
    Some(Fast { name, width })
}
