//! Admission of models: loads a model on demand, and unloads others where host memory is short.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use djinn_engine::LoadProgress;
use djinn_model::Model;
use tokio::sync::watch;

use super::{
    Registry,
    entry::{LoadState, ModelEntry},
    loader::{self, ModelLoader, Sharer},
};
use crate::{ServeError, config::ServedModel, engine_thread::LoadedModel};

/// Interval at which a load that lacks host memory looks whether other loads have ended.
const LOADING_POLL: Duration = Duration::from_millis(100);

impl Registry {
    /// Loads a model, and leaves its entry `Ready`, `Unloaded` or `Failed`, never `Loading`. The caller
    /// holds the lock of the model. The load waits for device memory as long as `patience` says.
    pub(super) async fn load(
        self: &Arc<Self>,
        name: &str,
        patience: Option<Duration>,
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
        let loaded = self
            .load_with_eviction(name, &entry, patience, &progress)
            .await;
        match &loaded {
            Ok(model) => {
                tracing::info!(model = name, routing = model.facts.routing, "model loaded");
                self.set_quotas(model);
                self.set_state(name, LoadState::Ready(Arc::clone(model)));
            }
            // The model fits when others have left, so it is not marked as failed.
            Err(error) if loader::is_memory_shortage(error) => {
                self.set_state(name, LoadState::Unloaded);
            }
            Err(error) => {
                tracing::warn!(model = name, %error, "loading a model failed");
                self.set_state(name, LoadState::Failed(error.to_string()));
            }
        }
        loaded.map_err(|error| match error {
            error @ ServeError::Engine(_) if loader::is_memory_shortage(&error) => {
                self.with_memory_users(error)
            }
            // The operator's model is broken, which no client can change.
            ServeError::Model(error) if entry.trusted => {
                ServeError::Internal(format!("Model {name} cannot be loaded: {error}"))
            }
            error => error,
        })
    }

    /// Loads a model. While host memory is short, unloads idle models, least recently used first, and waits
    /// for models that are being loaded: they can be unloaded afterwards.
    async fn load_with_eviction(
        self: &Arc<Self>,
        name: &str,
        entry: &ModelEntry,
        patience: Option<Duration>,
        progress: &Arc<Mutex<impl Fn(LoadProgress) + Send + 'static>>,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let until = Instant::now() + self.config.limits.queue_wait;
        loop {
            let (registry, progress) = (Arc::clone(self), Arc::clone(progress));
            let (config, trusted) = (entry.config.clone(), entry.trusted);
            let loaded = tokio::task::spawn_blocking(move || {
                let loader = registry.loader(&config, trusted)?;
                let loader = ModelLoader { patience, ..loader };
                loader.start(move |p| (progress.lock().unwrap_or_else(PoisonError::into_inner))(p))
            });
            let loaded = loaded
                .await
                .map_err(|error| ServeError::Internal(error.to_string()))?;
            match loaded {
                Err(error) if loader::is_host_shortage(&error) => {
                    if !self.evict_idle(name).await {
                        if !self.is_loading_other(name) || Instant::now() >= until {
                            return Err(error);
                        }
                        tokio::time::sleep(LOADING_POLL).await;
                    }
                }
                loaded => return loaded,
            }
        }
    }

    /// Whether a model other than `name` is being loaded.
    fn is_loading_other(&self, name: &str) -> bool {
        let entries = self.entries();
        let mut others = entries.values().filter(|entry| entry.config.name != name);
        others.any(|entry| matches!(entry.state, LoadState::Loading(_)))
    }

    /// Settings to load a model, with what other models hold and will need. Reads files of models.
    pub(super) fn loader(
        &self,
        model: &ServedModel,
        trusted: bool,
    ) -> Result<ModelLoader, ServeError> {
        let loaded = self.loaded();
        // A loaded model could reuse its own memory.
        let own_bytes = loaded
            .iter()
            .filter(|loaded| loaded.name == model.name && !loaded.is_swapped_out());
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
            host_taken: self.pool.host_bytes_of_others(&model.name),
            patience: Some(self.config.limits.queue_wait),
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
            let opened = Model::open(&reference);
            Some(Sharer {
                name: entry.config.name,
                weight_bytes: opened.map_or(0, |model| model.program.weight_bytes()),
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
}
