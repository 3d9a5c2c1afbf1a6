//! The blueprint: all decisions about memory that are made before a model is loaded.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use djinn_device::{Backend, PassLimits, host};
use djinn_model::{
    Fusions, Model, StopPoint, fuse,
    program::{Op, Program, SegmentKind},
};
use djinn_types::{DType, Size};
use djinn_weights::{
    Keep, LayoutOptions, LinkSettings, MemorySettings, PassWork, Pieces, Plan, TensorPlacements,
    WeightLayout,
};

use crate::{
    EngineError, Footprint, Settings, Tier,
    arena::{Arena, chosen_experts},
    backend::{check_settings, kv_dtype, legacy_kv_dtype, packing, piece_bytes, slab_on_host},
    executor::graph_regions::{GraphRegion, graph_regions, residency},
};

/// Layout of a model in memory that is not allocated yet: weights, KV pages and
/// activations.
pub struct Blueprint {
    pub(crate) settings: Settings,
    pub(crate) arena: Arena,
    /// Element type of keys and values in releases that did not store it with sessions.
    pub(crate) legacy_kv_dtype: DType,
    /// Layout of the weights: location of every tensor, and which weights stream.
    weights: WeightLayout,
    /// Operations of the program, cut where weights arrive.
    pub(crate) graph_regions: Vec<GraphRegion>,
    /// Runs of operations with a fused form.
    pub(crate) fusions: Fusions,
    /// Points at which a session can stop, by the number of the next operation.
    pub(crate) stops: BTreeMap<usize, Arc<StopPoint>>,
    /// Folder for KV pages that do not fit in host memory.
    pub(crate) spill: Option<PathBuf>,
    footprint: Footprint,
    limits: PassLimits,
}

impl Blueprint {
    /// Settings that the blueprint was drawn for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Largest number of rows of a pass.
    pub fn rows(&self) -> usize {
        self.settings.rows
    }

    /// Lays out a model for a device.
    pub fn draw(
        model: &Model,
        backend: &dyn Backend,
        settings: Settings,
        memory: MemorySettings,
    ) -> Result<Self, EngineError> {
        let (program, slow) = (&model.program, &*model.weights);
        let kv_dtype = kv_dtype(&memory, program);
        check_settings(backend, program, &settings, kv_dtype)?;
        let link = LinkSettings::resolve(&memory, backend.tier())?;
        let limits = pass_limits(program, &settings);
        let driver = |pieces: &Pieces, arena: &Arena| {
            let pages = settings.host_pages as u64 * arena.kv.page_bytes();
            let known = backend.host_tables(pieces.stream_bytes() + pages);
            backend.overhead() + known + backend.graph_bytes(settings.sessions)
        };
        let fixed = |pieces: &Pieces| {
            let arena = Arena::new(program, &settings, kv_dtype, pieces.tables(), 0);
            let beside = driver(pieces, &arena) + backend.scratch_bytes(limits);
            arena.bytes().saturating_add(beside)
        };
        let options = LayoutOptions {
            memory,
            link,
            packing: packing(backend, link.tier),
            piece_bytes: piece_bytes(backend, program.weight_bytes()),
        };
        let weights = WeightLayout::new(program, slow, options, fixed)?;
        let (pieces, start) = (weights.pieces(), weights.slab_bytes());
        let arena = Arena::new(program, &settings, kv_dtype, pieces.tables(), start);
        let footprint = Footprint {
            resident: weights.resident_bytes(),
            ring: weights.plan().ring.bytes,
            pool: weights.pool_bytes(),
            kv: arena.kv_bytes,
            kv_window: arena.kv.window_bytes(),
            activations: arena.bytes() - arena.kv_bytes,
            scratch: backend.scratch_bytes(limits),
            driver: driver(pieces, &arena),
        };
        let blueprint = Blueprint {
            graph_regions: graph_regions(program, weights.tensors()),
            fusions: fuse(program, |id| residency(weights.tensors(), id)),
            stops: stops(program),
            weights,
            settings,
            arena,
            legacy_kv_dtype: legacy_kv_dtype(backend, program),
            spill: None,
            footprint,
            limits,
        };
        let (needed, there) = (blueprint.host_bytes(), memory.host_budget);
        if needed > there {
            return Err(EngineError::HostBudget { needed, there });
        }
        Ok(blueprint)
    }

    /// Spills KV pages that do not fit in host memory to a file in this folder.
    pub fn spill_to(&mut self, folder: &Path) {
        self.spill = Some(folder.to_owned());
    }

    /// Checks that the machine has enough free memory, without allocating any.
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

    /// Bytes of host memory beside the slab: weights that stream, buffers that workers load
    /// through, and KV pages of sessions that wait.
    pub fn host_bytes(&self) -> u64 {
        self.weights.host_bytes() + self.weights.staging_bytes() + self.host_page_bytes()
    }

    /// Bytes of host memory for KV pages.
    pub fn host_page_bytes(&self) -> u64 {
        self.settings.host_pages as u64 * self.page_bytes()
    }

