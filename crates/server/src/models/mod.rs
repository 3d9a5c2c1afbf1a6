//! The models of a server: which there are, which are loaded, and who gives way to whom.

mod load;
mod name;
mod pushed;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use djinn_engine::LoadProgress;
use djinn_wire::v1;
use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::{
    ServeError,
    config::{Config, Layout, ModelConfig},
    host::{Host, facts},
    keys::Keys,
    metrics::Metrics,
};

pub use load::draw;
pub use name::{check_name, default_name};
pub use pushed::{FileOffer, Pushed, Writing};

/// Every model there is.
pub struct Registry {
    config: Arc<Config>,
    keys: Arc<Keys>,
    metrics: Arc<Metrics>,
    /// Models that clients pushed.
    pub pushed: Arc<Pushed>,
    entries: Mutex<BTreeMap<String, Entry>>,
    /// The name that stands for a model where none is given.
    default: Mutex<Option<String>>,
    /// One model is loaded at a time.
    loading: AsyncMutex<()>,
}

#[derive(Clone)]
struct Entry {
    config: ModelConfig,
    /// Whether the server was told of it by whoever runs it.
    trusted: bool,
    state: State,
}

#[derive(Clone)]
enum State {
    Unloaded,
    Loading(watch::Receiver<LoadProgress>),
    Ready(Arc<Host>),
    Failed(String),
}

