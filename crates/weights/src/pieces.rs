//! Weights of a model, cut into pieces in order of use.
//!
//! A piece is some matrices of one segment, or some rows of one matrix, in one contiguous range
//! of memory. Every pass uses the pieces one after the other, so a ring can hold them. Vectors
//! are small and always stay. A pass reads only the rows that it needs from an embedding table.

use std::ops::Range;

use djinn_device::ALIGN;
use djinn_model::{
    Extent, Weights,
    program::{Op, Program, SegmentKind, TensorId},
};

use crate::{
    LinkSettings,
    cutter::{Cutter, RowRange},
    packing::Packing,
};

/// A unit of weights that is copied and placed as one.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Segment of the program that the piece belongs to.
    pub(crate) segment: SegmentKind,
    /// Number of the piece within its segment, from 0.
    pub(crate) number: usize,
    /// Number of pieces of the segment.
    pub(crate) of: usize,
    /// Size in memory, in whole units of the [`Packing`].
    pub(crate) bytes: u64,
    /// Tensors in the piece.
    pub(crate) tensors: Vec<TensorRows>,
    /// Ranges of files that make up the piece, one after the other in memory.
    pub(crate) extents: Vec<Extent>,
}

/// Rows of a tensor in a piece.
#[derive(Clone, Debug)]
pub(crate) struct TensorRows {
    pub tensor: TensorId,
    pub rows: Range<usize>,
    /// Offset of the first row from the start of the piece.
    pub offset: u64,
}

impl Piece {
    /// Name for users, for example `block 3, 2 of 5`.
    pub fn name(&self) -> String {
        if self.of > 1 {
            format!("{}, {} of {}", self.segment, self.number + 1, self.of)
        } else {
            self.segment.to_string()
        }
    }

    /// Bytes that are read from files. An expert's slot can be larger.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).sum()
    }
}

/// All pieces of a model.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// Pieces that always stay in memory.
    pub(crate) kept: Vec<Piece>,
    /// Pieces that every pass uses, in order of use.
    pub(crate) stream: Vec<Piece>,
    /// Experts, block by block and in order within a block. All have the same size.
    pub(crate) experts: Vec<Piece>,
    /// Tables that a pass reads row by row.
    pub(crate) tables: Vec<TensorId>,
    /// Extent of each of the tables.
    pub(crate) table_extents: Vec<Extent>,
}

impl Pieces {
    /// Returns one piece for each segment. All of these pieces always stay in memory.
    pub fn whole(program: &Program, weights: &dyn Weights, packing: Packing) -> Self {
        let layouter = Layouter {
            program,
            weights,
            packing,
        };
        let segments = program.segments.iter().filter(|s| !s.tensors.is_empty());
        let kept = segments.map(|segment| {
            let rows = segment.tensors.iter().map(|&id| all_rows(program, id));
            layouter.lay(segment.kind, rows.collect())
        });
        Pieces {
            kept: kept.collect(),
            ..Pieces::default()
        }
    }

    /// Cuts everything that can stream into pieces. A piece has at most `cap` bytes, unless a
    /// matrix cannot be cut further.
    pub fn cut(program: &Program, weights: &dyn Weights, packing: Packing, cap: u64) -> Self {
        let layouter = Layouter {
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
                pieces.take_op(op, &layouter, &mut cutter, &mut vectors);
            }
            let cut = cutter.finish();
            let of = cut.len();
            let laid = cut.into_iter().enumerate().map(|(number, rows)| Piece {
                number,
                of,
                ..layouter.lay(kind, rows)
            });
            pieces.stream.extend(laid);
        }
        let vectors = vectors.into_iter().map(|id| (id, 0..1)).collect();
        pieces.kept = vec![layouter.lay(SegmentKind::Embedding, vectors)];
        let slot = pieces.experts.iter().map(|e| e.bytes).max().unwrap_or(0);
        pieces.experts.iter_mut().for_each(|e| e.bytes = slot);
        pieces
    }

    /// Adds the weights of one operation: tables and experts to this value, matrices to the
    /// cutter, vectors to their list.
    fn take_op(
        &mut self,
        op: &Op,
        layouter: &Layouter<'_>,
        cutter: &mut Cutter<'_>,
        vectors: &mut Vec<TensorId>,
    ) {
        let program = layouter.program;
        match op {
            Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => {
                self.add_table(program, layouter.weights, *table);
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
                cutter.add(*weight, *order);
            }
            Op::Experts { block, experts, .. } => {
                for (expert, tensors) in experts.iter().enumerate() {
                    let kind = SegmentKind::Expert {
                        block: *block,
                        expert,
                    };
                    let tensors = [tensors.gate, tensors.up, tensors.down];
                    let rows = tensors.map(|id| all_rows(program, id));
                    self.experts.push(layouter.lay(kind, rows.to_vec()));
                }
            }
            _ => {}
        }
    }

    /// Adds a table that a pass reads row by row.
    pub(crate) fn add_table(&mut self, program: &Program, weights: &dyn Weights, table: TensorId) {
        self.tables.push(table);
        self.table_extents.push(Extent {
            bytes: program.tensor(table).bytes().next_multiple_of(ALIGN),
            ..weights.extent(table)
        });
    }

    /// Tables that a pass reads row by row.
    pub fn tables(&self) -> &[TensorId] {
        &self.tables
    }

    /// Bytes of all pieces that can stream.
    pub fn stream_bytes(&self) -> u64 {
        let pieces = self.stream.iter().chain(&self.experts);
        pieces.map(|piece| piece.bytes).sum()
    }

    /// Least bytes that pieces pass through: room for one piece and one expert at a time.
    pub fn through_bytes(&self) -> u64 {
        let largest = |pieces: &[Piece]| pieces.iter().map(|piece| piece.bytes).max();
        largest(&self.stream).unwrap_or(0) + largest(&self.experts).unwrap_or(0)
    }

    /// Bytes that keep a link busy: a ring of the size that the plan wants, and two experts.
    pub fn busy_bytes(&self, link: &LinkSettings) -> u64 {
        let largest = |pieces: &[Piece]| pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
        let piece = largest(&self.stream);
        let ring = piece * (1 + link.waiting()) + link.in_flight(piece).max(piece);
        let all = self.stream.iter().map(|piece| piece.bytes).sum();
        ring.min(all) + largest(&self.experts) * self.experts.len().min(2) as u64
    }

    /// Bytes of the pieces that always stay in memory.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|piece| piece.bytes).sum()
    }
}