    /// Bytes of disk for KV pages that do not fit in host memory.
    pub fn disk_page_bytes(&self) -> u64 {
        self.settings.disk_pages as u64 * self.page_bytes()
    }

    /// Element type of keys and values.
    pub fn kv_dtype(&self) -> DType {
        self.arena.kv.dtype()
    }

    /// Bytes of a KV page with all its layers.
    pub fn page_bytes(&self) -> u64 {
        self.arena.kv.page_bytes()
    }

    /// Limits of the passes that the device is opened for.
    pub fn pass_limits(&self) -> PassLimits {
        self.limits
    }

    /// Bytes of device memory by purpose.
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// Layout of the weights: location of every tensor, and which weights stream.
    pub fn weights(&self) -> &WeightLayout {
        &self.weights
    }

    /// Plan of the weights: which pieces stay, which stream, and where each lies.
    pub fn plan(&self) -> &Plan {
        self.weights.plan()
    }

    /// Location of every tensor in the slab.
    pub(crate) fn tensors(&self) -> &TensorPlacements {
        self.weights.tensors()
    }

    /// Memory settings of the user.
    pub fn memory(&self) -> MemorySettings {
        self.weights.memory()
    }

    /// Settings of the link that weights stream over.
    pub fn link(&self) -> LinkSettings {
        self.weights.link()
    }

    /// Explains in one line which weights stay and which stream, and why.
    pub fn reason(&self) -> String {
        let paged = match self.streamed_kv_bytes() {
            0 => String::new(),
            bytes => format!("; up to {} of KV pages stream each pass", Size(bytes)),
        };
        format!("{}{paged}", self.weights_reason())
    }

    fn weights_reason(&self) -> String {
        let (footprint, plan) = (&self.footprint, self.plan());
        let memory = self.memory();
        let budget = Size(memory.budget);
        let whole = self.weights.whole_bytes();
        let together = Size(whole);
        if self.weights.keeps_everything() {
            let weights = Size(footprint.resident);
            return format!(
                "all {weights} of weights stay in memory, because with KV and activations \
                 ({together}) they fit in {budget}"
            );
        }
        let fits = whole <= memory.budget;
        let asked = !matches!(memory.overrides.keep, Keep::Fit | Keep::All);
        let mut reasons = Vec::new();
        if !fits {
            reasons.push(format!(
                "all weights with KV and activations need {together} of {budget}"
            ));
        }
        if asked {
            reasons.push("--resident asks for it".to_owned());
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
        parts.push("rows of the embedding are read when needed".to_owned());
        if self.link().tier == Tier::Host {
            let from = Size(self.weights.host_bytes());
            parts.push(format!("streamed weights come from {from} of host memory"));
        }
        format!("{}; {because}", parts.join(", "))
    }

    /// Bytes of KV pages that stream in each pass of a session at the end of its context.
    pub fn streamed_kv_bytes(&self) -> u64 {
        let pages = self.settings.table_pages();
        let away = match self.settings.window_pages {
            0 => 0,
            _ => pages.saturating_sub(self.settings.pages),
        };
        away as u64 * self.page_bytes()
    }

    /// Work of a pass in which every session generates one token at the end of its context.
    pub fn work(&self, model: &Model) -> PassWork {
        let program = &model.program;
        let dims = &program.dims;
        let positions = (self.settings.context * self.settings.sessions) as u64;
        // Share of the experts that the tokens of a pass use, if routers chose at random.
        let share = chosen_experts(program) as f64 / dims.experts.max(1) as f64;
        let touched = 1.0 - (1.0 - share).powi(self.settings.sessions as i32);
        // If all experts stay, there is no pool, but a pass still reads only some of them.
        let experts = self.plan().pool.count;
        let idle = match experts == 0 && dims.experts > 0 {
            true => (1.0 - touched) * expert_bytes(model),
            false => 0.0,
        };
        PassWork {
            other_bytes: positions as f64 * program.kv_bytes_per_token(self.kv_dtype()) as f64
                + self.weights.read_when_whole(program, &*model.weights) as f64
                - idle,
            paged_bytes: self.streamed_kv_bytes() as f64,
            experts_used: touched * experts as f64,
            prefetch: self.memory().prefetch,
        }
    }
}

/// Limits of the passes that settings allow.
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

/// Bytes of all experts in the model's files.
fn expert_bytes(model: &Model) -> f64 {
    let program = &model.program;
    let is_expert = |kind: SegmentKind| matches!(kind, SegmentKind::Expert { .. });
    let experts = program.segments.iter().filter(|s| is_expert(s.kind));
    experts.map(|s| program.segment_bytes(s) as f64).sum()
}

/// Points at which a session can stop, by the number of the next operation.
fn stops(program: &Program) -> BTreeMap<usize, Arc<StopPoint>> {
    let stops = program.stops().into_iter();
    stops.map(|stop| (stop.next, Arc::new(stop))).collect()
}
