//! Elastic weights: which weights give their memory to KV pages, in which order, and where they
//! lie.
//!
//! A *unit* is the matrices of a block that read the same input, or an embedding table. A unit is
//! resident or streams as a whole, so its matrices are whole views while it is resident. Of a
//! table that has yielded, a pass reads single rows over the link. Units yield in a fixed order.
//! The *level* is the number of units that have yielded: at level 0 all units are resident.
//!
//! The units that may yield lie in one zone behind the KV frames, in the order in which they
//! yield. One boundary divides the zone at every level: KV frames before it, weights behind it.

use std::ops::Range;

use djinn_model::{
    Weights,
    program::{Op, Program, SegmentKind, TensorId},
};
use djinn_types::{IO_BLOCK, Order, Tier};

use crate::{
    ExpertPool, LayoutOptions, Packing, Placement, Plan, Region, Ring,
    cutter::Cutter,
    pieces::{Layouter, Piece, Pieces, TensorRows, all_rows},
};

/// Matrices that yield and return together.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Numbers of the pieces that the unit streams as; empty for a table.
    pub pieces: Range<usize>,
    /// Embedding table that the unit consists of, if any.
    pub table: Option<TensorId>,
    /// The unit in one range of memory, as it lies while it is resident.
    pub whole: Piece,
}

/// Weights of a model, cut into units that may yield and weights that always stay.
#[derive(Clone, Debug)]
pub struct ElasticWeights {
    pub(crate) pieces: Pieces,
    /// Units in the order in which they yield.
    pub(crate) units: Vec<Unit>,
    pub(crate) options: LayoutOptions,
}

impl ElasticWeights {
    /// Cuts the blocks of a model into units. Vectors and the head always stay. Embedding
    /// tables that the head does not share are units of their own if `tables_stay` is set;
    /// otherwise a pass always reads their rows over the link. Returns `None` for a model with
    /// experts, which have a pool of their own, and for a model without matrices in blocks.
    pub fn cut(
        program: &Program,
        weights: &dyn Weights,
        options: LayoutOptions,
        tables_stay: bool,
    ) -> Option<Self> {
        let mut cut = Cut {
            layouter: Layouter {
                program,
                weights,
                packing: options.packing,
            },
            cap: options.piece_bytes,
            pieces: Pieces::default(),
            units: Vec::new(),
            stays: Vec::new(),
        };
        if program.ops().any(|op| matches!(op, Op::Experts { .. })) {
            return None;
        }
        for (block, ops) in program.blocks.iter().enumerate() {
            cut.take_block(block, ops);
        }
        for op in &program.head {
            cut.take_vectors(op);
            if let Op::Linear { weight, .. } = op {
                cut.stay(*weight);
            }
        }
        let in_blocks = std::mem::take(&mut cut.units);
        for op in &program.embed {
            cut.take_table(op, tables_stay);
        }
        let Cut {
            layouter,
            mut pieces,
            units: mut in_order,
            stays,
            ..
        } = cut;
        let stays = stays.into_iter().map(|id| all_rows(program, id)).collect();
        pieces.kept = vec![layouter.lay(SegmentKind::Embedding, stays)];
        if in_blocks.is_empty() {
            return None;
        }
        // Tables yield first, because a pass needs few of their bytes.
        in_order.extend(in_yield_order(in_blocks));
        Some(ElasticWeights {
            pieces,
            units: in_order,
            options,
        })
    }

    /// Pieces of the weights.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Tier that units stream from.
    pub fn tier(&self) -> Tier {
        self.options.link.tier
    }

    /// Bytes of the tables that a pass always reads row by row.
    pub fn table_bytes(&self) -> u64 {
        let pieces = &self.pieces;
        let is_unit = |table: &TensorId| self.units.iter().any(|u| u.table == Some(*table));
        let tables = pieces.tables.iter().zip(&pieces.table_extents);
        let always = tables.filter(|(table, _)| !is_unit(table));
        always.map(|(_, extent)| extent.bytes).sum()
    }

    /// Bytes of each unit in the order in which units yield.
    pub fn unit_bytes(&self) -> Vec<u64> {
        self.units.iter().map(|unit| unit.whole.bytes).collect()
    }

    /// Bytes that all levels need beside the units: the weights that always stay, and the ring.
    pub fn fixed_bytes(&self) -> u64 {
        self.pieces.kept_bytes() + self.ring_bytes()
    }

