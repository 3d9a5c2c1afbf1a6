//! Copy operations of a layout: from files into the slab and into host memory, and from
//! host memory into the slab.

use djinn_model::Extent;

use crate::{CopyOp, Placement, Region, RingSlot, WeightLayout, elastic::Unit, pieces::Piece};

/// Copies of one piece from files, cut into chunks on demand. A list of all chunks of a large
/// model would take gigabytes.
#[derive(Clone, Debug)]
pub(super) struct ChunkedCopy {
    /// Copies of the piece, one for each extent.
    ops: Vec<CopyOp<Extent>>,
    /// Largest size of a chunk.
    chunk: u64,
}

impl ChunkedCopy {
    /// Copies extents to `to`, one after the other, in chunks of at most `chunk` bytes.
    pub fn new(extents: &[Extent], to: Placement, chunk: u64, label: u32) -> Self {
        assert!(chunk > 0, "a chunk has at least one byte");
        let mut start = 0;
        let op = |&from: &Extent| {
            start += from.bytes;
            CopyOp {
                from,
                to: to.part(start - from.bytes, from.bytes),
                label,
            }
        };
        ChunkedCopy {
            ops: extents.iter().map(op).collect(),
            chunk,
        }
    }

    /// Returns the same copies with the destination `distance` bytes further.
    pub fn shifted(&self, distance: u64) -> Self {
        ChunkedCopy {
            ops: self.ops.iter().map(|op| op.shifted(distance)).collect(),
            chunk: self.chunk,
        }
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.ops.iter().map(|op| self.chunks_of(op)).sum()
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.ops.iter().map(|op| op.to.bytes).sum()
    }

    /// Label of the piece.
    pub fn label(&self) -> u32 {
        self.ops.first().map_or(0, |op| op.label)
    }

    fn chunks_of(&self, op: &CopyOp<Extent>) -> usize {
        op.to.bytes.div_ceil(self.chunk) as usize
    }

    /// Returns a chunk by number.
    pub fn chunk(&self, mut number: usize) -> CopyOp<Extent> {
        for op in &self.ops {
            let count = self.chunks_of(op);
            if number < count {
                let start = number as u64 * self.chunk;
                return op.part(start, self.chunk.min(op.to.bytes - start));
            }
            number -= count;
        }
        unreachable!("there are no more than `len` chunks")
    }

    /// Returns all chunks in order.
    pub fn chunks(&self) -> impl Iterator<Item = CopyOp<Extent>> {
        (0..self.len()).map(|number| self.chunk(number))
    }
}

/// Copy of one visit of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingCopy<C> {
    /// Copy that fills the place of the visit.
    pub copy: C,
    /// Number of visits from an earlier visit to this one. The earlier visit must be over
    /// before this copy may begin.
    pub after: u64,
}

/// Copies that fill the ring from files, by visit.
pub(super) fn ring_from_files(layout: &WeightLayout) -> Vec<RingCopy<ChunkedCopy>> {
    let slots = layout.plan().ring.slots.iter();
    slots
        .map(|slot| RingCopy {
            copy: piece_copy(layout, slot.piece, slot.placement),
            after: slot.after as u64,
        })
        .collect()
}

/// Copies that fill the ring from host memory, by visit; none if weights stream from files.
pub(super) fn ring_from_host(layout: &WeightLayout) -> Vec<RingCopy<CopyOp<Placement>>> {
    let slots = layout.plan().ring.slots.iter();
    let copy = |slot: &RingSlot| {
        Some(RingCopy {
            copy: CopyOp {
                from: *layout.host().pieces.get(&slot.piece)?,
                to: slot.placement,
                label: layout.piece_label(slot.piece),
            },
            after: slot.after as u64,
        })
    };
    slots.filter_map(copy).collect()
}

/// Copies of all experts from files into the first slot of the pool.
pub(super) fn experts_from_files(layout: &WeightLayout) -> Vec<ChunkedCopy> {
    let experts = layout.pieces().experts.iter().enumerate();
    experts
        .map(|(number, piece)| {
            let label = layout.expert_label(number);
            file_copy(layout, piece, pool_slot(layout, piece), label)
        })
        .collect()
}

