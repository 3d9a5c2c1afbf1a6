//! Load of one model: opens its files, reserves and plans its memory, creates the engine and restores
//! its sessions.

use std::sync::Arc;
use std::time::Duration;

use djinn_device::Backend;
use djinn_engine::{
    Blueprint, ContextDemand, Count, Engine, EngineError, KvMemory, LoadProgress, RestoreScope,
    SavedPrefixes, SessionDemand, Settings, SizeRange, StateFolder, rates,
};
use djinn_model::Model;
use djinn_weights::{Keep, MemorySettings, Overrides};

use super::name::as_folder;
use crate::{
    ServeError,
    config::{HostCopy, LoadOptions, ServerConfig},
    device_pool::{DevicePool, Reservation},
    engine_thread::{LoadedEngine, LoadedModel, ThreadSetup},
    fatal::FatalSignal,
    metrics::Metrics,
    preset::Preset,
};

/// Default number of sessions in one pass.
const BATCH_DEFAULT: usize = 32;
/// Default number of open sessions.
const SESSIONS_DEFAULT: usize = 256;
/// Number of sessions at the full context for which a model needs KV memory.
pub(super) const FULL_SESSIONS: usize = 4;

/// Duration of one bandwidth measurement of the link.
const MEASURE_TIME: Duration = Duration::from_millis(300);
/// Largest number of bandwidth measurements.
const MEASUREMENTS_MAX: usize = 8;

/// A configured model that is loaded later and shares the free memory.
#[derive(Clone)]
pub(super) struct Sharer {
    /// Name of the model on this server.
    pub name: String,
    /// Folder or shape, as resolved.
    pub reference: String,
    /// Load options.
    pub layout: LoadOptions,
}

impl Sharer {
    /// Bytes of the model's weights; zero if it cannot be opened.
    fn weight_bytes(&self) -> u64 {
        let opened = Model::open(&self.reference);
        opened.map_or(0, |model| model.program.weight_bytes())
    }
}

/// A model to load, and the settings of the load.
#[derive(Clone)]
pub(super) struct ModelLoader {
    /// Name of the model on this server.
    pub name: String,
    /// Folder or shape, as resolved.
    pub reference: String,
    /// Load options.
    pub layout: LoadOptions,
    /// Bytes of device memory that no other model holds.
    pub free: u64,
    /// Configured models that are loaded later and share the free memory.
    pub sharers: Vec<Sharer>,
    /// Bytes of host memory that other models hold.
    pub host_taken: u64,
    /// Bytes of host memory to leave for the weights of models that are loaded later.
    pub host_left: u64,
    /// Whether the server has no other model.
    pub is_alone: bool,
    /// Memory of the device, which models use in turns.
    pub pool: Arc<DevicePool>,
    /// Configuration of the server.
    pub config: Arc<ServerConfig>,
    /// Metrics of the server.
    pub metrics: Arc<Metrics>,
    /// Raised when the device is lost.
    pub fatal: FatalSignal,
    /// Settings of the program that starts a server in its process.
    pub preset: Option<Arc<Preset>>,
}

/// Whether loading failed only for lack of memory.
pub(super) fn is_memory_shortage(error: &ServeError) -> bool {
    let ServeError::Engine(error) = error else {
        return matches!(error, ServeError::Busy(_));
    };
    matches!(
        error,
        EngineError::Plan(_)
            | EngineError::ContextMemory(_)
            | EngineError::HostBudget { .. }
            | EngineError::HostMemory { .. }
            | EngineError::SpillNeedsHost { .. }
            | EngineError::WindowNeedsHost { .. }
            | EngineError::OutOfPages(_)
            | EngineError::SessionTooLarge { .. }
    )
}

/// Whether loading failed for lack of host memory.
pub(super) fn is_host_shortage(error: &ServeError) -> bool {
    matches!(
        error,
        ServeError::Engine(
            EngineError::HostBudget { .. }
                | EngineError::HostMemory { .. }
                | EngineError::WindowNeedsHost { .. }
        )
    )
}

