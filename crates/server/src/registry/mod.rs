//! Models of a server: registered by name, loaded on demand, swapped out or unloaded when others
//! need their memory.

mod admission;
mod entry;
mod layout;
mod load;
mod loader;
mod name;
mod plan;
mod plan_configured;
mod push_writer;
mod pushed;
mod resolve;
mod share;
mod unload;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use djinn_engine::{LoadProgress, Quota};
use djinn_wire::v1;
use tokio::sync::Mutex as AsyncMutex;

use self::{
    entry::{LoadState, ModelEntry},
    resolve::ModelSources,
};
use crate::{
    ServeError,
    auth::KeyStore,
    config::{LoadOptions, ServedModel, ServerConfig},
    device_pool::DevicePool,
    engine_thread::LoadedModel,
    fatal::FatalSignal,
    metrics::Metrics,
    preset::Preset,
};

pub use layout::draw;
pub use name::{check_name, default_name};
pub use plan_configured::plan_configured;
pub use push_writer::PushWriter;
pub use pushed::{FileOffer, PushStore};

/// Models of a server.
pub struct Registry {
    config: Arc<ServerConfig>,
    keys: Arc<KeyStore>,
    metrics: Arc<Metrics>,
    fatal: FatalSignal,
    preset: Option<Arc<Preset>>,
    /// Memory of the device, which models use in turns.
    pool: Arc<DevicePool>,
    /// Models that clients pushed.
    pub pushed: Arc<PushStore>,
    entries: Mutex<BTreeMap<String, ModelEntry>>,
    /// Default model, for requests that name no model.
    default: Mutex<Option<String>>,
    /// Lock of each model, which serializes its loads and unloads.
    locks: Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>,
}

impl Registry {
    /// Registers the models of the configuration without loading them.
    pub fn new(
        config: &Arc<ServerConfig>,
        keys: &Arc<KeyStore>,
        metrics: &Arc<Metrics>,
        fatal: &FatalSignal,
        preset: Option<Arc<Preset>>,
    ) -> Result<Arc<Self>, ServeError> {
        let registry = Registry {
            pushed: Arc::new(PushStore::new(&config.pushed, config.limits.upload_bytes)),
            pool: DevicePool::new(config.memory.budget),
            config: Arc::clone(config),
            keys: Arc::clone(keys),
            metrics: Arc::clone(metrics),
            fatal: fatal.clone(),
            preset,
            entries: Mutex::default(),
            default: Mutex::default(),
            locks: Mutex::default(),
        };
        for model in &config.models {
            registry.add(model.clone(), true)?;
        }
        Ok(Arc::new(registry))
    }

    /// Lock that serializes loads and unloads of a model. Other models do not wait for it.
    fn lock_of(&self, name: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(name.to_owned()).or_default())
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, ModelEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a model. Repeating a registration changes nothing. Another model with the same
    /// name is an error.
    pub fn add(&self, model: ServedModel, trusted: bool) -> Result<(), ServeError> {
        check_name(&model.name)?;
        let mut entries = self.entries();
        match entries.get(&model.name) {
            Some(known) if known.config.reference == model.reference => return Ok(()),
            Some(known) => {
                return Err(ServeError::Conflict(format!(
                    "The name '{}' is taken by {}: choose another name, or unload that model with forget",
                    model.name, known.config.reference
                )));
            }
            None => {}
        }
        let name = model.name.clone();
        let entry = ModelEntry {
            config: model,
            trusted,
            state: LoadState::Unloaded,
        };
        entries.insert(name.clone(), entry);
        drop(entries);
        let mut default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        default.get_or_insert(name);
        Ok(())
    }

    /// Returns a loaded model, and loads it first if necessary. The empty name means the first registered
    /// model.
    pub async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<LoadedModel>, ServeError> {
        self.get_with(name, |_| {}).await
    }

