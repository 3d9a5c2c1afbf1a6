//! Everything that is decided before anything is loaded: how the weights are cut,
//! what stays and what streams, and where in the slab each thing lies.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use djinn_device::{Backend, PassLimits, host};
use djinn_memory::{Keep, Needs, Place, Plan, PlanError, Pool, Size, Work};
use djinn_model::{
    Model, Stop,
    program::{Op, Program, SegmentKind},
};
use djinn_types::DType;

use crate::{
    EngineError, Footprint, LinkSettings, Memory, Settings, Tier,
    arena::{Arena, chosen_experts},
    backend::{check_settings, kv_dtype, packing, piece_bytes, slab_on_host},
    executor::graph_regions::{GraphRegion, graph_regions},
    host::HostImage,
    image::{Image, Packing, Piece, Run},
    stream::{Copies, MEASURE_RING, RingPiece},
    weights::PlacedWeights,
};

/// A model laid out in memory that does not exist yet.
pub struct Blueprint {
    pub(crate) memory: Memory,
    pub(crate) link: LinkSettings,
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) arena: Arena,
    pub(crate) weights: PlacedWeights,
    /// The program's operations, cut where weights arrive.
    pub(crate) graph_regions: Vec<GraphRegion>,
    /// Where sessions can stop, by the operation that comes next.
    pub(crate) stops: BTreeMap<usize, Arc<Stop>>,
    /// Where in host memory what streams lies; nothing where it comes from files.
    pub(crate) host: HostImage,
    /// The folder for pages that host memory has no room for.
    pub(crate) spill: Option<PathBuf>,
    image: Image,
    packing: Packing,
    /// The program's segments; labels up to their number mean these.
    segments: Vec<SegmentKind>,
    footprint: Footprint,
    limits: PassLimits,
    /// What would be needed for nothing to stream.
    whole: u64,
}

/// A piece of the weights, as a plan tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPiece {
    /// Which one.
    pub name: String,
    /// The segment it is of.
    pub segment: SegmentKind,
    /// Bytes it takes in memory.
    pub bytes: u64,
    /// Where it is.
    pub place: PiecePlace,
}

/// Where a piece of the weights is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PiecePlace {
    /// In memory for good, at this offset of the slab.
    Resident(u64),
    /// In the ring, at this offset of it, once the piece so many before it is no
    /// longer in use.
    Ring {
        /// Where.
        offset: u64,
        /// How many before.
        after: usize,
    },
    /// In one of the pool's slots when chosen.
    Pool,
}

impl Blueprint {
    /// What it is laid out for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Rows of a pass at most.
    pub fn rows(&self) -> usize {
        self.settings.rows
    }

    /// Lays a model out for a device.
    pub fn draw(
        model: &Model,
        backend: &dyn Backend,
        settings: Settings,
        memory: Memory,
    ) -> Result<Self, EngineError> {
        check_settings(backend, &model.program, &settings)?;
        let link = LinkSettings::settle(&memory, backend)?;
        let (program, slow) = (&model.program, &*model.weights);
        let (kv_dtype, packing) = (kv_dtype(backend, program), packing(backend, link.tier));
        let limits = pass_limits(program, &settings);
        let driver = |image: &Image, arena: &Arena| {
            let pages = settings.host_pages as u64 * arena.kv(0).page_bytes;
            let known = backend.host_tables(image.stream_bytes() + pages);
            backend.overhead() + known + backend.graph_bytes(settings.sessions)
        };
        let fixed = |image: &Image| {
            let arena = Arena::new(program, &settings, kv_dtype, &image.tables, 0);
            let kept = image.kept_bytes() + driver(image, &arena) + backend.scratch_bytes(limits);
            arena.bytes().saturating_add(kept)
        };
        let image = Image::whole(program, slow, packing);
        let whole = fixed(&image);
        let stays = match memory.overrides.keep {
            Keep::Fit | Keep::All => true,
            Keep::Nothing => false,
            Keep::AtMost(bytes) => image.kept_bytes() <= bytes,
        };
        let budget = memory.budget;
        if memory.overrides.keep == Keep::All && whole > budget {
            return Err(PlanError::NotAll { budget, whole }.into());
        }
        let image = if stays && whole <= budget {
            image
        } else {
            let cap = piece_bytes(backend, program.weight_bytes());
            Image::cut(program, slow, packing, cap)
        };
        let plan = Plan::new(
            &needs(&image, fixed(&image), budget, &link),
            memory.overrides,
        )?;
        let kept_at = plan.bytes();
        let start = kept_at + image.kept_bytes();
        let arena = Arena::new(program, &settings, kv_dtype, &image.tables, start);
        let footprint = Footprint {
            resident: plan.resident_bytes + image.kept_bytes(),
            ring: plan.ring.bytes,
            pool: plan.bytes() - plan.pool_offset,
            kv: arena.kv_bytes,
            activations: arena.bytes() - arena.kv_bytes,
            scratch: backend.scratch_bytes(limits),
            driver: driver(&image, &arena),
        };
        let host = match link.tier {
            Tier::Files => HostImage::default(),
            Tier::Host => HostImage::lay(program, slow, &image, &plan),
        };
        let weights = PlacedWeights::new(program, &image, &plan, kept_at);
        let blueprint = Blueprint {
            graph_regions: graph_regions(program, &weights),
            stops: stops(program),
            weights,
            memory,
            link,
            settings,
            plan,
            arena,
            host,
            spill: None,
            image,
            packing,
            segments: program.segments.iter().map(|s| s.kind).collect(),
            footprint,
            limits,
            whole,
        };
        let (needed, there) = (blueprint.host_bytes(), memory.host_budget);
        if needed > there {
            return Err(EngineError::HostBudget { needed, there });
        }
        Ok(blueprint)
    }

