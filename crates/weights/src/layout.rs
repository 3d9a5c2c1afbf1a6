//! Layout of the weights in memory that is not allocated yet: the pieces, the plan, and the
//! location of every tensor.

use djinn_model::{
    Weights,
    program::{Program, SegmentKind},
};

use djinn_types::{IO_BLOCK, Tier};

use crate::{
    LayoutOptions, LevelRange, LinkSettings, MemorySettings, Placement, PlanError, Region,
    TensorPlacements,
    elastic::{ElasticLayout, ElasticWeights, Unit},
    host_layout::HostLayout,
    pieces::{Piece, Pieces},
    plan::{ExpertPool, Keep, Plan, PlanInput},
};

/// Layout of a model's weights in memory that is not allocated yet.
pub struct WeightLayout {
    options: LayoutOptions,
    pieces: Pieces,
    plan: Plan,
    /// Locations of the pieces that always stay, in order.
    kept: Vec<Placement>,
    tensors: TensorPlacements,
    host: HostLayout,
    /// Segments of the program. The first labels belong to these segments.
    segments: Vec<SegmentKind>,
    /// Number of experts in a block.
    block_experts: usize,
    /// Least bytes of device memory that keep all weights resident.
    whole_bytes: u64,
    /// Units that may yield their memory; `None` if the plan is fixed.
    elastic: Option<ElasticLayout>,
}

/// A piece of the weights as a plan lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPiece {
    /// Name of the piece, for example `block 3, 2 of 5`.
    pub name: String,
    /// Segment of the program that the piece belongs to.
    pub segment: SegmentKind,
    /// Location of the piece. For an expert, the location is the first slot of the pool.
    pub placement: Placement,
    /// Number of visits from an earlier piece to this one, for a piece of the ring. The earlier
    /// piece must be out of use before this piece may arrive.
    pub after: Option<usize>,
}

impl WeightLayout {
    /// Lays weights out within a budget. `fixed` returns the bytes of device memory that are
    /// needed in addition to the weights.
    pub fn new(
        program: &Program,
        weights: &dyn Weights,
        options: LayoutOptions,
        fixed: impl Fn(&Pieces) -> u64,
    ) -> Result<Self, PlanError> {
        let (memory, packing) = (options.memory, options.packing);
        let fixed = |pieces: &Pieces| fixed(pieces).saturating_add(pieces.kept_bytes());
        let whole = Pieces::whole(program, weights, packing);
        let whole_bytes = fixed(&whole);
        let stays = match memory.overrides.keep {
            Keep::Fit | Keep::All => true,
            Keep::Nothing => false,
            Keep::AtMost(bytes) => whole.kept_bytes() <= bytes,
        };
        let budget = memory.budget;
        if memory.overrides.keep == Keep::All && whole_bytes > budget {
            return Err(PlanError::NotAll {
                budget,
                whole: whole_bytes,
            });
        }
        let pieces = if stays && whole_bytes <= budget {
            whole
        } else {
            Pieces::cut(program, weights, packing, options.piece_bytes)
        };
        let input = plan_input(&pieces, fixed(&pieces), budget, &options.link);
        let plan = Plan::new(&input, memory.overrides)?;
        let host = match options.link.tier {
            Tier::Files => HostLayout::default(),
            Tier::Host if memory.host_copy => HostLayout::of_all(&pieces),
            Tier::Host => {
                let streamed = plan.ring.slots.iter().map(|slot| slot.piece);
                HostLayout::new(&pieces, &plan, streamed)
            }
        };
        let kept = place_kept(&pieces, plan.bytes());
        let tensors = TensorPlacements::new(program, &pieces, &plan, &kept);
        Ok(WeightLayout {
            options,
            pieces,
            plan,
            kept,
            tensors,
            host,
            segments: program.segments.iter().map(|s| s.kind).collect(),
            block_experts: program.dims.experts,
            whole_bytes,
            elastic: None,
        })
    }