    /// Bytes of the ring. The ring holds a unit in addition to the pieces in use and in flight:
    /// streamed units lie apart, so the link must run ahead while resident ones compute.
    pub(crate) fn ring_bytes(&self) -> u64 {
        let pieces = self.pieces.stream.iter().map(|piece| piece.bytes);
        let largest = pieces.max().unwrap_or(0);
        let link = &self.options.link;
        let matrices = self.units.iter().filter(|unit| unit.table.is_none());
        let unit = matrices.map(|unit| unit.whole.bytes).max().unwrap_or(0);
        largest * (1 + link.waiting()) + link.in_flight(largest).max(largest) + unit
    }
}

/// Reverses the order in which units would become resident one after the other. Streamed
/// units and resident units are evenly spread over the pass at every level.
fn in_yield_order(units: Vec<Unit>) -> Vec<Unit> {
    // Multiples of the golden ratio fill an interval evenly for any number of multiples.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut order: Vec<(usize, Unit)> = units.into_iter().enumerate().collect();
    order.sort_by_key(|(i, _)| std::cmp::Reverse((*i as u64).wrapping_mul(GOLDEN)));
    order.into_iter().map(|(_, unit)| unit).collect()
}

/// Weights while they are cut into units.
struct Cut<'a> {
    layouter: Layouter<'a>,
    cap: u64,
    pieces: Pieces,
    units: Vec<Unit>,
    stays: Vec<TensorId>,
}

impl Cut<'_> {
    fn stay(&mut self, id: TensorId) {
        if !self.stays.contains(&id) {
            self.stays.push(id);
        }
    }

    fn take_table(&mut self, op: &Op, stays: bool) {
        self.take_vectors(op);
        match op {
            Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => {
                let shared = self.stays.contains(table);
                if stays && shared {
                    return;
                }
                let layouter = &self.layouter;
                let program = layouter.program;
                self.pieces.add_table(program, layouter.weights, *table);
                if stays {
                    let rows = vec![all_rows(program, *table)];
                    self.units.push(Unit {
                        pieces: 0..0,
                        table: Some(*table),
                        whole: layouter.lay(SegmentKind::Embedding, rows),
                    });
                }
            }
            _ => {}
        }
    }

    fn take_vectors(&mut self, op: &Op) {
        let vectors = match op {
            Op::Norm { weight, bias, .. } => [Some(*weight), *bias],
            Op::Linear { bias, .. } => [*bias, None],
            _ => [None, None],
        };
        vectors.into_iter().flatten().for_each(|id| self.stay(id));
    }

    /// Cuts a block into units: products that follow each other with the same input.
    fn take_block(&mut self, block: usize, ops: &[Op]) {
        let first = self.pieces.stream.len();
        let mut inputs = None;
        let mut unit: Vec<(TensorId, Order)> = Vec::new();
        for op in ops {
            self.take_vectors(op);
            if let Op::Linear {
                weight,
                order,
                from,
                ..
            } = *op
            {
                if inputs.replace(from).is_some_and(|before| before != from) {
                    let unit = std::mem::take(&mut unit);
                    self.add_unit(block, &unit);
                }
                unit.push((weight, order));
            }
        }
        self.add_unit(block, &unit);
        let of = self.pieces.stream.len() - first;
        for (number, piece) in self.pieces.stream[first..].iter_mut().enumerate() {
            (piece.number, piece.of) = (number, of);
        }
    }

    fn add_unit(&mut self, block: usize, matrices: &[(TensorId, Order)]) {
        if matrices.is_empty() {
            return;
        }
        let (program, packing) = (self.layouter.program, self.layouter.packing);
        let mut cutter = Cutter::new(program, packing, self.cap);
        for &(id, order) in matrices {
            cutter.add(id, order);
        }
        let kind = SegmentKind::Block(block);
        let cut = cutter.finish().into_iter();
        let cut: Vec<Piece> = cut.map(|rows| self.layouter.lay(kind, rows)).collect();
        let whole = match packing {
            Packing::Tensors => joined(kind, &cut),
            // Blocks of a file overlap at a cut, so the whole has a layout of its own.
            Packing::Blocks => {
                let all = matrices.iter().map(|&(id, _)| all_rows(program, id));
                self.layouter.lay(kind, all.collect())
            }
        };
        let start = self.pieces.stream.len();
        self.pieces.stream.extend(cut);
        self.units.push(Unit {
            pieces: start..self.pieces.stream.len(),
            table: None,
            whole,
        });
    }
}