    /// Puts pages that host memory has no room for into a file in this folder.
    pub fn spill_to(&mut self, folder: &Path) {
        self.spill = Some(folder.to_owned());
    }

    /// Whether this machine has the memory, as far as can be told without taking it.
    pub fn check(&self, backend: &dyn Backend) -> Result<(), EngineError> {
        let slab = self.footprint.slab();
        backend.check(slab + self.footprint.scratch)?;
        let needed = self.host_bytes();
        let there = host::available_memory().saturating_sub(slab_on_host(backend, slab));
        if needed > there {
            return Err(EngineError::HostMemory { needed, there });
        }
        Ok(())
    }

    /// Bytes of host memory beside the device's: weights that stream, what workers load
    /// through, and pages of sessions that wait.
    pub fn host_bytes(&self) -> u64 {
        let weights = match self.link.tier {
            Tier::Files => 0,
            Tier::Host => {
                let staged = self.link.workers as u64 * self.link.load_chunk();
                self.host.bytes + staged.min(self.footprint.resident)
            }
        };
        weights + self.host_page_bytes()
    }

    /// Bytes of that for pages of sessions.
    pub fn host_page_bytes(&self) -> u64 {
        self.settings.host_pages as u64 * self.page_bytes()
    }

    /// Bytes of disk for those that host memory has no room for.
    pub fn disk_page_bytes(&self) -> u64 {
        self.settings.disk_pages as u64 * self.page_bytes()
    }

    /// Bytes of a page, all its layers.
    pub fn page_bytes(&self) -> u64 {
        self.arena.kv(0).page_bytes
    }

    /// Bytes that are brought before the first pass.
    pub fn load_bytes(&self) -> u64 {
        let pool = match self.host.experts.is_empty() {
            true => self.footprint.pool,
            false => 0,
        };
        self.footprint.resident + self.host.bytes + pool
    }

    /// Limits of the passes that the device is opened for.
    pub fn pass_limits(&self) -> PassLimits {
        self.limits
    }

    /// Where the slab's bytes go.
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// What stays, what streams, and where each lands.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was asked for.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The link as it was settled.
    pub fn link(&self) -> LinkSettings {
        self.link
    }

    /// Bytes the link really reads at a time: no more than a piece has, and no more
    /// than can be measured without taking much memory.
    pub fn link_chunk(&self) -> u64 {
        let pieces = self.image.stream.iter().chain(&self.image.experts);
        let largest = pieces.map(|piece| piece.bytes).max().unwrap_or(u64::MAX);
        let measurable = MEASURE_RING / self.link.workers as u64;
        self.link.chunk.min(largest).min(measurable)
    }