    /// Lays out elastic weights at the lowest level of `range`. `whole_bytes` is the memory that
    /// a fixed plan needs to keep all weights resident.
    ///
    /// The zone of the weights that may yield is not part of [`WeightLayout::slab_bytes`]: call
    /// [`WeightLayout::place_zone`] once the KV frames are laid out.
    pub fn elastic_at(
        program: &Program,
        weights: &ElasticWeights,
        range: LevelRange,
        whole_bytes: u64,
    ) -> Self {
        let elastic = ElasticLayout::new(weights, range);
        let (pieces, options) = (weights.pieces.clone(), weights.options);
        let plan = elastic.plan(&pieces);
        let host = match options.link.tier {
            Tier::Files => HostLayout::default(),
            Tier::Host if options.memory.host_copy => HostLayout::of_all(&pieces),
            Tier::Host => HostLayout::new(&pieces, &plan, elastic.may_stream().into_iter()),
        };
        let kept = place_kept(&pieces, plan.bytes());
        let tensors = TensorPlacements::elastic(program, &pieces, &elastic, &plan.ring, &kept);
        WeightLayout {
            options,
            pieces,
            plan,
            kept,
            tensors,
            host,
            segments: program.segments.iter().map(|s| s.kind).collect(),
            block_experts: program.dims.experts,
            whole_bytes,
            elastic: Some(elastic),
        }
    }

    /// Places the zone of the weights that may yield: it ends at or before `end`.
    pub fn place_zone(&mut self, program: &Program, end: u64) {
        if let Some(elastic) = &mut self.elastic {
            elastic.zone_end = end / IO_BLOCK * IO_BLOCK;
            self.lay_level(program);
        }
    }

    /// Changes the level of an elastic layout: the number of units that stream.
    ///
    /// # Panics
    /// Panics if the layout has no such level.
    pub fn set_level(&mut self, program: &Program, level: usize) {
        let elastic = self.elastic.as_mut().expect("the layout is elastic");
        let LevelRange { least, most, .. } = elastic.range;
        assert!((least..=most).contains(&level), "level {level} exists");
        elastic.level = level;
        self.lay_level(program);
    }

    fn lay_level(&mut self, program: &Program) {
        let elastic = self.elastic.as_ref().expect("the layout is elastic");
        let pieces = &self.pieces;
        self.plan = elastic.plan(pieces);
        self.tensors =
            TensorPlacements::elastic(program, pieces, elastic, &self.plan.ring, &self.kept);
    }

    /// Levels of the layout; `None` if the plan is fixed.
    pub fn levels(&self) -> Option<LevelRange> {
        Some(self.elastic.as_ref()?.range)
    }

    /// Number of units that stream now; 0 if the plan is fixed.
    pub fn level(&self) -> usize {
        self.elastic.as_ref().map_or(0, |elastic| elastic.level)
    }

    /// Start in the slab of the weights that lie behind the KV frames at a level; `None` if the
    /// plan is fixed.
    pub fn zone_start(&self, level: usize) -> Option<u64> {
        Some(self.elastic.as_ref()?.zone_start(level))
    }

    /// Bytes of the weights that lie behind the KV frames now.
    pub fn zone_bytes(&self) -> u64 {
        let elastic = self.elastic.as_ref();
        elastic.map_or(0, |elastic| {
            elastic.zone_end - elastic.zone_start(elastic.level)
        })
    }

    /// Units that may yield; `None` if the plan is fixed.
    pub(crate) fn elastic(&self) -> Option<&ElasticLayout> {
        self.elastic.as_ref()
    }

    /// Plan of the weights: which pieces stay, which stream, and where each lies.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Memory budgets and overrides of the user.
    pub fn memory(&self) -> MemorySettings {
        self.options.memory
    }

    /// Settings of the link.
    pub fn link(&self) -> LinkSettings {
        self.options.link
    }

    /// Pieces of the weights.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Location of every tensor in the slab.
    pub fn tensors(&self) -> &TensorPlacements {
        &self.tensors
    }