/// Lays pieces one after the other. Rows of a matrix that are adjacent become one part.
fn joined(segment: SegmentKind, pieces: &[Piece]) -> Piece {
    let mut whole = Piece {
        segment,
        number: 0,
        of: 1,
        bytes: 0,
        tensors: Vec::new(),
        extents: Vec::new(),
    };
    for piece in pieces {
        for part in &piece.tensors {
            whole.tensors.push(TensorRows {
                offset: whole.bytes + part.offset,
                ..part.clone()
            });
        }
        whole.extents.extend(&piece.extents);
        whole.bytes += piece.bytes;
    }
    whole
}

/// Numbers of the levels that a layout supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelRange {
    /// Level with the most resident weights.
    pub least: usize,
    /// Level with the most KV frames.
    pub most: usize,
    /// Number of KV frames at level `most`.
    pub frames: usize,
    /// Whether more units could yield if host memory had room for them.
    pub is_host_limited: bool,
}

/// Memory that units and KV frames share.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    /// Bytes of device memory for units and KV frames.
    pub bytes: u64,
    /// Bytes of one KV frame.
    pub frame_bytes: u64,
    /// Number of KV frames that every level has at least.
    pub least_frames: usize,
    /// Number of KV frames that are of use.
    pub most_frames: usize,
    /// Bytes of host memory for units that yield.
    pub host_bytes: u64,
}

impl LevelRange {
    /// Finds the levels that fit: the lowest one has `least_frames`, the highest one
    /// `most_frames` or as many as memory allows. Returns `None` if there is only one level.
    pub fn fit(units: &[u64], memory: &SharedMemory) -> Option<LevelRange> {
        let frame_bytes = memory.frame_bytes.max(1);
        let frames_in = |bytes: u64| usize::try_from(bytes / frame_bytes).unwrap_or(usize::MAX);
        let resident = |level: usize| units[level..].iter().sum::<u64>();
        let mut host = 0;
        let affordable = units.iter().take_while(|&&bytes| {
            host += bytes;
            host <= memory.host_bytes
        });
        let affordable = affordable.count();
        let enough = (0..=affordable).find(|&level| {
            let left = memory.bytes.checked_sub(resident(level));
            left.is_some_and(|bytes| frames_in(bytes) >= memory.most_frames)
        });
        let most = enough.unwrap_or(affordable);
        let frames = frames_in(memory.bytes.checked_sub(resident(most))?).min(memory.most_frames);
        let at = |level: usize| {
            // The boundary of the zone lies at a block of a file.
            let zone: u64 = units[level..most].iter().sum::<u64>() + IO_BLOCK;
            let left = (frames as u64 * frame_bytes).checked_sub(zone)?;
            Some(frames_in(left))
        };
        let fits = |level: &usize| at(*level).is_some_and(|n| n >= memory.least_frames.max(1));
        let least = (0..most).find(fits)?;
        Some(LevelRange {
            least,
            most,
            frames,
            is_host_limited: enough.is_none() && affordable < units.len(),
        })
    }
}

/// State of an elastic layout.
#[derive(Clone, Debug)]
pub(crate) struct ElasticLayout {
    pub units: Vec<Unit>,
    pub range: LevelRange,
    /// Number of units that stream now.
    pub level: usize,
    /// Bytes reserved for the ring.
    pub ring_bytes: u64,
    /// End of the zone in the slab.
    pub zone_end: u64,
}

impl ElasticLayout {
    /// Creates a layout at the lowest level, with a zone that has no place yet.
    pub fn new(weights: &ElasticWeights, range: LevelRange) -> Self {
        let mut elastic = ElasticLayout {
            units: weights.units.clone(),
            range,
            level: range.least,
            ring_bytes: weights.ring_bytes(),
            zone_end: 0,
        };
        elastic.zone_end = elastic.bytes_of(0..range.most);
        elastic
    }

    /// Plan at the current level. Offsets count from the start of the slab: units that never
    /// yield, and then the ring.
    pub fn plan(&self, pieces: &Pieces) -> Plan {
        let (start, bytes) = (self.settled_bytes(), self.ring_bytes);
        let ring = Ring::lay(start, bytes, &self.streamed(pieces));
        let ring = ring.expect("the ring holds the largest piece");
        let mut placements = vec![None; pieces.stream.len()];
        for unit in self.resident() {
            let pieces = self.units[unit].pieces.clone();
            placements[pieces].fill(Some(self.placement(unit)));
        }
        for slot in &ring.slots {
            placements[slot.piece] = Some(slot.placement);
        }
        let placements = placements.into_iter().flatten().collect();
        let largest = pieces.stream.iter().map(|piece| piece.bytes);
        Plan {
            placements,
            resident_bytes: self.bytes_of(self.resident()) - self.table_bytes(),
            ring_offset: start,
            ring,
            pool_offset: start + bytes,
            pool_slots: 0,
            pool: ExpertPool::default(),
            ring_limit: bytes,
            ring_wanted: bytes,
            largest: largest.max().unwrap_or(0),
        }
    }