    /// Every piece that streams or could, in order of use; then the experts.
    pub fn pieces(&self) -> Vec<PlannedPiece> {
        let ring = |slot: usize| {
            let slot = &self.plan.ring.slots[slot];
            PiecePlace::Ring {
                offset: slot.offset,
                after: slot.after,
            }
        };
        let stream = self.image.stream.iter().zip(&self.plan.places);
        let stream = stream.map(|(piece, place)| PlannedPiece {
            name: piece.name(),
            segment: piece.segment,
            bytes: piece.bytes,
            place: match *place {
                Place::Resident(offset) => PiecePlace::Resident(offset),
                Place::Streamed(slot) => ring(slot),
            },
        });
        let experts = self.image.experts.iter().map(|piece| PlannedPiece {
            name: piece.name(),
            segment: piece.segment,
            bytes: piece.bytes,
            place: PiecePlace::Pool,
        });
        stream.chain(experts).collect()
    }

    /// Whether all weights are in memory for good.
    pub(crate) fn keeps_everything(&self) -> bool {
        self.image.tables.is_empty()
    }

    /// What happens to the weights, and why, in one line.
    pub fn reason(&self) -> String {
        let (footprint, plan) = (&self.footprint, &self.plan);
        let budget = Size(self.memory.budget);
        let together = Size(self.whole);
        if self.keeps_everything() {
            let weights = Size(footprint.resident);
            return format!(
                "all {weights} of weights stay in memory, because with KV and activations \
                 ({together}) they fit in {budget}"
            );
        }
        let fits = self.whole <= self.memory.budget;
        let asked = !matches!(self.memory.overrides.keep, Keep::Fit | Keep::All);
        let mut reasons = Vec::new();
        if !fits {
            reasons.push(format!(
                "with KV and activations all would take {together} of {budget}"
            ));
        }
        if asked {
            reasons.push("--resident says so".to_owned());
        }
        let because = format!("because {}", reasons.join(", and "));
        let mut parts = vec![format!("{} stays in memory", Size(footprint.resident))];
        if !plan.ring.slots.is_empty() {
            parts.push(format!(
                "{} streams each pass through a ring of {}",
                Size(plan.ring.streamed_bytes()),
                Size(plan.ring.bytes)
            ));
        }
        if plan.pool.count > 0 {
            parts.push(format!(
                "{} of {} experts ({} each) at once",
                plan.pool_slots,
                plan.pool.count,
                Size(plan.pool.bytes)
            ));
        }
        parts.push("rows of the embedding are read as needed".to_owned());
        if self.link.tier == Tier::Host {
            let from = Size(self.host.bytes);
            parts.push(format!(
                "what does not stay comes from {from} of host memory"
            ));
        }
        format!("{}; {because}", parts.join(", "))
    }

    /// What a pass in which every session generates a token does with the weights,
    /// all of them at the end of their context.
    pub fn work(&self, model: &Model, kv_dtype: DType) -> Work {
        let program = &model.program;
        let dims = &program.dims;
        let positions = (self.settings.context * self.settings.sessions) as u64;
        // A token goes through so many experts of each block; several tokens through
        // more of them, chosen as if by chance.
        let share = chosen_experts(program) as f64 / dims.experts.max(1) as f64;
        let touched = 1.0 - (1.0 - share).powi(self.settings.sessions as i32);
        // Where all experts stay they are no pool, but a pass still reads only some.
        let idle = match self.image.experts.is_empty() && dims.experts > 0 {
            true => (1.0 - touched) * expert_bytes(model),
            false => 0.0,
        };
        Work {
            other_bytes: positions as f64 * program.kv_bytes_per_token(kv_dtype) as f64
                + self.read_when_whole(model)
                - idle,
            pool_used: touched * self.image.experts.len() as f64,
            prefetch: self.memory.prefetch,
        }
    }

    /// Bytes of weights a pass reads that are no piece of the plan: where everything
    /// stays, all but the tables.
    fn read_when_whole(&self, model: &Model) -> f64 {
        if !self.keeps_everything() {
            return 0.0;
        }
        let program = &model.program;
        let cut = Image::cut(program, &*model.weights, self.packing, u64::MAX);
        let pieces = cut.stream.iter().chain(&cut.experts);
        pieces.map(|piece| piece.bytes as f64).sum()
    }