    /// Bytes of the ring, in use or reserved for it.
    pub fn ring_bytes(&self) -> u64 {
        match &self.elastic {
            Some(elastic) => elastic.ring_bytes,
            None => self.plan.ring.bytes,
        }
    }

    /// Bytes of the slab that weights take, starting at offset 0, without the zone of weights
    /// that may yield.
    pub fn slab_bytes(&self) -> u64 {
        self.plan.bytes() + self.pieces.kept_bytes()
    }

    /// Bytes of the weights that stay on the device.
    pub fn resident_bytes(&self) -> u64 {
        let tables = self.elastic.as_ref().map_or(0, ElasticLayout::table_bytes);
        self.plan.resident_bytes + tables + self.pieces.kept_bytes()
    }

    /// Bytes of the slab for experts that are copied in when a router chooses them.
    pub fn pool_bytes(&self) -> u64 {
        self.plan.bytes() - self.plan.pool_offset
    }

    /// Least bytes of device memory that keep all weights resident.
    pub fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Bytes of host memory that weights are copied from; 0 if weights stream from files.
    pub fn host_bytes(&self) -> u64 {
        self.host.bytes
    }

    /// Bytes of host memory that workers load resident weights through.
    pub fn staging_bytes(&self) -> u64 {
        match self.host.has_all {
            true => 0,
            false => self.options.link.load_staging().min(self.resident_bytes()),
        }
    }

    /// Bytes that are read from files before the first pass.
    pub fn load_bytes(&self) -> u64 {
        if self.host.has_all {
            return self.host.bytes;
        }
        let pool = match self.host.experts.is_empty() {
            true => self.pool_bytes(),
            false => 0,
        };
        let in_host = match self.host.bytes {
            0 => 0,
            _ => self.zone_bytes(),
        };
        self.resident_bytes() - in_host + self.host.bytes + pool
    }

    /// Bytes of one read of the link: at most the size of a piece, and small enough to measure
    /// without much memory.
    pub fn link_chunk(&self) -> u64 {
        let link = &self.options.link;
        let pieces = self.pieces.stream.iter().chain(&self.pieces.experts);
        let largest = pieces.map(|piece| piece.bytes).max().unwrap_or(u64::MAX);
        let measurable = LinkSettings::MEASURED_BYTES / link.workers as u64;
        link.chunk.min(largest).min(measurable)
    }

    /// Lists every piece that can stream, in order of use, and then the experts. A resident unit
    /// of an elastic layout is one piece.
    pub fn planned_pieces(&self) -> Vec<PlannedPiece> {
        if let Some(elastic) = &self.elastic {
            return self.planned_units(elastic);
        }
        let pool = |piece: &Piece| Placement {
            region: Region::Pool,
            offset: self.plan.pool_offset,
            bytes: piece.bytes,
        };
        let stream = self.pieces.stream.iter().zip(&self.plan.placements);
        let experts = self.pieces.experts.iter();
        stream
            .map(|(piece, &placement)| (piece, placement))
            .chain(experts.map(|piece| (piece, pool(piece))))
            .map(|(piece, placement)| PlannedPiece {
                name: piece.name(),
                segment: piece.segment,
                placement,
                after: match placement.region {
                    Region::Ring(visit) => Some(self.plan.ring.slots[visit].after),
                    _ => None,
                },
            })
            .collect()
    }

    fn planned_units(&self, elastic: &ElasticLayout) -> Vec<PlannedPiece> {
        let mut planned: Vec<(usize, PlannedPiece)> = Vec::new();
        for unit in elastic.resident() {
            let Unit { pieces, whole, .. } = &elastic.units[unit];
            planned.push((
                pieces.start,
                PlannedPiece {
                    name: whole.name(),
                    segment: whole.segment,
                    placement: elastic.placement(unit),
                    after: None,
                },
            ));
        }
        for slot in &self.plan.ring.slots {
            let piece = &self.pieces.stream[slot.piece];
            planned.push((
                slot.piece,
                PlannedPiece {
                    name: piece.name(),
                    segment: piece.segment,
                    placement: slot.placement,
                    after: Some(slot.after),
                },
            ));
        }
        planned.sort_by_key(|(number, _)| *number);
        planned.into_iter().map(|(_, piece)| piece).collect()
    }

