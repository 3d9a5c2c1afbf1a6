//! The slab carved up: where every page and activation lies, computed before the
//! device is opened.

use std::collections::BTreeMap;

use djinn_device::{Draw, KvLayer, View};
use djinn_model::program::{Buf, Op, Program, TensorId};
use djinn_types::DType;

use crate::{Settings, slab_layout::SlabLayout};

/// Bytes of the device by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Weights that stay.
    pub resident: u64,
    /// The ring that others stream through.
    pub ring: u64,
    /// Slots for experts.
    pub pool: u64,
    /// Pages of keys and values.
    pub kv: u64,
    /// Everything a pass computes in.
    pub activations: u64,
    /// What the device's operations need for themselves.
    pub scratch: u64,
    /// What the driver takes beside all that.
    pub driver: u64,
}

impl Footprint {
    /// All that is there for weights.
    pub fn weights(&self) -> u64 {
        self.resident + self.ring + self.pool
    }

    /// The whole slab.
    pub fn slab(&self) -> u64 {
        self.weights() + self.kv + self.activations
    }

    /// All that is taken of the device.
    pub fn total(&self) -> u64 {
        self.slab() + self.scratch + self.driver
    }
}

// What is aligned as a region is aligned as a weight.
const _: () = assert!(SlabLayout::ALIGN.is_multiple_of(djinn_device::ALIGN));

/// Every place a pass touches beside the weights.
pub(crate) struct Arena {
    /// Where it starts and ends in the slab.
    start: u64,
    end: u64,
    pub kv_bytes: u64,
    bufs: BTreeMap<Buf, View>,
    kv: KvLayer,
    /// Where [`Ids`] lie, and pages of a session's table.
    ids: View,
    table_pages: usize,
    /// Rotary frequencies, and the table the pass makes of them.
    pub frequencies: View,
    pub rope: View,
    /// Residuals of the rows chosen for the head, and which token each chose.
    pub head_resid: View,
    pub chosen: View,
    /// One block of rows' attention pattern.
    pub pattern: View,
    /// An edit's operand.
    pub operand: View,
    /// Parts of some rows side by side, their sum with what it lost, and what is made of
    /// each.
    pub packed: View,
    pub sums: View,
    pub reduced: View,
    pub experts: ExpertScratch,
    /// Rows read from a table, as bytes, and their numbers: 0, 1, 2.
    pub table_rows: View,
    pub row_numbers: View,
}

/// What a pass has to know of its batch.
#[derive(Clone, Copy)]
pub(crate) struct Ids {
    /// All of it, as it is uploaded.
    pub all: View,
    pub tokens: View,
    pub positions: View,
    pub sequences: View,
    /// The pages of each member.
    pub tables: View,
    /// Rows chosen for the head, and how a token is drawn for each.
    pub head: View,
    pub draws: View,
}

/// Where rows lie while they are sorted by expert.
pub(crate) struct ExpertScratch {
    /// What the router chose.
    pub chosen: View,
    pub chosen_weights: View,
    /// One expert's rows and their weights.
    pub ids: View,
    pub weights: View,
    pub input: View,
    pub output: View,
}

impl Arena {
    /// Attention patterns are computed for this many rows at a time.
    pub const PATTERN_ROWS: usize = 16;
    /// Parts of rows are taken, and reduced, for this many rows at a time.
    pub const PACKED_ROWS: usize = 64;

    /// Carves what comes after `start` bytes of weights. Rows of `read` are read from
    /// the slow tier.
    pub fn new(
        program: &Program,
        settings: &Settings,
        kv_dtype: DType,
        read: &[TensorId],
        start: u64,
    ) -> Self {
        let mut layout = SlabLayout::new();
        layout.take(start);
        let kv = carve_kv(program, settings, kv_dtype, &mut layout);
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
        // Only routed models sort rows by expert.
        let expert_rows = if dims.experts > 0 { rows } else { 0 };
        let chosen = chosen_experts(program);
        let table_pages = settings.table_pages();
        let ids = settings
            .sessions
            .saturating_mul(table_pages)
            .saturating_add(3 * rows + (1 + Draw::WORDS) * settings.logit_rows);
        let pattern_rows = Self::PATTERN_ROWS.min(rows) * dims.heads;
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
            packed: take(DType::F32, Self::PACKED_ROWS, probe_limits.packed_width),
            sums: take(DType::F32, 2, probe_limits.packed_width),
            reduced: take(DType::F32, Self::PACKED_ROWS, probe_limits.reduced_width),
            experts: ExpertScratch {
                chosen: take(DType::I32, expert_rows, chosen),
                chosen_weights: take(DType::F32, expert_rows, chosen),
                ids: take(DType::I32, expert_rows, 1),
                weights: take(DType::F32, expert_rows, 1),
                input: take(DType::F32, expert_rows, dims.d_model),
                output: take(DType::F32, expert_rows, dims.d_model),
            },
            table_rows: take(DType::I32, read_rows, row_bytes.div_ceil(4)),
            row_numbers: take(DType::I32, read_rows, 1),
        };
        arena.end = layout.bytes();
        arena
    }

    /// Bytes of everything here.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// The first `rows` rows of a buffer.
    pub fn buf(&self, buf: Buf, rows: usize) -> View {
        self.bufs[&buf].rows(0, rows)
    }

    /// One block's slice of the pages.
    pub fn kv(&self, block: usize) -> KvLayer {
        KvLayer {
            offset: self.kv.offset + block as u64 * self.kv.layer_bytes(),
            ..self.kv
        }
    }

    /// Where the ids of a batch go: side by side, so that one upload brings them.
    pub fn ids(&self, rows: usize, members: usize, head: usize) -> Ids {
        let mut end = 0;
        let mut take = |count: usize| {
            end += count;
            self.ids.rows(end - count, count)
        };
        let [tokens, positions, sequences] = [rows; 3].map(&mut take);
        let tables = take(members * self.table_pages).reshaped(self.table_pages);
        let (head, draws) = (take(head), take(head * Draw::WORDS));
        Ids {
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

fn carve_kv(
    program: &Program,
    settings: &Settings,
    dtype: DType,
    layout: &mut SlabLayout,
) -> KvLayer {
    let dims = &program.dims;
    let mut kv = KvLayer {
        offset: 0,
        page_bytes: 0,
        pages: settings.pages,
        page_tokens: settings.page_tokens,
        kv_heads: dims.kv_heads,
        d_head: dims.d_head,
        dtype,
    };
    let page_bytes = kv.layer_bytes().saturating_mul(dims.blocks as u64);
    kv.page_bytes = page_bytes
        .checked_next_multiple_of(SlabLayout::ALIGN)
        .unwrap_or(u64::MAX);
    kv.offset = layout.take(kv.page_bytes.saturating_mul(settings.pages as u64));
    kv
}

/// Experts a row goes through.
pub(crate) fn chosen_experts(program: &Program) -> usize {
    let chosen = |op: &Op| match op {
        Op::Experts { chosen, .. } => Some(*chosen),
        _ => None,
    };
    program.ops().filter_map(chosen).max().unwrap_or(0)
}
