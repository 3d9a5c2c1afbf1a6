//! A model's weights as the link moves them: cut into pieces in order of use.
//!
//! A piece is some matrices of one segment, or some rows of one matrix, in one run of
//! memory. Every pass uses the pieces one after the other, so a ring moves them. A
//! matrix can be cut between rows because each output is a product of its own; one
//! stored the other way round (`Order::InOut`) cannot. Vectors are so small that they
//! always stay; of tables only the rows a pass needs are read.

use std::ops::Range;

use djinn_device::ALIGN;
use djinn_model::{
    Weights,
    program::{Op, Program, SegmentKind, TensorId},
};
use djinn_types::{IO_BLOCK, Order};

/// What is moved and placed as one.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Which of the program's segments it is of.
    pub segment: SegmentKind,
    /// Which piece of that segment, and of how many; they count from 0.
    pub number: usize,
    pub of: usize,
    /// Bytes of memory, in whole units of its [`Packing`].
    pub bytes: u64,
    pub parts: Vec<Part>,
    pub runs: Vec<Run>,
}

/// Rows of a tensor, and where they lie in their piece.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub tensor: TensorId,
    pub rows: Range<usize>,
    pub offset: u64,
}

/// How parts of tensors lie in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// As in their file, in whole blocks: direct reads land in place.
    Blocks,
    /// Each at a multiple of [`ALIGN`]: a card reads them at full speed.
    Tensors,
}

impl Packing {
    /// What is read of a file for the bytes from `start` to `end`. What lies between
    /// parts is never looked at: it may as well hold what comes next in the file.
    fn around(self, start: u64, end: u64) -> (u64, u64) {
        match self {
            Packing::Blocks => (start / IO_BLOCK * IO_BLOCK, end.next_multiple_of(IO_BLOCK)),
            Packing::Tensors => (start, start + (end - start).next_multiple_of(ALIGN)),
        }
    }

    /// Whether what is read from `from` on goes on with what was read up to `end`.
    fn joins(self, end: u64, from: u64) -> bool {
        match self {
            Packing::Blocks => from <= end,
            Packing::Tensors => from == end,
        }
    }

    /// Rows that stay together where a matrix is cut: a card takes as many at once.
    fn rows_together(self) -> usize {
        match self {
            Packing::Blocks => 1,
            Packing::Tensors => 64,
        }
    }
}

/// A run of a file, and where it goes in its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub file: usize,
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
}

/// All pieces of a model.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// Always in memory.
    pub(crate) kept: Vec<Piece>,
    /// Used by every pass, in this order.
    pub(crate) stream: Vec<Piece>,
    /// Used when chosen: block by block, each block's in order. All of one size.
    pub(crate) experts: Vec<Piece>,
    /// Read row by row.
    pub(crate) tables: Vec<TensorId>,
}

impl Pieces {
    /// Everything always in memory, a piece for each segment.
    pub fn whole(program: &Program, weights: &dyn Weights, packing: Packing) -> Self {
        let all = |tensors: &[TensorId]| {
            let rows = |&id| (id, 0..program.tensor(id).matrix().0);
            tensors.iter().map(rows).collect::<Vec<_>>()
        };
        let segments = program.segments.iter().filter(|s| !s.tensors.is_empty());
        let tray = Tray {
            program,
            weights,
            packing,
        };
        let kept = segments.map(|s| tray.lay(s.kind, all(&s.tensors)));
        Pieces {
            kept: kept.collect(),
            ..Pieces::default()
        }
    }

    /// Everything that can stream in pieces of at most `cap` bytes, where matrices
    /// can be cut that small.
    pub fn cut(program: &Program, weights: &dyn Weights, packing: Packing, cap: u64) -> Self {
        let tray = Tray {
            program,
            weights,
            packing,
        };
        let mut pieces = Pieces::default();
        let mut vectors = Vec::new();
        let head = std::iter::once((SegmentKind::Head, &program.head));
        let blocks = program.blocks.iter().enumerate();
        let blocks = blocks.map(|(i, ops)| (SegmentKind::Block(i), ops));
        let embed = std::iter::once((SegmentKind::Embedding, &program.embed));
        for (kind, ops) in embed.chain(blocks).chain(head) {
            let mut cutter = Cutter::new(program, packing, cap);
            for op in ops {
                match op {
                    Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => {
                        pieces.tables.push(*table);
                    }
                    Op::Norm { weight, bias, .. } => {
                        vectors.extend([Some(*weight), *bias].into_iter().flatten());
                    }
                    Op::Linear {
                        weight,
                        bias,
                        order,
                        ..
                    } => {
                        vectors.extend(*bias);
                        cutter.take(*weight, *order);
                    }
                    Op::Experts { experts, .. } => {
                        for (expert, tensors) in experts.iter().enumerate() {
                            let SegmentKind::Block(block) = kind else {
                                unreachable!("experts are in blocks")
                            };
                            let kind = SegmentKind::Expert { block, expert };
                            let tensors = [tensors.gate, tensors.up, tensors.down];
                            let rows = |id| (id, 0..program.tensor(id).matrix().0);
                            let parts = tensors.map(rows).to_vec();
                            pieces.experts.push(tray.lay(kind, parts));
                        }
                    }
                    _ => {}
                }
            }
            let parts = cutter.finish();
            let of = parts.len();
            let laid = parts.into_iter().enumerate().map(|(number, parts)| Piece {
                number,
                of,
                ..tray.lay(kind, parts)
            });
            pieces.stream.extend(laid);
        }
        let vectors = vectors.into_iter().map(|id| (id, 0..1)).collect();
        pieces.kept = vec![tray.lay(SegmentKind::Embedding, vectors)];
        let slot = pieces.experts.iter().map(|e| e.bytes).max().unwrap_or(0);
        pieces.experts.iter_mut().for_each(|e| e.bytes = slot);
        pieces
    }

