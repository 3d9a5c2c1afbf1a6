//! Admission of models: loads a model on demand, and unloads others where host memory is short.

use std::sync::{Arc, Mutex, PoisonError};

use djinn_engine::LoadProgress;
use tokio::sync::watch;

use super::{
    Registry,
    entry::{LoadState, ModelEntry},
    load::{self, ModelLoader, Sharer},
};
use crate::{ServeError, config::ServedModel, engine_thread::LoadedModel};

impl Registry {
    /// Loads a model, and leaves its entry `Ready`, `Unloaded` or `Failed`, never `Loading`.
    pub(super) async fn load(
        self: &Arc<Self>,
        name: &str,
        progress: impl Fn(LoadProgress) + Send + 'static,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let entry = self.entry(name)?;
        let (reported, watched) = watch::channel(LoadProgress {
            loaded: 0,
            total: 0,
        });
        self.set_state(name, LoadState::Loading(watched));
        let progress = Arc::new(Mutex::new(move |p: LoadProgress| {
            reported.send_replace(p);
            progress(p);
        }));
        let loaded = self.load_with_eviction(name, &entry, &progress).await;
        match &loaded {
            Ok(model) => {
                tracing::info!(model = name, routing = model.facts.routing, "model loaded");
                self.set_quotas(model);
                self.set_state(name, LoadState::Ready(Arc::clone(model)));
            }
            // The model fits when others have left, so it is not marked as failed.
            Err(error) if load::is_memory_shortage(error) => {
                self.set_state(name, LoadState::Unloaded);
            }
            Err(error) => {
                tracing::warn!(model = name, %error, "loading a model failed");
                self.set_state(name, LoadState::Failed(error.to_string()));
            }
        }
        loaded.map_err(|error| match error {
            error @ ServeError::Engine(_) if load::is_memory_shortage(&error) => {
                self.with_memory_users(error)
            }
            // The operator's model is broken, which no client can change.
            ServeError::Model(error) if entry.trusted => {
                ServeError::Internal(format!("Model {name} cannot be loaded: {error}"))
            }
            error => error,
        })
    }

    /// Loads a model. While host memory is short, unloads idle models, least recently used first.
    async fn load_with_eviction(
        &self,
        name: &str,
        entry: &ModelEntry,
        progress: &Arc<Mutex<impl Fn(LoadProgress) + Send + 'static>>,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        loop {
            let loader = self.loader(&entry.config, entry.trusted)?;
            let progress = Arc::clone(progress);
            let loaded = tokio::task::spawn_blocking(move || {
                loader.start(move |p| (progress.lock().unwrap_or_else(PoisonError::into_inner))(p))
            });
            let loaded = loaded
                .await
                .map_err(|error| ServeError::Internal(error.to_string()))?;
            match loaded {
                Err(error) if load::is_host_shortage(&error) => {
                    if !self.evict_idle(name).await {
                        return Err(error);
                    }
                }
                loaded => return loaded,
            }
        }
    }

    /// Settings to load a model, with what other models hold and will need.
    pub(super) fn loader(
        &self,
        model: &ServedModel,
        trusted: bool,
    ) -> Result<ModelLoader, ServeError> {
        let loaded = self.loaded();
        let (own, others): (Vec<_>, Vec<_>) =
            loaded.iter().partition(|loaded| loaded.name == model.name);
        // A loaded model could reuse its own memory.
        let own_bytes = own.iter().filter(|own| !own.is_swapped_out());
        let own_bytes: u64 = own_bytes.map(|own| own.facts.memory.total_bytes).sum();
        Ok(ModelLoader {
            name: model.name.clone(),
            reference: self.sources().resolve(&model.reference, trusted)?,
            layout: model.layout.or(self.config.layout),
            free: self.pool.free() + own_bytes,
            sharers: match trusted {
                true => self.sharers(&model.name),
                false => Vec::new(),
            },
            host_taken: others
                .iter()
                .map(|other| other.facts.memory.host_bytes)
                .sum(),
            host_left: 0,
            is_alone: self.entries().len() <= 1,
            pool: Arc::clone(&self.pool),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.metrics),
            fatal: self.fatal.clone(),
            preset: self.preset.clone(),
        })
    }

    /// Configured models except `name` that are not loaded yet. They share the free memory.
    fn sharers(&self, name: &str) -> Vec<Sharer> {
        let entries: Vec<ModelEntry> = self.entries().values().cloned().collect();
        let waits = |entry: &ModelEntry| {
            entry.trusted
                && entry.config.name != name
                && matches!(entry.state, LoadState::Unloaded | LoadState::Loading(_))
        };
        let waiting = entries.into_iter().filter(waits);
        let sharers = waiting.filter_map(|entry| {
            // A model that cannot be found takes no memory.
            let reference = self.sources().resolve(&entry.config.reference, true).ok()?;
            Some(Sharer {
                name: entry.config.name,
                reference,
                layout: entry.config.layout.or(self.config.layout),
            })
        });
        sharers.collect()
    }

    /// Adds the models that hold the memory to an out-of-memory error.
    fn with_memory_users(&self, error: ServeError) -> ServeError {
        let loaded = self.loaded();
        let holds = |model: &Arc<LoadedModel>| {
            let memory = &model.facts.memory;
            let host = djinn_types::Size(memory.host_bytes);
            match model.is_swapped_out() {
                true => format!("{} holds {host} of host memory", model.name),
                false => format!(
                    "{} holds {} and {host} of host memory",
                    model.name,
                    djinn_types::Size(memory.total_bytes)
                ),
            }
        };
        match loaded.is_empty() {
            true => error,
            false => ServeError::Conflict(format!(
                "{error}; of {} in total, {}: unload a model, or lower its memory limit (memory=)",
                djinn_types::Size(self.config.memory.budget),
                loaded.iter().map(holds).collect::<Vec<_>>().join(", ")
            )),
        }
    }

    /// Unloads an idle model to free host memory for `name`: one that is swapped out before the others,
    /// and the least recently used one first. Returns whether one was unloaded.
    async fn evict_idle(&self, name: &str) -> bool {
        let durable = self.config.state.is_some();
        let mut idle = Vec::new();
        for model in self.loaded() {
            let can_unload = model.call_as_server(move |worker| Ok(worker.can_unload(durable)));
            if model.name != name && can_unload.await.unwrap_or(false) {
                idle.push(((!model.is_swapped_out(), model.last_used()), model));
            }
        }
        idle.sort_by_key(|(order, _)| *order);
        for (_, model) in idle {
            // The model may have become busy since. The job checks again, and rejects further
            // jobs if the model is idle.
            let closed = model.call_as_server(move |worker| Ok(worker.close_for_unload(durable)));
            if closed.await.unwrap_or(false) {
                tracing::info!(model = model.name, for_model = name, "idle model unloaded");
                self.stop(model).await;
                return true;
            }
        }
        false
    }
}