impl Registry {
    /// No model is loaded yet.
    pub fn new(
        config: &Arc<Config>,
        keys: &Arc<Keys>,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, ServeError> {
        let registry = Registry {
            pushed: Arc::new(Pushed::open(&config.pushed, config.limits.upload_bytes)?),
            config: Arc::clone(config),
            keys: Arc::clone(keys),
            metrics: Arc::clone(metrics),
            entries: Mutex::default(),
            default: Mutex::default(),
            loading: AsyncMutex::default(),
        };
        for model in &config.models {
            registry.add(model.clone(), true)?;
        }
        Ok(Arc::new(registry))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a model known. The same one twice changes nothing; another of its name is refused.
    pub fn add(&self, model: ModelConfig, trusted: bool) -> Result<(), ServeError> {
        check_name(&model.name)?;
        let mut entries = self.entries();
        match entries.get(&model.name) {
            Some(known) if known.config.reference == model.reference => return Ok(()),
            Some(known) => {
                return Err(ServeError::Conflict(format!(
                    "'{}' is {} here already: choose another name, or unload and forget that one",
                    model.name, known.config.reference
                )));
            }
            None => {}
        }
        let entry = Entry {
            config: model.clone(),
            trusted,
            state: State::Unloaded,
        };
        entries.insert(model.name.clone(), entry);
        drop(entries);
        let mut default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        default.get_or_insert(model.name);
        Ok(())
    }

    /// A loaded model; one that is known and not loaded is, and nobody else is kept from theirs
    /// meanwhile. No name stands for the first there was.
    pub async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Host>, ServeError> {
        self.get_with(name, |_| {}).await
    }

    /// The same, telling how far that has come.
    pub async fn get_with(
        self: &Arc<Self>,
        name: &str,
        progress: impl Fn(LoadProgress) + Send + 'static,
    ) -> Result<Arc<Host>, ServeError> {
        let name = self.known(name)?;
        if let Some(host) = self.ready(&name) {
            return Ok(host);
        }
        let registry = Arc::clone(self);
        // Whoever leaves in the middle must not leave half a model behind.
        let loaded = tokio::spawn(async move {
            let _one_at_a_time = registry.loading.lock().await;
            match registry.ready(&name) {
                Some(host) => Ok(host),
                None => registry.load(&name, progress).await,
            }
        });
        loaded
            .await
            .map_err(|error| ServeError::Internal(error.to_string()))?
    }

    /// The name of a model that is known, or what there is instead.
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
        let there: Vec<&str> = entries.keys().map(String::as_str).collect();
        Err(ServeError::NotFound(format!(
            "there is no model '{name}' here, only {}",
            match there.is_empty() {
                true => "none".to_owned(),
                false => there.join(", "),
            }
        )))
    }

    /// The name that stands for a model where none is given. No lock is held afterwards.
    fn default_name(&self) -> Option<String> {
        let default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        default.clone()
    }

    /// A model that can be asked.
    fn ready(&self, name: &str) -> Option<Arc<Host>> {
        let mut entries = self.entries();
        let entry = entries.get_mut(name)?;
        match &entry.state {
            State::Ready(host) if host.is_alive() => {
                host.touch();
                Some(Arc::clone(host))
            }
            State::Ready(_) => {
                entry.state = State::Failed("its engine broke down".to_owned());
                None
            }
            _ => None,
        }
    }

    fn set_state(&self, name: &str, state: State) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.state = state;
        }
    }

    /// Loads a model into what is left of the memory; those that nobody uses give way, the one that
    /// was not used for longest first.
    async fn load(
        self: &Arc<Self>,
        name: &str,
        progress: impl Fn(LoadProgress) + Send + 'static,
    ) -> Result<Arc<Host>, ServeError> {
        let entry = self.entries().get(name).cloned();
        let entry = entry.ok_or_else(|| ServeError::NotFound(format!("'{name}' was forgotten")))?;
        let (told, watched) = watch::channel(LoadProgress {
            loaded: 0,
            total: 0,
        });
        self.set_state(name, State::Loading(watched));
        let progress = Arc::new(Mutex::new(move |p: LoadProgress| {
            told.send_replace(p);
            progress(p);
        }));
        loop {
            let loading = self.loading(name, &entry)?;
            let alone = load::Loading {
                taken: 0,
                sharers: 1,
                ..loading.clone()
            };
            let progress = Arc::clone(&progress);
            let loaded = tokio::task::spawn_blocking(move || {
                loading.start(move |p| (progress.lock().unwrap_or_else(PoisonError::into_inner))(p))
            });
            let loaded = loaded
                .await
                .map_err(|error| ServeError::Internal(error.to_string()));
            match loaded.flatten() {
                Ok(host) => {
                    tracing::info!(model = name, routing = host.facts.routing, "loaded");
                    self.set_quotas(&host);
                    self.set_state(name, State::Ready(Arc::clone(&host)));
                    return Ok(host);
                }
                Err(error) if load::wants_memory(&error) => {
                    // Nobody gives way to one that would not fit alone.
                    let fits = tokio::task::spawn_blocking(move || alone.plan().is_ok()).await;
                    if !fits.unwrap_or(false) || !self.give_way(name).await {
                        self.set_state(name, State::Unloaded);
                        return Err(self.crowded(error));
                    }
                }
                Err(error) => {
                    tracing::warn!(model = name, %error, "not loaded");
                    self.set_state(name, State::Failed(error.to_string()));
                    return Err(error);
                }
            }
        }
    }

    fn loading(&self, name: &str, entry: &Entry) -> Result<load::Loading, ServeError> {
        Ok(load::Loading {
            name: name.to_owned(),
            reference: self.resolve(&entry.config.reference, entry.trusted)?,
            layout: entry.config.layout.or(self.config.layout),
            taken: self.taken(),
            sharers: self.unloaded(),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.metrics),
        })
    }

    /// The same error, saying who has the memory.
    fn crowded(&self, error: ServeError) -> ServeError {
        let hosts = self.hosts();
        let have = |host: &Arc<Host>| {
            let bytes = djinn_memory::Size(host.facts.memory.total_bytes);
            format!("{} has {bytes}", host.name)
        };
        match hosts.is_empty() {
            true => error,
            false => ServeError::Conflict(format!(
                "{error}; of {} in all, {}: unload one, or give it less (memory=)",
                djinn_memory::Size(self.config.memory.budget),
                hosts.iter().map(have).collect::<Vec<_>>().join(", ")
            )),
        }
    }

    /// Unloads the model that was not used for longest, of those that can go.
    async fn give_way(&self, to: &str) -> bool {
        let mut idle: Vec<(Instant, Arc<Host>)> = Vec::new();
        for host in self.hosts() {
            let durable = self.config.state.is_some();
            let can_go = host.call(move |worker| Ok(worker.can_go(durable)));
            if host.name != to && can_go.await.unwrap_or(false) {
                idle.push((host.last_used(), host));
            }
        }
        idle.sort_by_key(|(used, _)| *used);
        let mut gone = None;
        for (_, host) in idle {
            // From here on it takes nothing new, if it still can go.
            let durable = self.config.state.is_some();
            let closed =
                host.call(move |worker| Ok(worker.can_go(durable) && worker.close_doors()));
            if closed.await.unwrap_or(false) {
                gone = Some(host);
                break;
            }
        }
        let Some(host) = gone else {
            return false;
        };
        tracing::info!(model = host.name, to, "gives way");
        self.stop(host).await;
        true
    }

    async fn stop(&self, host: Arc<Host>) {
        self.set_state(&host.name, State::Unloaded);
        let _ = tokio::task::spawn_blocking(move || host.stop()).await;
    }

    /// Unloads a model; where sessions would be lost only by force.
    pub async fn unload(&self, name: &str, force: bool, forget: bool) -> Result<(), ServeError> {
        let name = self.known(name)?;
        let _one_at_a_time = self.loading.lock().await;
        if let Some(host) = self.ready(&name) {
            let open = host
                .call(|worker| Ok(worker.engine.list(None).len()))
                .await?;
            if open > 0 && self.config.state.is_none() && !force {
                return Err(ServeError::Conflict(format!(
                    "{name} has {open} open sessions, and they are not kept anywhere: close them, or use \
                     force"
                )));
            }
            self.stop(host).await;
        }
        if !forget {
            self.set_state(&name, State::Unloaded);
            return Ok(());
        }
        let next = {
            let mut entries = self.entries();
            entries.remove(&name);
            entries.keys().next().cloned()
        };
        let mut default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        if default.as_ref() == Some(&name) {
            *default = next;
        }
        Ok(())
    }

    /// Every model that is loaded.
    pub fn hosts(&self) -> Vec<Arc<Host>> {
        let entries = self.entries();
        let ready = |entry: &Entry| match &entry.state {
            State::Ready(host) if host.is_alive() => Some(Arc::clone(host)),
            _ => None,
        };
        entries.values().filter_map(ready).collect()
    }

    /// Bytes of the device that loaded models take.
    pub fn taken(&self) -> u64 {
        let hosts = self.hosts();
        hosts.iter().map(|host| host.facts.memory.total_bytes).sum()
    }

    /// Models that whoever runs the server wants, and that are not loaded yet.
    fn unloaded(&self) -> usize {
        let entries = self.entries();
        let waits = |entry: &&Entry| entry.trusted && !matches!(entry.state, State::Ready(_));
        entries.values().filter(waits).count().max(1)
    }

    /// Tells engines what owners may have.
    pub fn set_quotas(&self, host: &Host) {
        let owners = self.keys.owners();
        host.post(move |worker| {
            for owner in owners {
                worker.engine.set_quota_of(&owner.name, Some(owner.quota));
            }
        });
    }

    /// What is told of every model.
    pub async fn list(&self) -> Vec<v1::Model> {
        let entries: Vec<(String, Entry)> = {
            let entries = self.entries();
            entries
                .iter()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };
        let default = self.default_name();
        let mut entries = entries;
        entries.sort_by_key(|(name, _)| Some(name) != default.as_ref());
        let mut models = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            models.push(describe(name, entry).await);
        }
        models
    }

    /// What is told of one.
    pub async fn describe(&self, name: &str) -> Result<v1::Model, ServeError> {
        let name = self.known(name)?;
        let entry = self.entries().get(&name).cloned();
        let entry = entry.ok_or_else(|| ServeError::NotFound(format!("'{name}' was forgotten")))?;
        Ok(describe(name, entry).await)
    }

    /// Where a model lies. Clients may name hub ids, shapes, what was pushed, and folders that they
    /// were allowed.
    pub fn resolve(&self, reference: &str, trusted: bool) -> Result<String, ServeError> {
        if reference.starts_with("shape:") {
            return Ok(reference.to_owned());
        }
        if let Some(hash) = reference.strip_prefix("pushed:") {
            return Ok(path_text(self.pushed.folder(hash)?));
        }
        if !trusted {
            return self.resolve_for_client(reference);
        }
        Ok(match djinn_hub::resolve(reference)? {
            djinn_hub::Resolved::Shape(shape) => shape,
            djinn_hub::Resolved::Folder(folder) => path_text(folder),
        })
    }

    fn resolve_for_client(&self, reference: &str) -> Result<String, ServeError> {
        for dir in &self.config.model_dirs {
            let (Ok(dir), Ok(folder)) = (dir.canonicalize(), dir.join(reference).canonicalize())
            else {
                continue;
            };
            if folder.starts_with(&dir) && folder != dir && folder.is_dir() {
                return Ok(path_text(folder));
            }
        }
        // Nothing else of this machine can be named: a hub id is two plain names.
        let refuse = || {
            ServeError::NotFound(format!(
                "'{reference}' is neither a hub id, a shape, a pushed model, nor a folder that clients of \
                 this server may name (--model-dir)"
            ))
        };
        check_name(reference).map_err(|_| refuse())?;
        if reference.matches('/').count() != 1 {
            return Err(refuse());
        }
        let id: djinn_hub::ModelId = reference.parse().map_err(|_| refuse())?;
        let places = djinn_hub::Places::from_env()?;
        Ok(path_text(djinn_hub::resolve_id(&id, &places)?))
    }

    /// What a model would be laid out as, now. Loads nothing.
    pub async fn plan(
        &self,
        reference: &str,
        layout: Layout,
        trusted: bool,
    ) -> Result<v1::PlanReply, ServeError> {
        let known = self.entries().get(reference).cloned();
        // What it has itself it could have again.
        let own = match &known {
            Some(Entry {
                state: State::Ready(host),
                ..
            }) => host.facts.memory.total_bytes,
            _ => 0,
        };
        let (reference, trusted, own_layout) = match known {
            Some(entry) => (entry.config.reference, entry.trusted, entry.config.layout),
            None => (reference.to_owned(), trusted, Layout::default()),
        };
        let loading = load::Loading {
            name: reference.clone(),
            reference: self.resolve(&reference, trusted)?,
            layout: layout.or(own_layout).or(self.config.layout),
            taken: self.taken().saturating_sub(own),
            sharers: 1,
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.metrics),
        };
        let planned = tokio::task::spawn_blocking(move || loading.plan()).await;
        planned.map_err(|error| ServeError::Internal(error.to_string()))?
    }

    /// Unloads everything: the server goes down.
    pub async fn stop_all(&self) {
        for host in self.hosts() {
            self.stop(host).await;
        }
    }
}