    /// Returns a loaded model like [`Registry::get`], and reports the progress of loading.
    pub async fn get_with(
        self: &Arc<Self>,
        name: &str,
        progress: impl Fn(LoadProgress) + Send + 'static,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let patience = self.config.limits.queue_wait;
        self.get_within(name, Some(patience), progress).await
    }

    /// Loads a model at the start of the server, and waits for device memory without limit: models that are
    /// loaded already may be busy with restored sessions.
    pub async fn load_at_start(self: &Arc<Self>, name: &str) -> Result<(), ServeError> {
        self.get_within(name, None, |_| {}).await.map(drop)
    }

    async fn get_within(
        self: &Arc<Self>,
        name: &str,
        patience: Option<Duration>,
        progress: impl Fn(LoadProgress) + Send + 'static,
    ) -> Result<Arc<LoadedModel>, ServeError> {
        let name = self.known(name)?;
        if let Some(model) = self.ready(&name) {
            return Ok(model);
        }
        let registry = Arc::clone(self);
        // The load runs in its own task, because a client that disconnects must not abort it
        // halfway.
        let loaded = tokio::spawn(async move {
            let lock = registry.lock_of(&name);
            let _one_at_a_time = lock.lock().await;
            match registry.ready(&name) {
                Some(model) => Ok(model),
                None => registry.load(&name, patience, progress).await,
            }
        });
        loaded
            .await
            .map_err(|error| ServeError::Internal(error.to_string()))?
    }

    /// Returns the full name of a registered model, or an error that lists all models.
    fn known(&self, name: &str) -> Result<String, ServeError> {
        let default = self.default_name();
        let name = match (name, &default) {
            ("", Some(default)) => default.as_str(),
            (name, _) => name,
        };
        let entries = self.entries();
        if entries.contains_key(name) {
            return Ok(name.to_owned());
        }
        let names: Vec<&str> = entries.keys().map(String::as_str).collect();
        let names = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        Err(ServeError::NotFound(format!(
            "No model '{name}' on this server; registered models: {names}"
        )))
    }

    /// Default model, for requests that name no model. This call releases its lock before it
    /// returns.
    fn default_name(&self) -> Option<String> {
        let default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        default.clone()
    }

    /// Returns a model if it is loaded, and marks a model with a failed engine.
    fn ready(&self, name: &str) -> Option<Arc<LoadedModel>> {
        let mut entries = self.entries();
        let entry = entries.get_mut(name)?;
        match &entry.state {
            LoadState::Ready(model) if model.is_alive() => {
                model.touch();
                Some(Arc::clone(model))
            }
            LoadState::Ready(_) => {
                entry.state = LoadState::Failed("the engine failed".to_owned());
                None
            }
            _ => None,
        }
    }