/// Copies of all experts from host memory into the first slot of the pool; none if all
/// experts stay on the device.
pub(super) fn experts_from_host(layout: &WeightLayout) -> Vec<CopyOp<Placement>> {
    let experts = layout.pieces().experts.iter().zip(&layout.host().experts);
    experts
        .enumerate()
        .map(|(number, (piece, from))| CopyOp {
            from: from.part(0, piece.read_bytes()),
            to: pool_slot(layout, piece),
            label: layout.expert_label(number),
        })
        .collect()
}

/// Copies from files of all resident weights that host memory has no copy of.
pub(super) fn resident(layout: &WeightLayout) -> Vec<ChunkedCopy> {
    if layout.host().has_all {
        return Vec::new();
    }
    let kept = layout.pieces().kept.iter().zip(layout.kept_placements());
    let kept = kept.map(|(piece, &to)| {
        let label = layout.segment_label(piece.segment);
        file_copy(layout, piece, to, label)
    });
    if let Some(elastic) = layout.elastic() {
        let in_host = |unit: &usize| *unit < elastic.range.most && layout.host().bytes > 0;
        let units = elastic.resident().filter(|unit| !in_host(unit));
        return kept.chain(units_from_files(layout, units)).collect();
    }
    let pieces = layout.plan().placements.iter().enumerate();
    let pieces = pieces.filter(|(_, to)| to.region == Region::Resident);
    kept.chain(pieces.map(|(number, &to)| piece_copy(layout, number, to)))
        .collect()
}

/// Copies from host memory of all resident weights that host memory has a copy of, except experts.
pub(super) fn resident_from_host(layout: &WeightLayout) -> Vec<CopyOp<Placement>> {
    let (host, pieces) = (layout.host(), layout.pieces());
    let kept = pieces.kept.iter().zip(&host.kept);
    let mut copies: Vec<_> = kept
        .zip(layout.kept_placements())
        .map(|((piece, &from), &to)| CopyOp {
            from,
            to,
            label: layout.segment_label(piece.segment),
        })
        .collect();
    match layout.elastic() {
        Some(elastic) if host.has_all => {
            copies.extend(units_from_host(layout, elastic.resident()));
        }
        Some(elastic) if host.bytes > 0 => {
            copies.extend(units_from_host(layout, elastic.level..elastic.range.most));
        }
        Some(_) => {}
        None => copies.extend(pieces_from_host(layout)),
    }
    copies
}

/// Copies from host memory of the resident pieces that host memory has a copy of.
fn pieces_from_host(layout: &WeightLayout) -> impl Iterator<Item = CopyOp<Placement>> {
    let placements = layout.plan().placements.iter().enumerate();
    placements.filter_map(|(number, &to)| {
        let from = *layout.host().pieces.get(&number)?;
        (to.region == Region::Resident).then(|| CopyOp {
            from,
            to,
            label: layout.piece_label(number),
        })
    })
}

/// Copies of whole units from files to where they lie while they are resident.
pub(super) fn units_from_files(
    layout: &WeightLayout,
    units: impl Iterator<Item = usize>,
) -> Vec<ChunkedCopy> {
    let copy = |unit: usize| {
        let elastic = layout.elastic().expect("only elastic layouts have units");
        let whole = &elastic.units[unit].whole;
        let label = layout.segment_label(whole.segment);
        file_copy(layout, whole, elastic.placement(unit), label)
    };
    units.map(copy).collect()
}

/// Copies of whole units from host memory to where they lie while they are resident.
pub(super) fn units_from_host(
    layout: &WeightLayout,
    units: impl Iterator<Item = usize>,
) -> Vec<CopyOp<Placement>> {
    let copy = |unit: usize| {
        let elastic = layout.elastic().expect("only elastic layouts have units");
        let Unit {
            pieces,
            table,
            whole,
        } = &elastic.units[unit];
        let host = layout.host();
        let first = match table {
            Some(table) => host.tables[table],
            None => host.pieces[&pieces.start],
        };
        CopyOp {
            // The pieces of a unit lie one after the other, as in the slab.
            from: Placement {
                bytes: whole.bytes,
                ..first
            },
            to: elastic.placement(unit),
            label: layout.segment_label(whole.segment),
        }
    };
    units.map(copy).collect()
}

