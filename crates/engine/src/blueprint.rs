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
    Keep, LayoutOptions, LevelRange, LinkSettings, MemorySettings, PassWork, Pieces, Plan,
    TensorPlacements, WeightLayout,
};

use crate::{
    EngineError, Footprint, Settings, SizingChoice, Tier,
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
    /// Choices of the sizing, if one chose the settings.
    pub(crate) sizing: Option<SizingChoice>,
    /// Reason why no weights yield although the user asks for it.
    pub(crate) fixed_because: Option<&'static str>,
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
        let draft = BlueprintDraft::new(model, backend, settings, memory)?;
        let beside = |pieces: &Pieces| draft.beside(pieces).total();
        let (program, files) = (&model.program, &*model.weights);
        let weights = WeightLayout::new(program, files, draft.options(), beside)?;
        draft.finish(weights)
    }

    /// Changes the level of an elastic layout: which weights stream, and how many KV frames there
    /// are.
    pub(crate) fn set_level(&mut self, program: &Program, level: usize) {
        self.weights.set_level(program, level);
        self.graph_regions = graph_regions(program, self.weights.tensors());
        self.fusions = fuse(program, |id| residency(self.weights.tensors(), id));
        self.footprint.resident = self.weights.resident_bytes();
        self.footprint.kv = self.arena.kv_bytes - self.weights.zone_bytes();
    }

    /// Levels of an elastic layout; `None` if the plan is fixed.
    pub fn levels(&self) -> Option<LevelRange> {
        self.weights.levels()
    }

    /// Reason why the plan is fixed although the user asks for an elastic one. `None` if the plan
    /// is elastic, or was not drawn for sessions.
    pub fn fixed_because(&self) -> Option<&'static str> {
        self.fixed_because
    }

    /// Number of KV frames on the device at a level.
    pub fn frames_at(&self, level: usize) -> usize {
        let (kv, pages) = (self.arena.kv.layer(0), self.settings.pages);
        match (self.weights.zone_start(level), self.levels()) {
            (Some(start), Some(range)) if level < range.most => {
                let bytes = start.saturating_sub(kv.offset);
                usize::try_from(bytes / kv.page_bytes.max(1)).map_or(pages, |n| n.min(pages))
            }
            _ => pages,
        }
    }

    /// Least number of KV frames on the device, at any level.
    pub fn least_frames(&self) -> usize {
        self.frames_at(self.levels().map_or(0, |range| range.least))
    }

    /// Number of KV frames on the device now.
    pub fn frames(&self) -> usize {
        self.frames_at(self.weights.level())
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

    /// Choices of the sizing, if one chose the settings.
    pub fn sizing(&self) -> Option<&SizingChoice> {
        self.sizing.as_ref()
    }

    /// Explains in one line which weights stay and which stream, and the context, and why.
    pub fn reason(&self) -> String {
        let paged = match self.streamed_kv_bytes() {
            0 => String::new(),
            bytes => format!("; up to {} of KV pages stream each pass", Size(bytes)),
        };
        let sizing = self.sizing.as_ref();
        let sizing = sizing.map_or(String::new(), |sizing| format!("; {sizing}"));
        let fixed = self.fixed_because;
        let fixed = fixed.map_or(String::new(), |why| {
            format!("; --elastic on has no effect: {why}")
        });
        format!("{}{paged}{fixed}{sizing}", self.weights_reason())
    }

    /// Explains which weights stay and which stream, and why.
    fn weights_reason(&self) -> String {
        let (footprint, plan) = (&self.footprint, self.plan());
        let memory = self.memory();
        let budget = Size(memory.budget);
        let whole = self.weights.whole_bytes();
        let together = Size(whole);
        if let Some(range) = self.levels() {
            return self.elastic_reason(range);
        }
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

    /// Explains which weights yield to KV pages.
    fn elastic_reason(&self, range: LevelRange) -> String {
        let bytes = |level| self.weights.zone_start(level).unwrap_or(0);
        let may_yield = Size(bytes(range.most) - bytes(range.least));
        let (least, most) = (self.least_frames(), self.settings.pages);
        let (stays, ring) = (Size(self.footprint.resident), Size(self.footprint.ring));
        let mut reason = format!(
            "{stays} of weights stay in memory now; up to {may_yield} of them yield to KV pages \
             when sessions need these ({least} to {most} pages), and stream through a ring of \
             {ring} meanwhile"
        );
        if range.least > 0 {
            reason.push_str("; other weights always stream, because they do not fit");
        }
        if range.is_host_limited {
            reason.push_str("; host memory has no room for more weights that yield");
        }
        reason
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

/// Bytes of device memory beside the weights, by purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedBytes {
    /// KV pages and the KV window.
    pub kv: u64,
    pub activations: u64,
    pub scratch: u64,
    pub driver: u64,
}

impl FixedBytes {
    /// Bytes of all purposes together.
    pub fn total(&self) -> u64 {
        let arena = self.kv.saturating_add(self.activations);
        let beside = self.scratch.saturating_add(self.driver);
        arena.saturating_add(beside)
    }
}

/// A blueprint before its weights are laid out.
pub(crate) struct BlueprintDraft<'a> {
    model: &'a Model,
    backend: &'a dyn Backend,
    settings: Settings,
    memory: MemorySettings,
    link: LinkSettings,
    kv_dtype: DType,
    limits: PassLimits,
}

impl<'a> BlueprintDraft<'a> {
    /// Checks settings against the limits of the device.
    pub fn new(
        model: &'a Model,
        backend: &'a dyn Backend,
        settings: Settings,
        memory: MemorySettings,
    ) -> Result<Self, EngineError> {
        let kv_dtype = kv_dtype(&memory, &model.program);
        check_settings(backend, &model.program, &settings, kv_dtype)?;
        Ok(BlueprintDraft {
            model,
            backend,
            link: LinkSettings::resolve(&memory, backend.tier())?,
            kv_dtype,
            limits: pass_limits(&model.program, &settings),
            settings,
            memory,
        })
    }

    /// Options for the layout of the weights.
    pub fn options(&self) -> LayoutOptions {
        LayoutOptions {
            memory: self.memory,
            link: self.link,
            packing: packing(self.backend, self.link.tier),
            piece_bytes: piece_bytes(self.backend, self.model.program.weight_bytes()),
        }
    }

    fn arena(&self, pieces: &Pieces, start: u64) -> Arena {
        let (program, settings) = (&self.model.program, &self.settings);
        Arena::new(program, settings, self.kv_dtype, pieces.tables(), start)
    }

    /// Bytes of device memory that are needed in addition to weights in these pieces.
    pub fn beside(&self, pieces: &Pieces) -> FixedBytes {
        self.beside_arena(pieces, &self.arena(pieces, 0))
    }

    fn beside_arena(&self, pieces: &Pieces, arena: &Arena) -> FixedBytes {
        let (backend, settings) = (self.backend, &self.settings);
        let pages = (settings.host_pages as u64).saturating_mul(arena.kv.page_bytes());
        let known = backend.host_tables(pieces.stream_bytes().saturating_add(pages));
        FixedBytes {
            kv: arena.kv_bytes,
            activations: arena.bytes() - arena.kv_bytes,
            scratch: backend.scratch_bytes(self.limits),
            driver: backend.overhead() + known + backend.graph_bytes(settings.sessions),
        }
    }

    /// Lays out the rest of the slab behind the weights.
    pub fn finish(self, mut weights: WeightLayout) -> Result<Blueprint, EngineError> {
        let program = &self.model.program;
        let arena = self.arena(weights.pieces(), weights.slab_bytes());
        let frames_bytes = arena.kv.bytes() - arena.kv.window_bytes();
        weights.place_zone(program, arena.kv.layer(0).offset + frames_bytes);
        let fixed = self.beside_arena(weights.pieces(), &arena);
        let footprint = Footprint {
            resident: weights.resident_bytes(),
            ring: weights.ring_bytes(),
            pool: weights.pool_bytes(),
            kv: arena.kv_bytes - weights.zone_bytes(),
            kv_window: arena.kv.window_bytes(),
            activations: fixed.activations,
            scratch: fixed.scratch,
            driver: fixed.driver,
        };
        let blueprint = Blueprint {
            graph_regions: graph_regions(program, weights.tensors()),
            fusions: fuse(program, |id| residency(weights.tensors(), id)),
            stops: stops(program),
            weights,
            settings: self.settings,
            arena,
            legacy_kv_dtype: legacy_kv_dtype(self.backend, program),
            spill: None,
            sizing: None,
            fixed_because: None,
            footprint,
            limits: self.limits,
        };
        let (needed, there) = (blueprint.host_bytes(), self.memory.host_budget);
        if needed > there {
            return Err(EngineError::HostBudget { needed, there });
        }
        Ok(blueprint)
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