    /// Whether all weights are resident.
    pub fn keeps_everything(&self) -> bool {
        !self.tensors.reads_rows() && self.plan.ring.slots.is_empty()
    }

    /// Bytes of weights that a pass reads if all weights are resident, excluding tables; 0 if
    /// some weights stream.
    pub fn read_when_whole(&self, program: &Program, weights: &dyn Weights) -> u64 {
        if !self.keeps_everything() {
            return 0;
        }
        let cut = Pieces::cut(program, weights, self.options.packing, u64::MAX);
        // The plan of an elastic layout counts its units.
        cut.stream_bytes().saturating_sub(self.plan.resident_bytes)
    }

    /// Names for the labels of copies and of segments.
    pub fn labels(&self) -> Vec<String> {
        let pieces = self.pieces.stream.iter().chain(&self.pieces.experts);
        let pieces = pieces.map(Piece::name);
        let rows = std::iter::once("rows of the embedding".to_owned());
        self.segments
            .iter()
            .map(SegmentKind::to_string)
            .chain(pieces)
            .chain(rows)
            .collect()
    }

    /// Label of a segment of the program.
    pub fn segment_label(&self, kind: SegmentKind) -> u32 {
        let at = self.segments.iter().position(|segment| *segment == kind);
        at.expect("a segment of the program") as u32
    }

    /// Label of a piece that every pass uses.
    pub(crate) fn piece_label(&self, number: usize) -> u32 {
        (self.segments.len() + number) as u32
    }

    /// Label of an expert.
    pub(crate) fn expert_label(&self, number: usize) -> u32 {
        self.piece_label(self.pieces.stream.len() + number)
    }

    /// Label of rows that are read from a table.
    pub(crate) fn rows_label(&self) -> u32 {
        self.expert_label(self.pieces.experts.len())
    }

    /// Location of the weights in host memory.
    pub(crate) fn host(&self) -> &HostLayout {
        &self.host
    }

    /// Locations of the pieces that always stay, in order.
    pub(crate) fn kept_placements(&self) -> &[Placement] {
        &self.kept
    }

    /// Experts that are copied into the pool before the first pass: equally many from each block.
    pub(crate) fn first_experts(&self) -> Vec<usize> {
        let (count, of_block) = (self.pieces.experts.len(), self.block_experts);
        let blocks = count.checked_div(of_block).unwrap_or(0);
        let spread = (0..of_block).flat_map(|e| (0..blocks).map(move |b| b * of_block + e));
        spread.take(self.plan.pool_slots).collect()
    }
}

/// Places the pieces that always stay behind `offset`, one after the other.
fn place_kept(pieces: &Pieces, mut offset: u64) -> Vec<Placement> {
    let place = |piece: &Piece| {
        offset += piece.bytes;
        Placement {
            region: Region::Resident,
            offset: offset - piece.bytes,
            bytes: piece.bytes,
        }
    };
    pieces.kept.iter().map(place).collect()
}

fn plan_input(pieces: &Pieces, fixed: u64, budget: u64, link: &LinkSettings) -> PlanInput {
    let sizes: Vec<u64> = pieces.stream.iter().map(|piece| piece.bytes).collect();
    let largest = sizes.iter().copied().max().unwrap_or(0);
    PlanInput {
        budget,
        fixed,
        pieces: sizes,
        experts: ExpertPool {
            count: pieces.experts.len(),
            bytes: pieces.experts.first().map_or(0, |piece| piece.bytes),
        },
        in_flight: link.in_flight(largest),
        waiting: link.waiting(),
    }
}
