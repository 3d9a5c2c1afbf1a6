//! Attention, and the choice of its kernel. The type of the keys, the width of a head and the
//! phase decide the bits. The number of rows chooses between kernels that give the same bits.

use djinn_types::DType;

use super::CudaDevice;
use super::args::{AttendArg, KvArg, MatArg, RotateArg, UnitsArg};
use super::card::Card;
use super::kernels::LaunchSize;
use super::launch::{THREADS, columns, elements, launch};
use super::prefill::PrefillShape;
use super::row_ops::interleaved;
use super::scratch::UNIT_KEYS;
use super::shadow::LaunchState;
use crate::check::{OpCheck, overlap};
use crate::{Attention, AttentionOps, KvLayer, Phase, Qkv, Result, Rotation, Rows, View};

/// Threads of a decode block, as in the CUDA sources.
const DECODE_THREADS: usize = 128;
/// Query heads that share the keys of a decode block, as in the CUDA sources.
const DECODE_HEADS: usize = 8;
/// Pairs that a thread rotates.
const ROPE_PAIRS: usize = 4;

impl AttentionOps for CudaDevice {
    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        let op = self.op("append");
        op.append(k, v, rows, &kv)?;
        let state = &mut *self.state();
        let (keys, values) = (self.f32(op, "k", k)?, self.f32(op, "v", v)?);
        let [positions, sequences, tables] = self.row_args(op, rows)?;
        let pages = KvArg::new(self.slab.address(), &kv);
        launch!(self, state, "append", elements(k); keys, values, positions, sequences, tables,
                pages, self.fault.start)
    }

    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.attend_with(&mut self.state(), q, (rows, kv, how), out, None)
    }

    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("pattern");
        op.pattern(q, rows, &kv, how, out)?;
        let size = self.with_scores(op, how.heads, q.rows, out.cols)?;
        self.simple_attention(&mut self.state(), op, size, q, (rows, kv, how), out)
    }

    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("mix");
        op.mix(pattern, rows, &kv, how, out)?;
        let size = LaunchSize {
            blocks: [how.heads, out.rows, 1],
            threads: THREADS,
            shared: 0,
        };
        self.simple_attention(&mut self.state(), op, size, pattern, (rows, kv, how), out)
    }
}

/// Queries and keys that are not rotated yet, and keys and values that are not written into their
/// pages yet.
pub(super) struct Unrotated {
    qkv: Qkv,
    rotation: Rotation,
    rows: Rows,
    kv: KvLayer,
    q: MatArg,
    arg: RotateArg,
    row_args: [MatArg; 3],
}

impl CudaDevice {
    fn row_args(&self, op: OpCheck, rows: Rows) -> Result<[MatArg; 3]> {
        Ok([
            self.i32(op, "positions", rows.positions)?,
            self.i32(op, "sequences", rows.sequences)?,
            self.i32(op, "tables", rows.tables)?,
        ])
    }

    /// Checks the operands of a rotation and an append, and returns them if one kernel can do
    /// both.
    pub(super) fn unrotated(
        &self,
        state: &mut LaunchState,
        qkv: Qkv,
        rotation: Rotation,
        rows: Rows,
        kv: KvLayer,
    ) -> Result<Option<Unrotated>> {
        let Qkv { q, k, v } = qkv;
        let apart = [(q, k), (q, v), (k, v)];
        let apart = apart.into_iter().all(|(a, b)| !overlap(a, b));
        let heads = rotation.d_head == kv.d_head && kv.d_head.is_multiple_of(2);
        if !(apart && heads && q.rows == k.rows) {
            return Ok(None);
        }
        let op = self.op("rope");
        for x in [q, k] {
            op.rope(x, rotation.table, rotation.d_head)?;
        }
        self.op("append").append(k, v, rows, &kv)?;
        let table = self.f32(op, "table", rotation.table)?;
        let (q, keys) = (self.out(state, op, "q", q)?, self.out(state, op, "k", k)?);
        let arg = RotateArg {
            keys,
            values: self.f32(op, "v", v)?,
            table,
            interleaved: interleaved(rotation),
        };
        Ok(Some(Unrotated {
            qkv,
            rotation,
            rows,
            kv,
            q,
            arg,
            row_args: self.row_args(op, rows)?,
        }))
    }

    /// Launches the kernel that rotates queries and keys and appends keys and values.
    pub(super) fn rotate_and_append(
        &self,
        state: &mut LaunchState,
        unrotated: &Unrotated,
    ) -> Result<()> {
        let (arg, [positions, sequences, tables]) = (unrotated.arg, unrotated.row_args);
        let Qkv { q, k, .. } = unrotated.qkv;
        let pages = KvArg::new(self.slab.address(), &unrotated.kv);
        // Uses few blocks per row, because each block looks up the page of its row.
        let pairs = (q.cols + 2 * k.cols) / 2;
        let size = columns(pairs.div_ceil(ROPE_PAIRS), q.rows);
        launch!(self, state, "rope_append", size; unrotated.q, arg.keys, arg.values, arg.table,
                arg.interleaved, positions, sequences, tables, pages, self.fault.start)
    }