/// All rows of a tensor.
pub(crate) fn all_rows(program: &Program, id: TensorId) -> RowRange {
    (id, 0..program.tensor(id).matrix().0)
}

/// Builder of the memory layout of pieces.
pub(crate) struct Layouter<'a> {
    pub program: &'a Program,
    pub weights: &'a dyn Weights,
    pub packing: Packing,
}

impl Layouter<'_> {
    /// Places rows of tensors side by side in the order of their files, so that adjacent rows of
    /// a file are read together.
    pub fn lay(&self, segment: SegmentKind, mut rows: Vec<RowRange>) -> Piece {
        rows.sort_by_key(|part| {
            let extent = self.extent(part);
            (extent.file, extent.offset, extent.bytes)
        });
        let mut extents: Vec<Extent> = Vec::new();
        let mut tensors = Vec::with_capacity(rows.len());
        // Offset in the piece of the last extent.
        let mut at = 0;
        for part in rows {
            let stored = self.extent(&part);
            let end = stored.offset + stored.bytes;
            let (from, until) = self.packing.widen(stored.offset, end);
            match extents.last_mut() {
                Some(last)
                    if last.file == stored.file
                        && self.packing.joins(last.offset + last.bytes, from) =>
                {
                    last.bytes = last.bytes.max(until - last.offset);
                }
                last => {
                    at += last.map_or(0, |last| last.bytes);
                    extents.push(Extent {
                        file: stored.file,
                        offset: from,
                        bytes: until - from,
                    });
                }
            }
            let last = extents.last().expect("an extent was pushed");
            tensors.push(TensorRows {
                tensor: part.0,
                rows: part.1,
                offset: at + stored.offset - last.offset,
            });
        }
        Piece {
            segment,
            number: 0,
            of: 1,
            bytes: at + extents.last().map_or(0, |last| last.bytes),
            tensors,
            extents,
        }
    }

    /// Range of a file that holds rows of a tensor.
    fn extent(&self, (id, rows): &RowRange) -> Extent {
        let tensor = self.program.tensor(*id);
        let row_bytes = tensor.bytes() / tensor.matrix().0.max(1) as u64;
        let whole = self.weights.extent(*id);
        Extent {
            file: whole.file,
            offset: whole.offset + rows.start as u64 * row_bytes,
            bytes: rows.len() as u64 * row_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use djinn_model::Model;
    use djinn_types::IO_BLOCK;
    use proptest::prelude::*;

    use super::*;

    const PACKINGS: [Packing; 2] = [Packing::Blocks, Packing::Tensors];

    fn model(name: &str) -> Model {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        Model::open(&format!("{root}{name}")).expect("a golden model")
    }

    /// Reads a piece as the link does and compares all rows with their tensors.
    fn check_content(model: &Model, packing: Packing, piece: &Piece) {
        let unit = match packing {
            Packing::Blocks => IO_BLOCK,
            Packing::Tensors => ALIGN,
        };
        assert!(piece.bytes.is_multiple_of(unit));
        let mut memory = vec![0; piece.bytes as usize];
        let mut to = 0;
        for extent in &piece.extents {
            let bytes = extent.bytes as usize;
            assert!((to as u64).is_multiple_of(unit));
            assert!(extent.offset.is_multiple_of(IO_BLOCK) || packing == Packing::Tensors);
            model
                .weights
                .read(extent.file, extent.offset, &mut memory[to..to + bytes])
                .expect("read");
            to += bytes;
        }
        for part in &piece.tensors {
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

    /// Counts the rows of each tensor that are in some piece.
    fn rows(pieces: &[Piece]) -> BTreeMap<TensorId, usize> {
        let mut rows = BTreeMap::new();
        for part in pieces.iter().flat_map(|piece| &piece.tensors) {
            *rows.entry(part.tensor).or_default() += part.rows.len();
        }
        rows
    }

    #[test]
    fn whole_pieces_hold_every_tensor_once() {
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
        fn cut_pieces_hold_everything_but_tables_once(
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
                let stored: u64 = piece.tensors.iter().map(|part| {
                    let tensor = model.program.tensor(part.tensor);
                    tensor.bytes() / tensor.matrix().0 as u64 * part.rows.len() as u64
                }).sum();
                let least = piece.tensors.len() == 1
                    && piece.tensors[0].rows.len() <= packing.rows_together();
                let kept = piece.segment == SegmentKind::Embedding;
                let uncut = matches!(name, "gpt2" | "mixtral") || kept;
                prop_assert!(least || uncut || stored <= cap, "{}: {} bytes", piece.name(), stored);
            }
        }
    }
}