    /// Tensors of which a pass reads rows one by one.
    pub fn tables(&self) -> &[TensorId] {
        &self.tables
    }

    /// Bytes of what could stream.
    pub fn stream_bytes(&self) -> u64 {
        let pieces = self.stream.iter().chain(&self.experts);
        pieces.map(|piece| piece.bytes).sum()
    }

    /// Bytes that are always in memory.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|piece| piece.bytes).sum()
    }
}

impl Piece {
    /// As people read it: `block 3, 2 of 5`.
    pub fn name(&self) -> String {
        if self.of > 1 {
            format!("{}, {} of {}", self.segment, self.number + 1, self.of)
        } else {
            self.segment.to_string()
        }
    }
}

type Rows = (TensorId, Range<usize>);

/// Cuts one segment's matrices, in order of use.
struct Cutter<'p> {
    program: &'p Program,
    packing: Packing,
    cap: u64,
    pieces: Vec<Vec<Rows>>,
    /// Bytes of the last piece, if more may join it.
    open: Option<u64>,
}

impl<'p> Cutter<'p> {
    fn new(program: &'p Program, packing: Packing, cap: u64) -> Self {
        Cutter {
            program,
            packing,
            cap,
            pieces: Vec::new(),
            open: None,
        }
    }

    fn take(&mut self, id: TensorId, order: Order) {
        let tensor = self.program.tensor(id);
        let (rows, _) = tensor.matrix();
        let bytes = tensor.bytes();
        match self.open.map(|open| open + bytes) {
            Some(together) if together <= self.cap => {
                let last = self.pieces.last_mut().expect("one is open");
                last.push((id, 0..rows));
                self.open = Some(together);
            }
            _ => {
                let ends = match order {
                    Order::OutIn => self.cuts(rows, bytes),
                    Order::InOut => vec![rows],
                };
                self.open = (ends.len() == 1).then_some(bytes);
                let starts = std::iter::once(0).chain(ends.clone());
                let cut = starts.zip(ends).map(|(start, end)| vec![(id, start..end)]);
                self.pieces.extend(cut);
            }
        }
    }

    /// Where each piece of a matrix ends: about equally far apart, and at most `cap`
    /// bytes unless the rows that stay together are more.
    fn cuts(&self, rows: usize, bytes: u64) -> Vec<usize> {
        let together = self.packing.rows_together();
        let units = rows.div_ceil(together).max(1);
        let unit_bytes = (bytes / rows.max(1) as u64).saturating_mul(together as u64);
        let units_each = (self.cap / unit_bytes.max(1)).max(1);
        let count = (units as u64).div_ceil(units_each) as usize;
        let end = |piece: usize| (units * piece / count * together).min(rows);
        (1..=count).map(end).collect()
    }

    fn finish(self) -> Vec<Vec<Rows>> {
        self.pieces
    }
}

/// What pieces are laid out by.
struct Tray<'a> {
    program: &'a Program,
    weights: &'a dyn Weights,
    packing: Packing,
}

