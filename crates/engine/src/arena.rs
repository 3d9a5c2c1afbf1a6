//! The arena: locations of KV pages and activations in the slab, computed before the
//! device is opened.

use std::collections::BTreeMap;

use djinn_device::{Draw, KvLayer, View};
use djinn_kv::{KvRegion, WINDOW_HALVES};
use djinn_model::program::{Buf, Op, Program, TensorId};
use djinn_types::DType;

use crate::{Settings, slab_layout::SlabLayout};

/// Bytes of device memory by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Resident weights.
    pub resident: u64,
    /// Ring that the other weights stream through.
    pub ring: u64,
    /// Slots for experts that are copied in when chosen.
    pub pool: u64,
    /// Pages of keys and values, and the KV window.
    pub kv: u64,
    /// KV window, through which pages stream that are not on the device; a part of `kv`.
    pub kv_window: u64,
    /// Activations and other buffers of a pass.
    pub activations: u64,
    /// Scratch memory of the device's operations.
    pub scratch: u64,
    /// Memory of the driver.
    pub driver: u64,
}

impl Footprint {
    /// Bytes for weights.
    pub fn weights(&self) -> u64 {
        self.resident + self.ring + self.pool
    }

    /// Bytes of the slab.
    pub fn slab(&self) -> u64 {
        self.weights() + self.kv + self.activations
    }

    /// Bytes of device memory in use.
    pub fn total(&self) -> u64 {
        self.slab() + self.scratch + self.driver
    }
}

// A region of the slab has at least the alignment of a weight.
const _: () = assert!(SlabLayout::ALIGN.is_multiple_of(djinn_device::ALIGN));

/// Locations of all buffers of a pass beside the weights.
pub(crate) struct Arena {
    /// Offset of the arena in the slab.
    start: u64,
    /// Offset of the end of the arena in the slab.
    end: u64,
    /// Bytes of all KV pages.
    pub kv_bytes: u64,
    bufs: BTreeMap<Buf, View>,
    /// Place of the KV pages and the KV window.
    pub kv: KvRegion,
    /// Memory for [`BatchIds`].
    ids: View,
    /// Number of pages in the block table of a session.
    table_pages: usize,
    /// Frequencies of the rotary embedding.
    pub frequencies: View,
    /// Table of angles that a pass computes from the frequencies.
    pub rope: View,
    /// Residuals of the rows that go through the head.
    pub head_resid: View,
    /// Token that the device sampled for each row of the head.
    pub chosen: View,
    /// Attention pattern of [`ProbeLimits::pattern_rows`](crate::ProbeLimits) rows.
    pub pattern: View,
    /// Operand of an edit.
    pub operand: View,
    /// Captured parts of rows, side by side.
    pub packed: View,
    /// Sum of captured rows and its rounding error.
    pub sums: View,
    /// Reduced values of captured rows.
    pub reduced: View,
    /// Buffers of experts.
    pub experts: ExpertScratch,
    /// Rows that were read from a table, as bytes.
    pub table_rows: View,
    /// The numbers 0, 1, 2 and so on: indexes of `table_rows`.
    pub row_numbers: View,
}

/// Inputs of a batch on the device: token ids, positions, block tables.
#[derive(Clone, Copy)]
pub(crate) struct BatchIds {
    /// All inputs, uploaded together.
    pub all: View,
    pub tokens: View,
    pub positions: View,
    pub sequences: View,
    /// Block table of each member of the batch, for the blocks of each half of the KV window.
    /// If no page streams through the window, all blocks use the same table.
    pub tables: [View; WINDOW_HALVES],
    /// Rows that go through the head.
    pub head: View,
    /// Sampling parameters of each row of the head.
    pub draws: View,
}

/// Buffers for rows that are sorted by expert.
pub(crate) struct ExpertScratch {
    /// Output of the router. Each line has the chosen experts of one row as `i32`, and then
    /// their weights as `f32`, so that one transfer reads both.
    pub routed: View,
    /// Row numbers sorted by expert as `i32`, and then the weight of each row as `f32`, so that
    /// one transfer writes both.
    pub sorted: View,
    pub input: View,
    pub output: View,
}