impl ModelLoader {
    /// Loads the model on a new engine thread.
    pub fn start(
        self,
        progress: impl FnMut(LoadProgress) + Send + 'static,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let setup = ThreadSetup {
            metrics: Arc::clone(&self.metrics),
            fatal: self.fatal.clone(),
            pool: Arc::clone(&self.pool),
            jobs_max: self.config.limits.jobs,
        };
        LoadedModel::start(
            self.name.clone(),
            setup,
            move |reservation, progress| self.load(reservation, progress),
            progress,
        )
    }

    fn load(
        self,
        reservation: &Reservation,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedEngine, ServeError> {
        self.leaving_host_memory().load_model(reservation, progress)
    }

    /// Leaves host memory for the weights of models that are loaded later.
    pub fn leaving_host_memory(self) -> Self {
        ModelLoader {
            host_left: self.sharers.iter().map(Sharer::weight_bytes).sum(),
            ..self
        }
    }

    fn load_model(
        &self,
        reservation: &Reservation,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedEngine, ServeError> {
        let model = Model::open(&self.reference)?;
        let blueprint = self.reserve(&model, reservation)?;
        tracing::debug!(model = self.name, plan = blueprint.reason(), "loading");
        if self.config.memory.overrides.ring.is_some() && blueprint.plan().ring.slots.is_empty() {
            tracing::warn!(
                model = self.name,
                "--ring has no effect: all weights are resident"
            );
        }
        let backend = &*self.config.backend;
        let preset = self.preset.as_deref();
        let link_ceiling = match preset.is_none_or(|preset| preset.measure_link) {
            true => link_ceiling(backend, &model, &blueprint, MEASURE_TIME),
            false => 0.0,
        };
        let mut progress = |loaded| {
            progress(loaded);
            preset.inspect(|preset| (preset.progress)(loaded));
        };
        let mut engine = Engine::load(model, backend, blueprint, &mut progress)?;
        engine.set_prefix_cache(self.config.prefix_cache);
        self.restore_sessions(&mut engine)?;
        Ok(LoadedEngine {
            engine,
            link_ceiling,
        })
    }

    /// Opens the folders of saved sessions, and restores the sessions.
    fn restore_sessions(&self, engine: &mut Engine) -> Result<(), ServeError> {
        let preset = self.preset.as_deref();
        if let Some(open) = preset.and_then(|preset| preset.open_state.as_ref()) {
            let (state, scope) = open()?;
            let restored = engine.attach_state(state, scope)?;
            if let Some((_, error)) = restored.refused.into_iter().next() {
                return Err(error.into());
            }
        }
        let Some(folder) = &self.config.state else {
            return Ok(());
        };
        let folder = folder.join(as_folder(&self.name));
        let state = StateFolder::open(&folder)?;
        let restored = engine.attach_state(state, RestoreScope::All)?;
        for (id, error) in &restored.refused {
            tracing::warn!(model = self.name, session = %id, %error, "session not restored");
        }
        for damage in &restored.damaged {
            let session = damage.session.map(|id| id.to_string());
            tracing::error!(
                model = self.name,
                session,
                lost = damage.lost,
                "saved sessions are damaged"
            );
        }
        if !restored.sessions.is_empty() {
            let count = restored.sessions.len();
            tracing::info!(model = self.name, count, "sessions restored");
        }
        if let Some(reason) = &restored.prefixes_left {
            tracing::warn!(model = self.name, %reason, "saved prefixes not read");
        }
        let SavedPrefixes { pages, bytes } = restored.prefixes;
        if pages > 0 {
            tracing::info!(model = self.name, pages, bytes, "prefix cache restored");
        }
        Ok(())
    }

    /// Reserves device memory for the model, waits until other models have left it, and plans the
    /// layout.
    fn reserve(&self, model: &Model, reservation: &Reservation) -> Result<Blueprint, ServeError> {
        if let Some(preset) = &self.preset {
            let blueprint = (preset.draw)(model)?;
            reservation.resize(blueprint.footprint().total());
            return Ok(blueprint);
        }
        let budget = self.budget(model)?;
        // A layout that cannot work fails before other models leave.
        let needed = match self.draw(model, budget) {
            Err(error) if is_host_shortage(&error) => budget,
            drawn => drawn?.footprint().total(),
        };
        reservation.wait_for(needed, self.config.limits.queue_wait)?;
        // Models that have left may have freed host memory.
        let blueprint = self.draw(model, budget)?;
        blueprint.check(&*self.config.backend)?;
        reservation.resize(blueprint.footprint().total());
        Ok(blueprint)
    }

    /// Plans the model's memory without reserving it.
    pub fn blueprint(&self, model: &Model) -> Result<Blueprint, ServeError> {
        match &self.preset {
            Some(preset) => (preset.draw)(model),
            None => self.draw(model, self.budget(model)?),
        }
    }

    /// Plans the layout of the model in `budget` bytes of device memory. Unless set otherwise, a model
    /// that is not alone gets a copy of its weights in host memory while there is room. If possible, it
    /// leaves room for the weights of models that are loaded later.
    pub fn draw(&self, model: &Model, budget: u64) -> Result<Blueprint, ServeError> {
        let all = self.config.memory.host_budget;
        let host = all.saturating_sub(self.host_taken);
        let tries = match self.config.host_copy {
            HostCopy::On => &[(true, host)][..],
            HostCopy::Auto if !self.is_alone => &[
                (true, host.saturating_sub(self.host_left)),
                (true, host),
                (false, host),
            ],
            _ => &[(false, host)],
        };
        let mut shortage = None;
        for &(host_copy, host) in tries {
            match self.draw_with(model, budget, host, host_copy) {
                Err(error) if is_host_shortage(&error) => shortage = Some(error),
                drawn => return drawn,
            }
        }
        Err(shortage.expect("there is a try"))
    }

    fn draw_with(
        &self,
        model: &Model,
        budget: u64,
        host_budget: u64,
        host_copy: bool,
    ) -> Result<Blueprint, ServeError> {
        let all = self.config.memory;
        let memory = MemorySettings {
            budget,
            host_budget,
            prefetch: self.layout.prefetch.unwrap_or(all.prefetch),
            kv_dtype: self.layout.kv_dtype.unwrap_or(all.kv_dtype),
            host_copy,
            overrides: Overrides {
                keep: self
                    .layout
                    .resident
                    .map_or(all.overrides.keep, Keep::AtMost),
                ..all.overrides
            },
            ..all
        };
        let backend = &*self.config.backend;
        lay_out(model, backend, self.layout, memory, &self.config.kv)
    }
}

/// Plans how a server lays out a model: which weights stay resident and which stream. Fails if the
/// memory is not free.
pub fn draw(
    model: &Model,
    backend: &dyn Backend,
    layout: LoadOptions,
    memory: MemorySettings,
    kv: &KvMemory,
) -> Result<Blueprint, ServeError> {
    let blueprint = lay_out(model, backend, layout, memory, kv)?;
    blueprint.check(backend)?;
    Ok(blueprint)
}

/// Plans a layout like [`draw`], also if other models hold memory that it needs.
fn lay_out(
    model: &Model,
    backend: &dyn Backend,
    layout: LoadOptions,
    memory: MemorySettings,
    kv: &KvMemory,
) -> Result<Blueprint, ServeError> {
    let range = SizeRange::for_sessions(&model.program, demand(model, layout))?;
    Ok(Blueprint::sized(model, backend, &range, memory, kv)?)
}

/// Whether weights or KV pages stream in some pass.
pub(super) fn streams(blueprint: &Blueprint) -> bool {
    blueprint.plan().streams() || blueprint.streamed_kv_bytes() > 0
}

/// Sessions that a server is sized for. A context above the model's is cut to it, because one setting
/// can apply to several models.
fn demand(model: &Model, layout: LoadOptions) -> SessionDemand {
    let limit = model.program.dims.context;
    let context = layout.context.inspect(|&context| {
        if context > limit {
            tracing::warn!(
                model = model.name,
                context,
                limit,
                "the context exceeds the model's"
            );
        }
    });
    let open = layout.sessions.unwrap_or(SESSIONS_DEFAULT).max(1);
    SessionDemand {
        context: match context {
            Some(context) => ContextDemand::Set(context.min(limit)),
            None => ContextDemand::Free(1),
        },
        batch: Count::or(layout.batch, BATCH_DEFAULT),
        open,
        rows: Count::or(layout.rows, Settings::ROWS),
        probes: true,
        full_sessions: FULL_SESSIONS.min(open),
        together: false,
    }
}

/// Measures the link's bandwidth in bytes per second; 0 where nothing streams. A file is read for this
/// time.
pub(super) fn link_ceiling(
    backend: &dyn Backend,
    model: &Model,
    blueprint: &Blueprint,
    time: Duration,
) -> f64 {
    if !streams(blueprint) && blueprint.levels().is_none() {
        return 0.0;
    }
    let measure = |time| rates::link_bandwidth(backend, model, blueprint, time, 0.0).unwrap_or(0.0);
    match backend.card() {
        Some(_) => best_of(|| measure(MEASURE_TIME)),
        None => measure(time),
    }
}

/// Repeats a measurement until it stops improving, because an idle link is slow at first.
fn best_of(mut measure: impl FnMut() -> f64) -> f64 {
    let mut most: f64 = 0.0;
    for _ in 0..MEASUREMENTS_MAX {
        let rate = measure();
        let has_settled = rate <= most * 1.01;
        most = most.max(rate);
        if has_settled {
            break;
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::best_of;

    #[test]
    fn the_link_is_measured_until_its_rate_stops_improving() {
        let check = |rates: &[f64], expect: f64| {
            let mut rates = rates.iter().copied();
            assert_eq!(best_of(|| rates.next().unwrap_or(f64::NAN)), expect);
        };
        check(&[55.0, 55.1], 55.1);
        check(&[29.0, 40.0, 55.0, 55.2], 55.2);
        check(&[55.0, 30.0], 55.0);
        check(&[0.0, 0.0], 0.0);
    }
}