impl Tray<'_> {
    /// Puts rows of tensors side by side, in the order of their files: what touches is
    /// read together.
    fn lay(&self, segment: SegmentKind, mut rows: Vec<Rows>) -> Piece {
        rows.sort_by_key(|part| self.extent(part));
        let mut runs: Vec<Run> = Vec::new();
        let mut parts = Vec::with_capacity(rows.len());
        for part in rows {
            let (file, start, end) = self.extent(&part);
            let (from, until) = self.packing.around(start, end);
            match runs.last_mut() {
                Some(run) if run.file == file && self.packing.joins(run.from + run.bytes, from) => {
                    run.bytes = run.bytes.max(until - run.from);
                }
                last => {
                    let to = last.map_or(0, |run| run.to + run.bytes);
                    runs.push(Run {
                        file,
                        from,
                        to,
                        bytes: until - from,
                    });
                }
            }
            let run = runs.last().expect("there is one by now");
            parts.push(Part {
                tensor: part.0,
                rows: part.1,
                offset: run.to + start - run.from,
            });
        }
        Piece {
            segment,
            number: 0,
            of: 1,
            bytes: runs.last().map_or(0, |run| run.to + run.bytes),
            parts,
            runs,
        }
    }

    /// File, first byte and end of rows of a tensor.
    fn extent(&self, (id, rows): &Rows) -> (usize, u64, u64) {
        let tensor = self.program.tensor(*id);
        let row_bytes = tensor.bytes() / tensor.matrix().0.max(1) as u64;
        let whole = self.weights.extent(*id);
        let start = whole.offset + rows.start as u64 * row_bytes;
        (whole.file, start, start + rows.len() as u64 * row_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use djinn_model::Model;
    use proptest::prelude::*;

    use super::*;

    const PACKINGS: [Packing; 2] = [Packing::Blocks, Packing::Tensors];

    fn model(name: &str) -> Model {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        Model::open(&format!("{root}{name}")).expect("a golden model")
    }

    /// Reads a piece as the link does, and compares every part with its tensor.
    fn check_content(model: &Model, packing: Packing, piece: &Piece) {
        let unit = match packing {
            Packing::Blocks => IO_BLOCK,
            Packing::Tensors => ALIGN,
        };
        assert!(piece.bytes.is_multiple_of(unit));
        let mut memory = vec![0; piece.bytes as usize];
        for run in &piece.runs {
            let (to, bytes) = (run.to as usize, run.bytes as usize);
            assert!(run.to.is_multiple_of(unit));
            assert!(run.from.is_multiple_of(IO_BLOCK) || packing == Packing::Tensors);
            model
                .weights
                .read(run.file, run.from, &mut memory[to..to + bytes])
                .expect("read");
        }
        for part in &piece.parts {
            let tensor = model.program.tensor(part.tensor);
            let row_bytes = tensor.bytes() as usize / tensor.matrix().0;
            let mut expect = vec![0; part.rows.len() * row_bytes];
            let offset = (part.rows.start * row_bytes) as u64;
            model
                .weights
                .read_tensor(part.tensor, offset, &mut expect)
                .expect("read");
            let at = part.offset as usize;
            assert!(part.offset.is_multiple_of(ALIGN) || packing == Packing::Blocks);
            assert!(part.rows.start.is_multiple_of(packing.rows_together()));
            assert_eq!(memory[at..at + expect.len()], expect, "{}", tensor.name);
        }
    }

    /// How many rows of each tensor are in some piece.
    fn rows(pieces: &[Piece]) -> BTreeMap<TensorId, usize> {
        let mut rows = BTreeMap::new();
        for part in pieces.iter().flat_map(|piece| &piece.parts) {
            *rows.entry(part.tensor).or_default() += part.rows.len();
        }
        rows
    }

    #[test]
    fn the_whole_is_everything_once() {
        for (name, packing) in ["llama3", "gpt2", "mixtral"]
            .into_iter()
            .flat_map(|name| PACKINGS.map(|packing| (name, packing)))
        {
            let model = model(name);
            let pieces = Pieces::whole(&model.program, &*model.weights, packing);
            let rows = rows(&pieces.kept);
            for (id, tensor) in model.program.tensors.iter().enumerate() {
                assert_eq!(rows[&TensorId(id)], tensor.matrix().0, "{}", tensor.name);
            }
            for piece in &pieces.kept {
                check_content(&model, packing, piece);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn cut_pieces_are_everything_but_tables_once(
            name in prop::sample::select(vec!["llama3", "gpt2", "mixtral", "falcon7b", "qwen2"]),
            packing in prop::sample::select(PACKINGS.to_vec()),
            cap in 1u64..100_000,
        ) {
            let model = model(name);
            let pieces = Pieces::cut(&model.program, &*model.weights, packing, cap);
            let all: Vec<Piece> = [&pieces.kept, &pieces.stream, &pieces.experts]
                .into_iter()
                .flatten()
                .cloned()
                .collect();
            let rows = rows(&all);
            let used = |id| model.program.ops().any(|op| {
                matches!(op, Op::Linear { weight, .. } if *weight == id)
            });
            for (id, tensor) in model.program.tensors.iter().enumerate() {
                let id = TensorId(id);
                let only_table = pieces.tables.contains(&id) && !used(id);
                let expect = (!only_table).then_some(tensor.matrix().0);
                prop_assert_eq!(rows.get(&id).copied(), expect, "{}", tensor.name);
            }
            for piece in &all {
                check_content(&model, packing, piece);
                let stored: u64 = piece.parts.iter().map(|part| {
                    let tensor = model.program.tensor(part.tensor);
                    tensor.bytes() / tensor.matrix().0 as u64 * part.rows.len() as u64
                }).sum();
                let least = piece.parts.len() == 1
                    && piece.parts[0].rows.len() <= packing.rows_together();
                let kept = piece.segment == SegmentKind::Embedding;
                let uncut = matches!(name, "gpt2" | "mixtral") || kept;
                prop_assert!(least || uncut || stored <= cap, "{}: {} bytes", piece.name(), stored);
            }
        }
    }
}
