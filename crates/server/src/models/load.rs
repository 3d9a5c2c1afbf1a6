//! From a reference to an engine: opening, routing by size, loading, taking sessions back.

use std::sync::Arc;
use std::time::Duration;

use djinn_device::{Backend, cuda};
use djinn_engine::{
    Blueprint, Engine, EngineError, KvMemory, LoadProgress, ProbeLimits, RestoreScope, Settings,
    StateFolder,
};
use djinn_model::Model;
use djinn_weights::{Keep, MemorySettings, Overrides, measure_link};
use djinn_wire::v1;

use super::name::as_folder;
use crate::{
    ServeError,
    config::{Config, Layout},
    host::{Host, Loaded, Start, facts},
    metrics::Metrics,
};

/// Positions of a session, unless the model has fewer or somebody says.
const CONTEXT: usize = 4096;
/// Sessions in one pass, and open at once.
const BATCH: usize = 32;
/// Those.
const SESSIONS: usize = 256;
/// How long the link is measured by itself where weights stream.
const MEASURE: Duration = Duration::from_millis(300);
/// How often at most.
const MEASURED: usize = 8;

/// A model to load.
#[derive(Clone)]
pub(super) struct Loading {
    pub name: String,
    pub reference: String,
    pub layout: Layout,
    /// Bytes of the device that others have.
    pub taken: u64,
    /// How many share what is left.
    pub sharers: usize,
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
}

/// Whether more memory would help.
pub(super) fn wants_memory(error: &ServeError) -> bool {
    let ServeError::Engine(error) = error else {
        return false;
    };
    matches!(
        error,
        EngineError::Plan(_)
            | EngineError::HostBudget { .. }
            | EngineError::HostMemory { .. }
            | EngineError::SpillNeedsHost { .. }
            | EngineError::OutOfPages(_)
    )
}

impl Loading {
    /// Opens the model on a thread of its own.
    pub fn start(
        self,
        progress: impl FnMut(LoadProgress) + Send + 'static,
    ) -> Result<Arc<Host>, ServeError> {
        let start = Start {
            name: self.name.clone(),
            metrics: Arc::clone(&self.metrics),
        };
        Host::start(start, move |progress| self.load(progress), progress)
    }

    fn load(self, progress: &mut dyn FnMut(LoadProgress)) -> Result<Loaded, ServeError> {
        let model = Model::open(&self.reference)?;
        let blueprint = self.draw(&model)?;
        tracing::debug!(model = self.name, plan = blueprint.reason(), "loading");
        if self.config.memory.overrides.ring.is_some() && blueprint.plan().ring.slots.is_empty() {
            tracing::warn!(
                model = self.name,
                "no ring is needed, so --ring is not used"
            );
        }
        let backend = &*self.config.backend;
        let link_ceiling = link_ceiling(backend, &model, &blueprint);
        let mut engine = Engine::load(model, backend, blueprint, progress)?;
        if let Some(folder) = &self.config.state {
            let folder = folder.join(as_folder(&self.name));
            let state = StateFolder::open(&folder)?;
            let restored = engine.keep_state(state, RestoreScope::All)?;
            for (id, error) in &restored.refused {
                tracing::warn!(model = self.name, session = id.0, %error, "not taken back");
            }
            if !restored.sessions.is_empty() {
                let count = restored.sessions.len();
                tracing::info!(model = self.name, count, "sessions taken back");
            }
        }
        Ok(Loaded {
            engine,
            link_ceiling,
        })
    }