/// Copies from files into host memory, for all weights that host memory has a copy of.
pub(super) fn into_host(layout: &WeightLayout) -> Vec<ChunkedCopy> {
    let (host, pieces) = (layout.host(), layout.pieces());
    let kept = pieces.kept.iter().zip(&host.kept);
    let kept =
        kept.map(|(piece, &to)| file_copy(layout, piece, to, layout.segment_label(piece.segment)));
    let ring = host.pieces.iter();
    let ring = ring.map(|(&number, &to)| piece_copy(layout, number, to));
    let experts = pieces.experts.iter().zip(&host.experts).enumerate();
    let experts = experts
        .map(|(number, (piece, &to))| file_copy(layout, piece, to, layout.expert_label(number)));
    let tables = pieces.tables.iter().zip(&pieces.table_extents);
    let tables = tables.filter_map(|(table, &extent)| {
        let (to, chunk) = (*host.tables.get(table)?, layout.link().load_chunk());
        Some(ChunkedCopy::new(&[extent], to, chunk, layout.rows_label()))
    });
    kept.chain(ring).chain(experts).chain(tables).collect()
}

fn piece_copy(layout: &WeightLayout, number: usize, to: Placement) -> ChunkedCopy {
    let piece = &layout.pieces().stream[number];
    file_copy(layout, piece, to, layout.piece_label(number))
}

fn file_copy(layout: &WeightLayout, piece: &Piece, to: Placement, label: u32) -> ChunkedCopy {
    ChunkedCopy::new(&piece.extents, to, layout.link().load_chunk(), label)
}