    /// Names for the labels of chunks and of compute.
    pub(crate) fn labels(&self) -> Vec<String> {
        let pieces = self.image.stream.iter().chain(&self.image.experts);
        let pieces = pieces.map(Piece::name);
        let rows = std::iter::once("rows of the embedding".to_owned());
        self.segments
            .iter()
            .map(SegmentKind::to_string)
            .chain(pieces)
            .chain(rows)
            .collect()
    }

    /// The label of one of the program's segments.
    pub(crate) fn segment_label(&self, kind: SegmentKind) -> u32 {
        let at = self.segments.iter().position(|segment| *segment == kind);
        at.expect("a segment of the program") as u32
    }

    /// The label of rows of a table.
    pub(crate) fn rows_label(&self) -> u32 {
        (self.segments.len() + self.image.stream.len() + self.image.experts.len()) as u32
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
        let first = self.segments.len() + self.image.stream.len();
        let experts = self.image.experts.iter().enumerate();
        experts
            .map(|(i, piece)| self.copies(piece, self.plan.pool_offset, first + i))
            .collect()
    }

    /// How everything that streams is copied into host memory.
    pub(crate) fn host_copies(&self) -> Vec<Copies> {
        let (first_piece, rows) = (self.segments.len(), self.rows_label() as usize);
        let first_expert = first_piece + self.image.stream.len();
        let slots = self.plan.ring.slots.iter().zip(&self.host.ring);
        let ring = slots.map(|(slot, &at)| {
            let runs = &self.image.stream[slot.segment].runs;
            (&runs[..], at, first_piece + slot.segment)
        });
        let experts = self.image.experts.iter().zip(&self.host.experts);
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
        for piece in &self.image.kept {
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
    /// other.
    pub(crate) fn resident_experts(&self, experts: usize) -> Vec<usize> {
        let count = self.image.experts.len();
        let blocks = count.checked_div(experts).unwrap_or(0);
        let spread = (0..experts).flat_map(|e| (0..blocks).map(move |b| b * experts + e));
        spread.take(self.plan.pool_slots).collect()
    }

    fn stream_copies(&self, number: usize, at: u64) -> Copies {
        let label = self.segments.len() + number;
        self.copies(&self.image.stream[number], at, label)
    }

    fn copies(&self, piece: &Piece, at: u64, label: usize) -> Copies {
        self.copy_runs(&piece.runs, at, label)
    }

    fn copy_runs(&self, runs: &[Run], at: u64, label: usize) -> Copies {
        Copies::new(runs, at, self.link.load_chunk(), label as u32)
    }
}

/// What the operations of a program need for themselves.
fn pass_limits(program: &Program, settings: &Settings) -> PassLimits {
    let dims = &program.dims;
    let inputs = program.ops().filter_map(|op| match op {
        Op::Linear { from, .. } => Some(program.width(*from)),
        _ => None,
    });
    let head = settings
        .logit_rows
        .saturating_add(settings.probe_limits.lens_rows);
    PassLimits {
        rows: settings.rows.max(head),
        width: inputs.chain([dims.d_mlp, dims.d_model]).max().unwrap_or(0),
        generated: settings.sessions,
        heads: dims.heads,
        d_head: dims.d_head,
        keys: settings.context.next_multiple_of(settings.page_tokens),
    }
}

fn needs(image: &Image, fixed: u64, budget: u64, link: &LinkSettings) -> Needs {
    let segments: Vec<u64> = image.stream.iter().map(|piece| piece.bytes).collect();
    let largest = segments.iter().copied().max().unwrap_or(0);
    Needs {
        budget,
        fixed,
        segments,
        pool: Pool {
            count: image.experts.len(),
            bytes: image.experts.first().map_or(0, |piece| piece.bytes),
        },
        in_flight: link.in_flight(largest),
        waiting: link.waiting(),
    }
}

/// Bytes of all experts as stored.
fn expert_bytes(model: &Model) -> f64 {
    let program = &model.program;
    let is_expert = |kind: SegmentKind| matches!(kind, SegmentKind::Expert { .. });
    let experts = program.segments.iter().filter(|s| is_expert(s.kind));
    experts.map(|s| program.segment_bytes(s) as f64).sum()
}

/// Where sessions can stop, by the operation that comes next.
fn stops(program: &Program) -> BTreeMap<usize, Arc<Stop>> {
    let stops = program.stops().into_iter();
    stops.map(|stop| (stop.next, Arc::new(stop))).collect()
}