    /// Launches attention. The decode kernel also rotates and appends, if `rotate` is present.
    pub(super) fn attend_with(
        &self,
        state: &mut LaunchState,
        q: View,
        (rows, kv, how): (Rows, KvLayer, Attention),
        out: View,
        rotate: Option<RotateArg>,
    ) -> Result<()> {
        let op = self.op("attend");
        op.attend(q, rows, &kv, how, out)?;
        let Some(kernel) = fast(&kv) else {
            let keys = rows.tables.cols.saturating_mul(kv.page_tokens);
            let size = self.with_scores(op, how.heads, q.rows, keys)?;
            return self.simple_attention(state, op, size, q, (rows, kv, how), out);
        };
        let [positions, sequences, tables] = self.row_args(op, rows)?;
        let from = self.f32(op, "q", q)?;
        let to = self.out(state, op, "out", out)?;
        let shadow = self.shadow_for(state, out);
        let (pages, attend) = (KvArg::new(self.slab.address(), &kv), AttendArg::new(how));
        if rows.phase == Phase::Prompt {
            let (shared, multiprocessors) =
                (self.card.kernels().shared_max, self.card.multiprocessors());
            let shape =
                PrefillShape::of([how.heads, q.rows, kernel.width], shared, multiprocessors);
            let PrefillShape { size, stages } = shape;
            return match stages {
                None => {
                    let name = format!("attend_prefill_{}", kernel.name);
                    launch!(self, state, &name, size; from, positions, sequences, tables, pages,
                            attend, to, shadow, self.fault.start)
                }
                Some(stages) => {
                    let name = format!("attend_prefill_few_{}", kernel.name);
                    launch!(self, state, &name, size; from, positions, sequences, tables, pages,
                            attend, to, shadow, stages as i32, self.fault.start)
                }
            };
        }
        let groups = kv.kv_heads * (how.heads / kv.kv_heads).div_ceil(DECODE_HEADS);
        let units = self.units(op, groups, q.rows, rows, &kv, how)?;
        let size = LaunchSize {
            blocks: [units.count as usize, groups, q.rows],
            threads: DECODE_THREADS,
            shared: 0,
        };
        if state.wrote_keys {
            // The decode kernel reads keys of earlier tokens before it waits for the previous
            // kernel, and the previous kernel has just written some keys.
            state.interrupt();
        }
        let writes_keys = rotate.is_some();
        let rotate = rotate.unwrap_or(RotateArg::NONE);
        let name = format!("attend_decode_{}", kernel.name);
        launch!(self, state, &name, size; from, positions, sequences, tables, pages, attend, rotate,
                to, units, shadow, self.fault.start)?;
        state.wrote_keys = writes_keys;
        Ok(())
    }

    /// Scratch memory for the partial results of a context's units. The last unit combines them.
    fn units(
        &self,
        op: OpCheck,
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
            format!(
                "{count} rows with {units} units of keys exceed the pass limits that the device was opened with"
            )
        })?;
        Ok(UnitsArg {
            parts: self.scratch_at(parts),
            finished: self.scratch_at(finished),
            count: units as i32,
        })
    }

    /// Launches the simple kernel that has the name of the operation. Its input is queries or a
    /// pattern, and its output is values or a pattern.
    fn simple_attention(
        &self,
        state: &mut LaunchState,
        op: OpCheck,
        size: LaunchSize,
        from: View,
        (rows, kv, how): (Rows, KvLayer, Attention),
        out: View,
    ) -> Result<()> {
        let [positions, sequences, tables] = self.row_args(op, rows)?;
        let (pages, attend) = (KvArg::new(self.slab.address(), &kv), AttendArg::new(how));
        let from = self.f32(op, "from", from)?;
        let to = self.out(state, op, "out", out)?;
        launch!(self, state, op.name, size; from, positions, sequences, tables, pages, attend, to,
                self.fault.start)
    }

    /// Launch size with a block for every row and head, and shared memory for the score of
    /// every key that a row may see.
    fn with_scores(
        &self,
        op: OpCheck,
        heads: usize,
        count: usize,
        keys: usize,
    ) -> Result<LaunchSize> {
        let most = self.card.scores_max();
        op.ensure(keys <= most, || {
            format!("a context of {keys} keys exceeds this card's limit of {most}; lower --context")
        })?;
        Ok(LaunchSize {
            blocks: [heads, count, 1],
            threads: THREADS,
            shared: 4 * keys,
        })
    }
}

impl Card {
    /// Largest number of keys that a row can attend to, for keys of this type and heads of
    /// this width. Without a fast kernel a block keeps the scores of all keys.
    pub fn keys_max(&self, dtype: DType, d_head: usize) -> usize {
        match fast_for(dtype, d_head) {
            Some(_) => usize::MAX,
            None => self.scores_max(),
        }
    }

    /// Largest number of keys that have their scores in a block's shared memory.
    pub fn scores_max(&self) -> usize {
        self.kernels().shared_max / 4
    }
}

/// Returns the rotation if the decode kernel can compute it: for generated tokens, with one block
/// for all queries that share a head of keys.
pub(super) fn rotated_by_decode(
    unrotated: &Unrotated,
    how: Attention,
    out: View,
) -> Option<RotateArg> {
    let Unrotated {
        qkv, rotation, kv, ..
    } = unrotated;
    let read = [qkv.k, qkv.v, rotation.table];
    let apart = read.into_iter().all(|view| !overlap(view, out));
    let decode =
        unrotated.rows.phase == Phase::Generated && how.heads / kv.kv_heads <= DECODE_HEADS;
    (apart && decode && fast(kv).is_some()).then_some(unrotated.arg)
}

/// A fast kernel for a type of keys and a width of heads.
struct FastKernel {
    /// Suffix of the kernel's name.
    name: &'static str,
    /// Largest number of elements of a head.
    width: usize,
}

/// Fast kernel for these pages, if there is one.
fn fast(kv: &KvLayer) -> Option<FastKernel> {
    let aligned = kv.offset.is_multiple_of(16) && kv.page_bytes.is_multiple_of(16);
    let fits = aligned && kv.page_tokens.is_power_of_two();
    fast_for(kv.dtype, kv.d_head).filter(|_| fits)
}

/// Fast kernel for keys of this type and heads of this width, if there is one.
fn fast_for(dtype: DType, d_head: usize) -> Option<FastKernel> {
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
    Some(FastKernel { name, width })
}