impl Arena {
    /// Lays out all buffers behind `start` bytes of weights. `read` are the tables of which
    /// a pass reads single rows over the link.
    pub fn new(
        program: &Program,
        settings: &Settings,
        kv_dtype: DType,
        read: &[TensorId],
        start: u64,
    ) -> Self {
        let mut layout = SlabLayout::new();
        layout.take(start);
        let kv = kv_region(program, settings, kv_dtype, layout.bytes());
        layout.take(kv.bytes());
        let kv_bytes = layout.bytes() - start;

        let dims = &program.dims;
        let (rows, probe_limits) = (settings.rows, settings.probe_limits);
        let head_rows = settings.logit_rows.saturating_add(probe_limits.lens_rows);
        let mut take = |dtype: DType, rows: usize, cols: usize| {
            let elements = (rows as u64).saturating_mul(cols as u64);
            let bytes = elements.saturating_mul(dtype.bytes() as u64);
            View::new(layout.take(bytes), dtype, rows, cols)
        };
        let bufs = BUFS
            .into_iter()
            .map(|buf| {
                let rows = match buf {
                    Buf::Final | Buf::Logits => head_rows,
                    _ => rows,
                };
                (buf, take(DType::F32, rows, program.width(buf)))
            })
            .collect();
        let frequencies = program.rope.as_ref().map_or(0, |r| r.frequencies.len());
        // Only models with experts sort rows by expert.
        let expert_rows = if dims.experts > 0 { rows } else { 0 };
        let chosen = chosen_experts(program);
        let table_pages = settings.table_pages();
        let tables = match settings.window_pages {
            0 => 1,
            _ => WINDOW_HALVES,
        };
        let ids = settings
            .sessions
            .saturating_mul(table_pages)
            .saturating_mul(tables)
            .saturating_add(3 * rows + (1 + Draw::WORDS) * settings.logit_rows);
        let pattern_rows = probe_limits.pattern_rows.clamp(1, rows.max(1)) * dims.heads;
        let packed_rows = probe_limits.packed_rows.max(1);
        let read_rows = if read.is_empty() { 0 } else { rows };
        let row_bytes = |&id: &TensorId| {
            let tensor = program.tensor(id);
            tensor.matrix().1 * tensor.dtype.bytes()
        };
        let row_bytes = read.iter().map(row_bytes).max().unwrap_or(0);
        let mut arena = Arena {
            start,
            end: 0,
            kv_bytes,
            bufs,
            kv,
            ids: take(DType::I32, ids, 1),
            table_pages,
            frequencies: take(DType::F32, 1, frequencies),
            rope: take(DType::F32, rows, 2 * frequencies),
            head_resid: take(DType::F32, head_rows, dims.d_model),
            chosen: take(DType::I32, settings.logit_rows, 1),
            pattern: take(DType::F32, pattern_rows, probe_limits.pattern_keys),
            operand: take(DType::F32, rows, probe_limits.operand_width),
            packed: take(DType::F32, packed_rows, probe_limits.packed_width),
            sums: take(DType::F32, 2, probe_limits.packed_width),
            reduced: take(DType::F32, packed_rows, probe_limits.reduced_width),
            experts: ExpertScratch {
                routed: take(DType::I32, expert_rows, 2 * chosen),
                sorted: take(DType::I32, 2 * chosen * expert_rows, 1),
                input: take(DType::F32, expert_rows, dims.d_model),
                output: take(DType::F32, expert_rows, dims.d_model),
            },
            table_rows: take(DType::I32, read_rows, row_bytes.div_ceil(4)),
            row_numbers: take(DType::I32, read_rows, 1),
        };
        arena.end = layout.bytes();
        arena
    }

    /// Bytes of the arena.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the first `rows` rows of a buffer.
    pub fn buf(&self, buf: Buf, rows: usize) -> View {
        self.bufs[&buf].rows(0, rows)
    }

    /// Lays out the inputs of a batch side by side, so that one upload copies them. If pages
    /// stream through the KV window, each half of the window has its block tables.
    pub fn ids(&self, rows: usize, members: usize, head: usize, streams: bool) -> BatchIds {
        let mut end = 0;
        let mut take = |count: usize| {
            end += count;
            self.ids.rows(end - count, count)
        };
        let [tokens, positions, sequences] = [rows; 3].map(&mut take);
        let mut tables = || take(members * self.table_pages).reshaped(self.table_pages);
        let first = tables();
        let tables = match streams {
            true => [first, tables()],
            false => [first; WINDOW_HALVES],
        };
        let (head, draws) = (take(head), take(head * Draw::WORDS));
        BatchIds {
            all: self.ids.rows(0, end),
            tokens,
            positions,
            sequences,
            tables,
            head,
            draws: draws.reshaped(Draw::WORDS),
        }
    }
}

const BUFS: [Buf; 16] = [
    Buf::Resid,
    Buf::Norm,
    Buf::NormMlp,
    Buf::Fused,
    Buf::Q,
    Buf::K,
    Buf::V,
    Buf::Z,
    Buf::AttnOut,
    Buf::Pre,
    Buf::Up,
    Buf::Post,
    Buf::MlpOut,
    Buf::Router,
    Buf::Final,
    Buf::Logits,
];

/// Lays out the KV pages and the KV window at an offset of the slab.
pub(crate) fn kv_region(
    program: &Program,
    settings: &Settings,
    dtype: DType,
    offset: u64,
) -> KvRegion {
    let dims = &program.dims;
    let layer = KvLayer {
        offset,
        page_bytes: 0,
        pages: settings.pages,
        page_tokens: settings.page_tokens,
        kv_heads: dims.kv_heads,
        d_head: dims.d_head,
        dtype,
    };
    KvRegion::new(layer, dims.blocks, settings.window_pages)
}

/// Number of experts that a row goes through.
pub(crate) fn chosen_experts(program: &Program) -> usize {
    let chosen = |op: &Op| match op {
        Op::Experts { chosen, .. } => Some(*chosen),
        _ => None,
    };
    program.ops().filter_map(chosen).max().unwrap_or(0)
}