    /// What it would be laid out as.
    pub fn plan(self) -> Result<v1::PlanReply, ServeError> {
        let model = Model::open(&self.reference)?;
        let blueprint = self.draw(&model)?;
        let settings = blueprint.settings();
        let pages = settings.context.div_ceil(settings.page_tokens) as u64;
        let link = link_ceiling(&*self.config.backend, &model, &blueprint);
        let streamed = blueprint.plan().ring.streamed_bytes() as f64;
        Ok(v1::PlanReply {
            routing: blueprint.reason(),
            dims: Some(facts::dims(&model.program.dims)),
            memory: Some(facts::memory(&blueprint)),
            session_kv_bytes: pages * blueprint.page_bytes(),
            limits: Some(facts::limits(&blueprint)),
            link_bytes_per_s: link,
            pass_s: if link > 0.0 { streamed / link } else { 0.0 },
        })
    }

    fn draw(&self, model: &Model) -> Result<Blueprint, ServeError> {
        let left = self.config.memory.budget.saturating_sub(self.taken);
        let budget = self.layout.memory.unwrap_or(left / self.sharers as u64);
        let all = self.config.memory;
        let memory = MemorySettings {
            budget: budget.min(left),
            prefetch: self.layout.prefetch.unwrap_or(all.prefetch),
            overrides: Overrides {
                keep: self
                    .layout
                    .resident
                    .map_or(all.overrides.keep, Keep::AtMost),
                ..all.overrides
            },
            ..all
        };
        draw(
            model,
            &*self.config.backend,
            self.layout,
            memory,
            &self.config.kv,
        )
    }
}

/// How a server lays a model out: what stays and what streams, in so much memory.
pub fn draw(
    model: &Model,
    backend: &dyn Backend,
    layout: Layout,
    memory: MemorySettings,
    kv: &KvMemory,
) -> Result<Blueprint, ServeError> {
    let program = &model.program;
    let context = layout.context.unwrap_or(CONTEXT).min(program.dims.context);
    let batch = layout.batch.unwrap_or(BATCH).max(1);
    let open = layout.sessions.unwrap_or(SESSIONS).max(1);
    let rows = layout.rows.unwrap_or(Settings::ROWS);
    let one = Settings::for_sessions(program, 1, context, rows)?;
    let rows = rows.max(batch);
    let settings = Settings {
        rows,
        sessions: batch,
        open,
        pages: open.saturating_mul(one.pages),
        // Any of them may be looked at behind the last block.
        logit_rows: rows,
        probe_limits: ProbeLimits::anything(program, context),
        ..one
    };
    let blueprint = Blueprint::for_sessions(model, backend, settings, memory, kv)?;
    blueprint.check(backend)?;
    Ok(blueprint)
}

/// Bytes a second that the link gives alone, where weights come over it.
fn link_ceiling(backend: &dyn Backend, model: &Model, blueprint: &Blueprint) -> f64 {
    if !blueprint.plan().streams() {
        return 0.0;
    }
    if let Some(card) = backend.card() {
        return settled(|| {
            cuda::measure_link(card, blueprint.link().chunk, MEASURE).unwrap_or(0.0)
        });
    }
    let (chunk, workers) = (blueprint.weights().link_chunk(), blueprint.link().workers);
    let rate = measure_link(&*model.weights, chunk, workers, MEASURE, 0.0);
    rate.map_or(0.0, |rate| rate.bytes_per_s())
}

/// A link that was idle, or whose host was busy giving memory back, is slow at first: measured again
/// until that makes no difference.
fn settled(mut measure: impl FnMut() -> f64) -> f64 {
    let mut most: f64 = 0.0;
    for _ in 0..MEASURED {
        let rate = measure();
        let is_awake = rate <= most * 1.01;
        most = most.max(rate);
        if is_awake {
            break;
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::settled;

    #[test]
    fn a_link_is_measured_until_it_has_woken_up() {
        let check = |rates: &[f64], expect: f64| {
            let mut rates = rates.iter().copied();
            assert_eq!(settled(|| rates.next().unwrap_or(f64::NAN)), expect);
        };
        check(&[55.0, 55.1], 55.1);
        check(&[29.0, 40.0, 55.0, 55.2], 55.2);
        check(&[55.0, 30.0], 55.0);
        check(&[0.0, 0.0], 0.0);
    }
}
