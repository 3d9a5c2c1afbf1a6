//! Weights laid out in memory that does not exist yet: the pieces, the plan, and where
//! every tensor lies.

use djinn_model::{
    Weights,
    program::{Program, SegmentKind},
};

use djinn_types::Tier;

use crate::{
    LinkSettings, MemorySettings, PlacedWeights,
    host_layout::HostLayout,
    pieces::{Packing, Piece, Pieces, Run},
    plan::{Keep, Needs, Place, Plan, PlanError, Pool},
    streamer::{Copies, MEASURE_RING, RingPiece},
};

/// Options that decide how weights are laid out.
#[derive(Clone, Copy, Debug)]
pub struct LayoutOptions {
    /// Memory budgets and overrides of the user.
    pub memory: MemorySettings,
    /// The link, with all defaults filled in.
    pub link: LinkSettings,
    /// Alignment of tensors in memory.
    pub packing: Packing,
    /// Largest size of a piece, where matrices can be cut that small.
    pub piece_bytes: u64,
}

/// Weights of a model laid out in memory that does not exist yet.
pub struct WeightLayout {
    options: LayoutOptions,
    pieces: Pieces,
    plan: Plan,
    tensors: PlacedWeights,
    host: HostLayout,
    /// Segments of the program; the first labels stand for these.
    segments: Vec<SegmentKind>,
    /// Bytes of device memory with which nothing streams.
    whole_bytes: u64,
}

/// A piece of the weights as a plan lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPiece {
    /// Name of the piece, for example `block 3, 2 of 5`.
    pub name: String,
    /// Segment of the program that the piece belongs to.
    pub segment: SegmentKind,
    /// Size in memory.
    pub bytes: u64,
    /// Location in memory.
    pub place: PiecePlace,
}

/// Location of a piece of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PiecePlace {
    /// Resident at this offset of the slab.
    Resident(u64),
    /// Streamed through the ring.
    Ring {
        /// Offset from the start of the ring.
        offset: u64,
        /// Number of visits between the piece and the earlier piece that must be out of
        /// use before this one may arrive.
        after: usize,
    },
    /// Copied into a slot of the expert pool when a router chooses it.
    Pool,
}