fn path_text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

async fn describe(name: String, entry: Entry) -> v1::Model {
    let mut model = v1::Model {
        name,
        reference: entry.config.reference,
        ..v1::Model::default()
    };
    let state = match entry.state {
        State::Unloaded => v1::ModelState::Unloaded,
        State::Loading(progress) => {
            let LoadProgress { loaded, total } = *progress.borrow();
            model.routing = format!("loading: {loaded} of {total} bytes are there");
            v1::ModelState::Loading
        }
        State::Failed(why) => {
            model.routing = why;
            v1::ModelState::Failed
        }
        State::Ready(host) => {
            fill(&mut model, &host);
            let open = host.call(|worker| Ok(worker.engine.list(None).len())).await;
            model.sessions = open.unwrap_or(0) as u64;
            v1::ModelState::Ready
        }
    };
    model.state = state.into();
    model
}

fn fill(model: &mut v1::Model, host: &Host) {
    let facts = &host.facts;
    model.family = facts.family.to_owned();
    model.routing.clone_from(&facts.routing);
    model.dims = Some(facts::dims(&facts.dims));
    model.memory = Some(facts.memory);
    model.limits = Some(facts.limits);
    model.has_text = host.words.text.is_some();
    model.has_chat = host.words.chat.is_some();
    model.idle_s = host.last_used().elapsed().as_secs_f64();
    model.eos.clone_from(&host.words.generation.eos);
    model.max_new_tokens = host.words.generation.max_new_tokens.unwrap_or(0) as u64;
}
