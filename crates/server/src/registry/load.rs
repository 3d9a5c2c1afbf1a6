//! Load of one model: opens its files, reserves and plans its memory, creates the engine and restores
//! its sessions.

use std::sync::Arc;
use std::time::Duration;

use djinn_device::Backend;
use djinn_engine::{
    Blueprint, Engine, LoadProgress, RestoreScope, SavedPrefixes, StateFolder, rates,
};
use djinn_model::Model;

use super::{
    layout::streams,
    loader::{ModelLoader, is_host_shortage},
    name::as_folder,
};
use crate::{
    ServeError,
    device_pool::Reservation,
    engine_thread::{LoadedEngine, LoadedModel, ThreadSetup},
};

/// Duration of one bandwidth measurement of the link.
const MEASURE_TIME: Duration = Duration::from_millis(300);
/// Largest number of bandwidth measurements.
const MEASUREMENTS_MAX: usize = 8;

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
            queue_wait: self.config.limits.queue_wait,
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
            return reservation.plan_host(|_| Ok((blueprint.host_bytes(), blueprint)));
        }
        let budget = self.budget(model)?;
        // A layout that cannot work fails before other models leave.
        let needed = match self.draw(model, budget) {
            Err(error) if is_host_shortage(&error) => budget,
            drawn => drawn?.footprint().total(),
        };
        reservation.reserve(needed, self.patience, || {
            // Meanwhile other models may have freed host memory, or taken it.
            let blueprint = reservation.plan_host(|host_taken| {
                let loader = ModelLoader {
                    host_taken,
                    ..self.clone()
                };
                let blueprint = loader.draw(model, budget)?;
                Ok((blueprint.host_bytes(), blueprint))
            })?;
            blueprint.check(&*self.config.backend)?;
            Ok((blueprint.footprint().total(), blueprint))
        })
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