impl WeightLayout {
    /// Lays weights out within a budget. `fixed` returns the bytes of device memory that
    /// are needed beside the weights.
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
        let needs = needs(&pieces, fixed(&pieces), budget, &options.link);
        let plan = Plan::new(&needs, memory.overrides)?;
        let host = match options.link.tier {
            Tier::Files => HostLayout::default(),
            Tier::Host => HostLayout::lay(program, weights, &pieces, &plan),
        };
        let tensors = PlacedWeights::new(program, &pieces, &plan, plan.bytes());
        Ok(WeightLayout {
            options,
            pieces,
            plan,
            tensors,
            host,
            segments: program.segments.iter().map(|s| s.kind).collect(),
            whole_bytes,
        })
    }

    /// The plan: which pieces stay, which stream, and where each lies.
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

    /// The pieces that the weights are cut into.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Location of every tensor in the slab.
    pub fn tensors(&self) -> &PlacedWeights {
        &self.tensors
    }

    /// Bytes of the slab that weights take, from offset 0 on.
    pub fn slab_bytes(&self) -> u64 {
        self.plan.bytes() + self.pieces.kept_bytes()
    }

    /// Bytes of the weights that stay on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.plan.resident_bytes + self.pieces.kept_bytes()
    }

    /// Bytes of the slab for experts that are copied in when chosen.
    pub fn pool_bytes(&self) -> u64 {
        self.plan.bytes() - self.plan.pool_offset
    }

    /// Bytes of device memory with which nothing would stream.
    pub fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Bytes of host memory that weights stream from; 0 where they stream from files.
    pub fn host_bytes(&self) -> u64 {
        self.host.bytes
    }

    /// Bytes of host memory that workers load resident weights through.
    pub fn staging_bytes(&self) -> u64 {
        let link = &self.options.link;
        match link.tier {
            Tier::Files => 0,
            Tier::Host => (link.workers as u64 * link.load_chunk()).min(self.resident_bytes()),
        }
    }

    /// Bytes that are read before the first pass.
    pub fn load_bytes(&self) -> u64 {
        let pool = match self.host.experts.is_empty() {
            true => self.pool_bytes(),
            false => 0,
        };
        self.resident_bytes() + self.host.bytes + pool
    }

    /// Bytes of one read of the link: no more than a piece has, and no more than can be
    /// measured without much memory.
    pub fn link_chunk(&self) -> u64 {
        let link = &self.options.link;
        let pieces = self.pieces.stream.iter().chain(&self.pieces.experts);
        let largest = pieces.map(|piece| piece.bytes).max().unwrap_or(u64::MAX);
        let measurable = MEASURE_RING / link.workers as u64;
        link.chunk.min(largest).min(measurable)
    }

    /// Every piece that could stream, in order of use; then the experts.
    pub fn planned_pieces(&self) -> Vec<PlannedPiece> {
        let ring = |slot: usize| {
            let slot = &self.plan.ring.slots[slot];
            PiecePlace::Ring {
                offset: slot.offset,
                after: slot.after,
            }
        };
        let stream = self.pieces.stream.iter().zip(&self.plan.places);
        let stream = stream.map(|(piece, place)| PlannedPiece {
            name: piece.name(),
            segment: piece.segment,
            bytes: piece.bytes,
            place: match *place {
                Place::Resident(offset) => PiecePlace::Resident(offset),
                Place::Streamed(slot) => ring(slot),
            },
        });
        let experts = self.pieces.experts.iter().map(|piece| PlannedPiece {
            name: piece.name(),
            segment: piece.segment,
            bytes: piece.bytes,
            place: PiecePlace::Pool,
        });
        stream.chain(experts).collect()
    }

    /// Whether all weights are resident.
    pub fn keeps_everything(&self) -> bool {
        self.pieces.tables.is_empty()
    }

    /// Bytes of weights that a pass reads although they are no piece of the plan: where
    /// everything stays, all but the tables.
    pub fn read_when_whole(&self, program: &Program, weights: &dyn Weights) -> u64 {
        if !self.keeps_everything() {
            return 0;
        }
        let cut = Pieces::cut(program, weights, self.options.packing, u64::MAX);
        cut.stream_bytes()
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

    /// Label of rows that are read from a table.
    pub(crate) fn rows_label(&self) -> u32 {
        (self.segments.len() + self.pieces.stream.len() + self.pieces.experts.len()) as u32
    }

    pub(crate) fn host(&self) -> &HostLayout {
        &self.host
    }

    /// The ring as the link fills it.
    pub(crate) fn ring(&self) -> Vec<RingPiece> {
        let slots = self.plan.ring.slots.iter();
        slots
            .map(|slot| RingPiece {
                copies: self.stream_copies(slot.segment, self.plan.ring_offset + slot.offset),
                after: slot.after as u64,
            })
            .collect()
    }

    /// How every expert is copied into the first slot.
    pub(crate) fn experts(&self) -> Vec<Copies> {
        let first = self.segments.len() + self.pieces.stream.len();
        let experts = self.pieces.experts.iter().enumerate();
        experts
            .map(|(i, piece)| self.copies(piece, self.plan.pool_offset, first + i))
            .collect()
    }

    /// How everything that streams is copied into host memory.
    pub(crate) fn host_copies(&self) -> Vec<Copies> {
        let (first_piece, rows) = (self.segments.len(), self.rows_label() as usize);
        let first_expert = first_piece + self.pieces.stream.len();
        let slots = self.plan.ring.slots.iter().zip(&self.host.ring);
        let ring = slots.map(|(slot, &at)| {
            let runs = &self.pieces.stream[slot.segment].runs;
            (&runs[..], at, first_piece + slot.segment)
        });
        let experts = self.pieces.experts.iter().zip(&self.host.experts);
        let experts = experts
            .enumerate()
            .map(|(i, (piece, &at))| (&piece.runs[..], at, first_expert + i));
        let tables = self.host.tables.values();
        let tables = tables.map(|(at, run)| (std::slice::from_ref(run), *at, rows));
        ring.chain(experts)
            .chain(tables)
            .map(|(runs, at, label)| self.copy_runs(runs, at, label).for_host())
            .collect()
    }

    /// What has to be there before the first pass.
    pub(crate) fn resident(&self) -> Vec<Copies> {
        let mut at = self.plan.bytes();
        let mut all = Vec::new();
        for piece in &self.pieces.kept {
            let label = self.segment_label(piece.segment);
            all.push(self.copies(piece, at, label as usize));
            at += piece.bytes;
        }
        for (number, place) in self.plan.places.iter().enumerate() {
            if let Place::Resident(offset) = *place {
                all.push(self.stream_copies(number, offset));
            }
        }
        all
    }

    /// The experts that are there from the start: as many of each block as of any
    /// other, where a block has `experts` of them.
    pub fn resident_experts(&self, experts: usize) -> Vec<usize> {
        let count = self.pieces.experts.len();
        let blocks = count.checked_div(experts).unwrap_or(0);
        let spread = (0..experts).flat_map(|e| (0..blocks).map(move |b| b * experts + e));
        spread.take(self.plan.pool_slots).collect()
    }

    fn stream_copies(&self, number: usize, at: u64) -> Copies {
        let label = self.segments.len() + number;
        self.copies(&self.pieces.stream[number], at, label)
    }

    fn copies(&self, piece: &Piece, at: u64, label: usize) -> Copies {
        self.copy_runs(&piece.runs, at, label)
    }

    fn copy_runs(&self, runs: &[Run], at: u64, label: usize) -> Copies {
        Copies::new(runs, at, self.options.link.load_chunk(), label as u32)
    }
}

fn needs(pieces: &Pieces, fixed: u64, budget: u64, link: &LinkSettings) -> Needs {
    let segments: Vec<u64> = pieces.stream.iter().map(|piece| piece.bytes).collect();
    let largest = segments.iter().copied().max().unwrap_or(0);
    Needs {
        budget,
        fixed,
        segments,
        pool: Pool {
            count: pieces.experts.len(),
            bytes: pieces.experts.first().map_or(0, |piece| piece.bytes),
        },
        in_flight: link.in_flight(largest),
        waiting: link.waiting(),
    }
}