    fn set_state(&self, name: &str, state: LoadState) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.state = state;
        }
    }

    fn entry(&self, name: &str) -> Result<ModelEntry, ServeError> {
        let entry = self.entries().get(name).cloned();
        entry.ok_or_else(|| {
            ServeError::NotFound(format!(
                "Model '{name}' was unregistered; register it again"
            ))
        })
    }

    /// Models that are loaded.
    pub fn loaded(&self) -> Vec<Arc<LoadedModel>> {
        let entries = self.entries();
        let ready = |entry: &ModelEntry| match &entry.state {
            LoadState::Ready(model) if model.is_alive() => Some(Arc::clone(model)),
            _ => None,
        };
        entries.values().filter_map(ready).collect()
    }

    /// Bytes of device memory that models hold now.
    pub fn device_bytes(&self) -> u64 {
        self.pool.reserved()
    }

    /// Sets the quotas of all key owners on a model's engine, and shares its sessions fairly if there are
    /// several owners.
    pub fn set_quotas(&self, model: &LoadedModel) {
        let owners = self.keys.owners();
        let names: BTreeSet<&str> = owners.iter().map(|owner| owner.name.as_str()).collect();
        let are_several = names.len() > 1;
        // One of several owners may use half of the memory for captures and checkpoints.
        let budget = self.config.limits.probe_bytes;
        let general = Quota {
            probe_bytes: if are_several { budget / 2 } else { budget },
            ..Quota::default()
        };
        model.post(move |worker| {
            let engine = &mut worker.engine;
            engine.set_probe_budget(budget);
            engine.set_fair_slots(are_several);
            engine.set_quota(general);
            for owner in owners {
                let own = (owner.quota != Quota::default()).then_some(Quota {
                    probe_bytes: general.probe_bytes,
                    ..owner.quota
                });
                engine.set_quota_of(&owner.name, own);
            }
        });
    }

    /// Describes every model, the default one first.
    pub fn list(&self, for_admin: bool) -> Vec<v1::Model> {
        let mut entries: Vec<ModelEntry> = self.entries().values().cloned().collect();
        let default = self.default_name();
        entries.sort_by_key(|entry| Some(&entry.config.name) != default.as_ref());
        let entries = entries.into_iter();
        entries.map(|entry| entry.describe(for_admin)).collect()
    }

    /// Describes one model.
    pub fn describe(&self, name: &str, for_admin: bool) -> Result<v1::Model, ServeError> {
        Ok(self.entry(&self.known(name)?)?.describe(for_admin))
    }

    /// Name of a model of the configuration that failed, if any.
    pub fn first_failed(&self) -> Option<String> {
        let entries = self.entries();
        let mut configured = entries.values().filter(|entry| entry.trusted);
        let failed = configured.find(|entry| match &entry.state {
            LoadState::Failed(_) => true,
            LoadState::Ready(model) => !model.is_alive(),
            _ => false,
        });
        failed.map(|entry| entry.config.name.clone())
    }

    /// Reason why a model of the configuration does not serve; `None` if all of them do. `stall` is the time
    /// after which an engine that does not finish its pass counts as failed.
    pub fn not_ready(&self, stall: Duration) -> Option<String> {
        let entries = self.entries();
        let mut configured = entries.values().filter(|entry| entry.trusted);
        configured.find_map(|entry| {
            let name = &entry.config.name;
            match &entry.state {
                LoadState::Failed(_) => Some(format!("model {name} failed")),
                LoadState::Ready(model) if !model.is_alive() => {
                    Some(format!("the engine of model {name} failed"))
                }
                LoadState::Ready(model) if model.is_stalled(stall) => {
                    Some(format!("the engine of model {name} does not respond"))
                }
                _ => None,
            }
        })
    }

    /// Sources that resolve references of models.
    pub fn sources(&self) -> ModelSources<'_> {
        ModelSources {
            pushed: &self.pushed,
            model_dirs: &self.config.model_dirs,
        }
    }

    /// Plans how a model would be laid out in memory now, without loading it. The request names a reference
    /// or a registered model.
    pub async fn plan(
        self: &Arc<Self>,
        request: v1::PlanRequest,
        layout: LoadOptions,
        trusted: bool,
    ) -> Result<v1::PlanReply, ServeError> {
        let known = self.entries().get(&request.reference).cloned();
        let (entry, trusted) = match known {
            Some(entry) => (entry.config, entry.trusted),
            None => {
                let reference = request.reference.clone();
                let name = reference.clone();
                let unset = LoadOptions::default();
                (
                    ServedModel {
                        name,
                        reference,
                        layout: unset,
                    },
                    trusted,
                )
            }
        };
        let asked = ServedModel {
            layout: layout.or(entry.layout),
            ..entry
        };
        let registry = Arc::clone(self);
        let planned = tokio::task::spawn_blocking(move || {
            let loader = registry.loader(&asked, trusted)?;
            plan::plan(loader, &request)
        });
        let planned = planned.await;
        planned.map_err(|error| ServeError::Internal(error.to_string()))?
    }
}