    /// Numbers of the pieces that may stream at some level, in order of use.
    pub fn may_stream(&self) -> Vec<usize> {
        let units = &self.units[..self.range.most];
        let mut numbers: Vec<usize> = units.iter().flat_map(|u| u.pieces.clone()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Start of the zone's weights at a level.
    pub fn zone_start(&self, level: usize) -> u64 {
        let most = self.range.most;
        self.zone_end - self.bytes_of(level.min(most)..most)
    }

    /// Bytes of the units that never yield. They lie at the start of the slab.
    pub fn settled_bytes(&self) -> u64 {
        self.bytes_of(self.range.most..self.units.len())
    }

    fn bytes_of(&self, units: Range<usize>) -> u64 {
        self.units[units].iter().map(|unit| unit.whole.bytes).sum()
    }

    /// Tables that are resident now, as units.
    pub fn resident_tables(&self) -> impl Iterator<Item = TensorId> {
        self.units[self.resident()].iter().filter_map(|u| u.table)
    }

    /// Bytes of the tables that are resident now, as units. A pass reads few of these bytes.
    pub fn table_bytes(&self) -> u64 {
        let units = self.units[self.resident()].iter();
        let tables = units.filter(|unit| unit.table.is_some());
        tables.map(|unit| unit.whole.bytes).sum()
    }

    /// Location of a unit while it is resident.
    pub fn placement(&self, unit: usize) -> Placement {
        let bytes = self.units[unit].whole.bytes;
        let offset = match unit < self.range.most {
            true => self.zone_start(unit),
            false => self.bytes_of(self.range.most..unit),
        };
        Placement {
            region: Region::Resident,
            offset,
            bytes,
        }
    }

    /// Numbers of the resident units.
    pub fn resident(&self) -> Range<usize> {
        self.level..self.units.len()
    }

    /// Numbers and bytes of the pieces that stream, in order of use.
    pub fn streamed(&self, pieces: &Pieces) -> Vec<(usize, u64)> {
        let units = &self.units[..self.level];
        let mut numbers: Vec<usize> = units.iter().flat_map(|u| u.pieces.clone()).collect();
        numbers.sort_unstable();
        let sized = numbers.into_iter().map(|n| (n, pieces.stream[n].bytes));
        sized.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LevelRange, SharedMemory};

    fn memory(bytes: u64, least: usize, most: usize, host: u64) -> SharedMemory {
        SharedMemory {
            bytes,
            frame_bytes: 10_000,
            least_frames: least,
            most_frames: most,
            host_bytes: host,
        }
    }

    #[test]
    fn the_range_ends_where_all_frames_fit() {
        let units = [50_000; 8];
        let fit = |bytes, most, host| LevelRange::fit(&units, &memory(bytes, 2, most, host));
        let range = |least, most, frames, is_host_limited| {
            Some(LevelRange {
                least,
                most,
                frames,
                is_host_limited,
            })
        };
        // 460,000 bytes hold all units and six frames.
        assert_eq!(fit(460_000, 20, u64::MAX), range(0, 3, 20, false));
        assert_eq!(fit(460_000, 1000, u64::MAX), range(0, 8, 46, false));
        assert_eq!(fit(460_000, 1000, 110_000), range(0, 2, 16, true));
        assert_eq!(fit(460_000, 4, u64::MAX), None, "all frames fit already");
        assert_eq!(fit(300_000, 20, u64::MAX), range(3, 6, 20, false));
        assert_eq!(fit(10_000, 20, u64::MAX), None, "too little memory");
    }

    proptest! {
        #[test]
        fn every_level_fits(
            units in prop::collection::vec(1u64..200_000, 1..30),
            bytes in 0u64..4_000_000, least in 1usize..20, most in 1usize..400,
            host in 0u64..3_000_000,
        ) {
            let memory = memory(bytes, least, most, host);
            if let Some(range) = LevelRange::fit(&units, &memory) {
                prop_assert!(range.least < range.most && range.most <= units.len());
                prop_assert!(range.frames <= most);
                prop_assert!(units[..range.most].iter().sum::<u64>() <= host);
                let settled: u64 = units[range.most..].iter().sum();
                let shared = range.frames as u64 * memory.frame_bytes;
                prop_assert!(settled + shared <= bytes);
                let zone: u64 = units[range.least..range.most].iter().sum();
                prop_assert!(zone + least as u64 * memory.frame_bytes <= shared);
            }
        }
    }
}