/// Part of the pool's first slot that an expert fills.
fn pool_slot(layout: &WeightLayout, piece: &Piece) -> Placement {
    Placement {
        region: Region::Pool,
        offset: layout.plan().pool_offset,
        bytes: piece.read_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use djinn_model::{Model, program::TensorId};
    use djinn_types::Tier;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        ElasticWeights, Keep, LayoutOptions, LevelRange, LinkSettings, MemorySettings, Overrides,
        Packing, PlacedRows,
    };

    proptest! {
        #[test]
        fn chunks_cover_every_extent_once(
            sizes in prop::collection::vec(1u64..50, 1..5), chunk in 1u64..60, at in 0u64..100,
        ) {
            let extents: Vec<Extent> = sizes
                .iter()
                .enumerate()
                .map(|(file, &bytes)| Extent { file, offset: 7 * bytes, bytes })
                .collect();
            let total: u64 = sizes.iter().sum();
            let to = Placement { region: Region::Resident, offset: at, bytes: total };
            let copy = ChunkedCopy::new(&extents, to, chunk, 3);
            prop_assert_eq!(copy.bytes(), total);
            prop_assert_eq!(copy.chunks().count(), copy.len());
            let mut end = at;
            for op in copy.chunks() {
                prop_assert_eq!(op.to.offset, end);
                prop_assert!(op.to.bytes <= chunk);
                prop_assert_eq!(op.from.bytes, op.to.bytes);
                let before: u64 = sizes[..op.from.file].iter().sum();
                let in_extent = op.from.offset - extents[op.from.file].offset;
                prop_assert_eq!(in_extent, op.to.offset - at - before);
                end += op.to.bytes;
            }
            prop_assert_eq!(end, at + total);
            prop_assert_eq!(copy.shifted(10).chunk(0).to.offset, at + 10);
        }
    }

    fn options(tier: Tier, keep: Keep, host_copy: bool) -> LayoutOptions {
        let overrides = Overrides {
            keep,
            ..Overrides::default()
        };
        let memory = MemorySettings {
            tier: Some(tier),
            overrides,
            chunk: Some(4096),
            host_copy,
            ..MemorySettings::default()
        };
        LayoutOptions {
            memory,
            link: LinkSettings::resolve(&memory, tier).expect("valid settings"),
            packing: match tier {
                Tier::Files => Packing::Blocks,
                Tier::Host => Packing::Tensors,
            },
            piece_bytes: 20_000,
        }
    }

    fn layout(model: &Model, tier: Tier, keep: Keep, host_copy: bool) -> WeightLayout {
        let options = options(tier, keep, host_copy);
        let fixed = |_: &_| 0;
        WeightLayout::new(&model.program, &*model.weights, options, fixed).expect("it fits")
    }

    /// A slab and host memory that copies write to.
    struct TestMemory<'m> {
        model: &'m Model,
        slab: Vec<u8>,
        host: Vec<u8>,
    }

    impl TestMemory<'_> {
        fn read(&mut self, copy: &ChunkedCopy) {
            for op in copy.chunks() {
                let memory = match op.to.region {
                    Region::Host => &mut self.host,
                    _ => &mut self.slab,
                };
                let bytes = &mut memory[op.to.offset as usize..op.to.end() as usize];
                let weights = &self.model.weights;
                weights
                    .read(op.from.file, op.from.offset, bytes)
                    .expect("the file can be read");
            }
        }

        fn copy(&mut self, op: &CopyOp<Placement>) {
            assert_eq!(op.from.bytes, op.to.bytes);
            let from = &self.host[op.from.offset as usize..op.from.end() as usize];
            self.slab[op.to.offset as usize..op.to.end() as usize].copy_from_slice(from);
        }

        /// Panics unless rows of a tensor lie in the slab.
        fn check(&self, id: TensorId, part: &PlacedRows) {
            let bytes = part.placement.bytes as usize;
            let mut expect = vec![0; bytes];
            let offset = (part.rows.start * bytes / part.rows.len().max(1)) as u64;
            let weights = &self.model.weights;
            weights
                .read_tensor(id, offset, &mut expect)
                .expect("the tensor can be read");
            let at = part.view().offset as usize;
            let name = &self.model.program.tensor(id).name;
            assert!(
                self.slab[at..at + bytes] == expect,
                "{name} {:?}",
                part.rows
            );
        }
    }

    /// Runs all copies of a layout and compares every tensor with its file.
    fn check_layout(model: &Model, layout: &WeightLayout) {
        let mut memory = TestMemory {
            model,
            slab: vec![0; slab_bytes(layout) as usize],
            host: vec![0; layout.host_bytes() as usize],
        };
        for copy in resident(layout).iter().chain(&into_host(layout)) {
            memory.read(copy);
        }
        for copy in resident_from_host(layout) {
            memory.copy(&copy);
        }
        let parts = |region: Region| {
            let tensors = (0..model.program.tensors.len()).map(TensorId);
            tensors
                .flat_map(|id| {
                    layout
                        .tensors()
                        .parts(id)
                        .iter()
                        .map(move |part| (id, part))
                })
                .filter(move |(_, part)| part.placement.region == region)
        };
        let (from_files, from_host) = (ring_from_files(layout), ring_from_host(layout));
        for (visit, file_copy) in from_files.iter().enumerate() {
            match from_host.get(visit) {
                Some(host_copy) => memory.copy(&host_copy.copy),
                None => memory.read(&file_copy.copy),
            }
            parts(Region::Ring(visit)).for_each(|(id, part)| memory.check(id, part));
        }
        parts(Region::Resident).for_each(|(id, part)| memory.check(id, part));
        let (from_files, from_host) = (experts_from_files(layout), experts_from_host(layout));
        for (expert, piece) in layout.pieces().experts.iter().enumerate() {
            match from_host.get(expert) {
                Some(op) => memory.copy(op),
                None => memory.read(&from_files[expert]),
            }
            for rows in &piece.tensors {
                let [part] = layout.tensors().parts(rows.tensor) else {
                    panic!("a matrix of an expert is not cut");
                };
                memory.check(rows.tensor, part);
            }
        }
    }

    /// Bytes of a slab with the weights and the zone behind them.
    fn slab_bytes(layout: &WeightLayout) -> u64 {
        let zone = layout.elastic().map_or(0, |elastic| elastic.zone_end);
        layout.slab_bytes().max(zone)
    }

    /// Lays out a model so that all levels of its units are possible.
    fn elastic_layout(
        model: &Model,
        tier: Tier,
        tables_stay: bool,
        host_copy: bool,
    ) -> WeightLayout {
        let options = options(tier, Keep::Fit, host_copy);
        let (program, weights) = (&model.program, &*model.weights);
        let cut = ElasticWeights::cut(program, weights, options, tables_stay);
        let cut = cut.expect("the model has no experts");
        let range = LevelRange {
            least: 0,
            most: cut.unit_bytes().len() - 1,
            frames: 0,
            is_host_limited: false,
        };
        let mut layout = WeightLayout::elastic_at(program, &cut, range, 0);
        let zone: u64 = cut.unit_bytes().iter().sum();
        layout.place_zone(program, layout.slab_bytes() + zone + 4096);
        layout
    }

    fn elastic_units(layout: &WeightLayout) -> &[Unit] {
        &layout.elastic().expect("an elastic layout").units
    }

    /// Panics unless every matrix of a resident unit lies in one part, and every tensor is whole.
    fn check_parts(model: &Model, layout: &WeightLayout) {
        let elastic = layout.elastic().expect("an elastic layout");
        for unit in elastic.resident() {
            for part in &elastic.units[unit].whole.tensors {
                let parts = layout.tensors().parts(part.tensor);
                assert_eq!(parts.len(), 1, "a resident matrix is a whole view");
            }
        }
        for (id, tensor) in model.program.tensors.iter().enumerate() {
            let parts = layout.tensors().parts(TensorId(id));
            let ends = parts.iter().map(|part| part.rows.end);
            let starts = parts.iter().map(|part| part.rows.start);
            let is_table = layout.pieces().tables.contains(&TensorId(id)) && parts.is_empty();
            let whole = std::iter::once(0)
                .chain(ends)
                .eq(starts.chain([tensor.matrix().0]));
            assert!(is_table || whole, "{} has {parts:?}", tensor.name);
        }
    }

    #[test]
    fn every_level_of_an_elastic_layout_has_all_tensors() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        for name in ["llama3", "gpt2", "falcon7b", "qwen2"] {
            let model = Model::open(&format!("{root}{name}")).expect("a golden model");
            for (tier, stay, copy) in [
                (Tier::Files, true, false),
                (Tier::Files, true, true),
                (Tier::Host, false, false),
                (Tier::Host, true, false),
                (Tier::Host, false, true),
                (Tier::Host, true, true),
            ] {
                let mut layout = elastic_layout(&model, tier, stay, copy);
                let most = layout.levels().expect("an elastic layout").most;
                let mut resident = u64::MAX;
                for level in (0..=most).chain([0]) {
                    layout.set_level(&model.program, level);
                    check_layout(&model, &layout);
                    check_parts(&model, &layout);
                    assert!(level == 0 || layout.resident_bytes() < resident);
                    resident = layout.resident_bytes();
                    let matrices = elastic_units(&layout)[..level].iter();
                    let streams = matrices.filter(|unit| unit.table.is_none()).count();
                    assert_eq!(layout.plan().streams(), streams > 0);
                    assert_eq!(layout.keeps_everything(), level == 0 && stay);
                    let boundary = layout.zone_start(level).expect("an elastic layout");
                    let tensors = (0..model.program.tensors.len()).map(TensorId);
                    let parts = tensors.flat_map(|id| layout.tensors().parts(id));
                    let starts = parts.map(|part| part.placement.offset);
                    let mut behind = starts.filter(|&start| start >= layout.slab_bytes());
                    assert!(behind.all(|start| start >= boundary), "{name} {level}");
                }
            }
        }
    }

    #[test]
    fn copies_bring_every_tensor_into_place() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        for name in ["llama3", "gpt2", "mixtral"] {
            let model = Model::open(&format!("{root}{name}")).expect("a golden model");
            let half = model.program.weight_bytes() / 2;
            for tier in [Tier::Files, Tier::Host] {
                for keep in [Keep::All, Keep::AtMost(half), Keep::Nothing] {
                    check_layout(&model, &layout(&model, tier, keep, false));
                    check_layout(&model, &layout(&model, tier, keep, true));
                }
            }
        }
    }
}
