//! Connection of a command to a model: on a server in this process, or on one elsewhere.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use djinn_analysis::loaded_info;
use djinn_client::{Client, ModelHandle, Options, v1};
use djinn_engine::{
    Blueprint, KvMemory, PrefixCacheSettings, RestoreScope, SavedState, SessionId, SizeRange,
    StateFolder,
};
use djinn_model::Model;
use djinn_server::{
    LoadOptions, OpenState, OperationSettings, Preset, Running, ServeError, ServedModel,
    ServerConfig, ServerLimits, default_name, start, start_in_process,
};
use djinn_terminal::Failure;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::{
    loading::{check_and_describe, unused_flags},
    serve::COMMIT,
};
use crate::{
    args::{ModelArgs, ResolvedModel, ServerArgs},
    bundled,
    progress::Loading,
};

/// Lease and deadline of sessions in process: none ends before its command does.
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Computes how large an engine in process may and must be, from its model.
pub type SizeFn = Box<dyn Fn(&Model) -> Result<SizeRange, Failure> + Send + Sync>;

/// Engine of a server in this process.
pub struct LocalEngine {
    /// Size of the engine.
    pub size: SizeFn,
    /// Folder of saved sessions.
    pub state: Option<LocalState>,
    /// Whether the bandwidth of the link is measured before loading.
    pub measure_link: bool,
    /// Whether the model is loaded. A plan loads nothing.
    pub loads: bool,
}

impl LocalEngine {
    /// Engine that loads the model, saves no sessions and does not measure the link.
    pub fn new(size: SizeFn) -> Self {
        LocalEngine {
            size,
            state: None,
            measure_link: false,
            loads: true,
        }
    }
}

/// Folder of saved sessions, and the session to restore from it.
#[derive(Clone, Debug)]
pub struct LocalState {
    /// The folder.
    pub folder: PathBuf,
    /// Session to restore.
    pub session: Option<SessionId>,
}

/// Connection to a model.
pub struct Connection {
    /// Client of the server.
    pub client: Client,
    /// Handle of the model. A server in process has loaded it already.
    pub model: ModelHandle,
    /// Address of the server, unless it is in process.
    pub address: Option<String>,
    in_process: Option<InProcess>,
}

struct InProcess {
    running: Running,
    facts: Arc<ModelFacts>,
    /// Empty folder for pushed models.
    _pushed: TempDir,
}

/// Facts that the layout and the state folder give while the model loads.
#[derive(Default)]
struct ModelFacts {
    /// Name of the model as its folder or shape gives it.
    name: OnceLock<String>,
    /// Whether the model recommends sampling instead of greedy decoding.
    samples: OnceLock<bool>,
    /// Generated tokens of the restored session, if its last turn was interrupted.
    interrupted: OnceLock<u64>,
}

/// Runs `work` with a connection to the model that flags name.
pub fn on_model<T>(
    server: &ServerArgs,
    model: &ModelArgs,
    engine: LocalEngine,
    work: impl AsyncFnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    runtime()?.block_on(async {
        let connection = Connection::open(server, model, engine).await?;
        let done = work(&connection).await;
        connection.close().await;
        done
    })
}

/// Runs blocking `work` with a runtime and a connection to the model that flags name.
pub fn on_model_blocking<T>(
    server: &ServerArgs,
    model: &ModelArgs,
    engine: LocalEngine,
    work: impl FnOnce(&Runtime, &Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = runtime()?;
    let connection = runtime.block_on(Connection::open(server, model, engine))?;
    let done = work(&runtime, &connection);
    runtime.block_on(connection.close());
    done
}

/// Runs `work` with two handles of the model that flags name. A server in this process has the model
/// twice, and loads both as `djinn serve` does.
pub fn on_model_twice<T>(
    args: &ModelArgs,
    layout: LoadOptions,
    work: impl AsyncFnOnce(&[ModelHandle; 2]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let reference = bundled::reference(args.model.as_deref())?;
    let resolved = args.resolve()?;
    let pushed = tempfile::tempdir()?;
    let names = ["first", "second"];
    let models = names.map(|name| ServedModel {
        name: name.to_owned(),
        reference: reference.clone(),
        layout,
    });
    let config = config(&resolved, models.into(), pushed.path().to_owned());
    runtime()?.block_on(async {
        let running = start(config).await?;
        running.load().await?;
        let connector = running.connector();
        let client =
            Client::connect_in_process(move || connector.connect(), Options::default()).await?;
        let done = work(&names.map(|name| client.model(name))).await;
        drop(client);
        running.stop().await;
        done
    })
}

/// Runs `work` with a client of the server that flags or the environment name.
pub fn on_server<T>(
    args: &ServerArgs,
    work: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    runtime()?.block_on(async { work(connect(args).await?).await })
}

/// Runtime of clients and of a server in process.
pub fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("client")
        .enable_all()
        .build()
        .map_err(|error| Failure::Message(format!("cannot start threads of the client: {error}")))
}

async fn connect(args: &ServerArgs) -> Result<Client, Failure> {
    Ok(Client::connect(&address(args), options(args)).await?)
}

/// Options of the connection that flags name.
pub fn options(args: &ServerArgs) -> Options {
    Options {
        key: args.key.clone().filter(|key| !key.is_empty()),
        ca: args.ca.clone(),
        ..Options::default()
    }
}

/// Address of the server that flags or the environment name.
pub fn address(args: &ServerArgs) -> String {
    args.server.clone().unwrap_or_else(Options::address)
}

impl Connection {
    /// Connects to the server that `--server` names, or starts one in process and loads the model.
    pub async fn open(
        server: &ServerArgs,
        model: &ModelArgs,
        engine: LocalEngine,
    ) -> Result<Self, Failure> {
        if server.server.is_none() {
            return Self::in_process(model, engine).await;
        }
        let client = connect(server).await?;
        Ok(Connection {
            model: client.model(model.model.clone().unwrap_or_default()),
            client,
            address: server.server.clone(),
            in_process: None,
        })
    }

    async fn in_process(args: &ModelArgs, engine: LocalEngine) -> Result<Self, Failure> {
        let reference = bundled::reference(args.model.as_deref())?;
        let resolved = Arc::new(args.resolve()?);
        let pushed = tempfile::tempdir()?;
        let name = Some(default_name(&reference)).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| "model".to_owned());
        let models = vec![ServedModel {
            name: name.clone(),
            reference,
            layout: LoadOptions::default(),
        }];
        let config = config(&resolved, models, pushed.path().to_owned());
        let facts = Arc::new(ModelFacts::default());
        let loads = engine.loads;
        let preset = preset(&resolved, engine, &facts);
        let running = start_in_process(config, preset).await?;
        if loads {
            running.load().await?;
        }
        let connector = running.connector();
        let client =
            Client::connect_in_process(move || connector.connect(), Options::default()).await?;
        Ok(Connection {
            model: client.model(name),
            client,
            address: None,
            in_process: Some(InProcess {
                running,
                facts,
                _pushed: pushed,
            }),
        })
    }

    /// Description of the model, under the name that its folder or shape gives.
    pub async fn model_info(&self) -> Result<v1::Model, Failure> {
        let mut info = loaded_info(&self.model).await?;
        let facts = self.in_process.as_ref().map(|local| &local.facts);
        if let Some(name) = facts.and_then(|facts| facts.name.get()) {
            info.name.clone_from(name);
        }
        Ok(info)
    }

    /// Whether the model recommends sampling; not known for a server elsewhere.
    pub fn recommends_sampling(&self) -> Option<bool> {
        let facts = &self.in_process.as_ref()?.facts;
        facts.samples.get().copied()
    }

    /// Generated tokens of the restored session, if its last turn was interrupted.
    pub fn interrupted(&self) -> Option<u64> {
        let facts = &self.in_process.as_ref()?.facts;
        facts.interrupted.get().copied()
    }

    /// Stops a server in process, so that its sessions are saved.
    pub async fn close(self) {
        drop((self.client, self.model));
        if let Some(local) = self.in_process {
            local.running.stop().await;
        }
    }
}

/// Settings of a server in process that loads `models`.
fn config(resolved: &ResolvedModel, models: Vec<ServedModel>, pushed: PathBuf) -> ServerConfig {
    ServerConfig {
        listen: Vec::new(),
        node: "in-process".to_owned(),
        backend: Arc::clone(&resolved.device.backend),
        memory: resolved.memory,
        host_copy: djinn_server::HostCopy::Auto,
        kv: KvMemory::default(),
        // A command is too short to save pages, and --state may be the folder of a server.
        prefix_cache: PrefixCacheSettings {
            saved: Some(0),
            ..PrefixCacheSettings::default()
        },
        models,
        layout: LoadOptions::default(),
        model_dirs: Vec::new(),
        pushed,
        state: None,
        keys: None,
        tls: None,
        limits: ServerLimits {
            message_bytes: usize::MAX,
            capture_bytes: u64::MAX,
            deadline: NO_LIMIT,
            lease: NO_LIMIT,
            longest_lease: NO_LIMIT,
            ..ServerLimits::default()
        },
        drain: Duration::ZERO,
        insecure: false,
        operation: OperationSettings::default(),
        commit: COMMIT.to_owned(),
    }
}

/// Layout, progress and state folder of the model in process.
fn preset(resolved: &Arc<ResolvedModel>, engine: LocalEngine, facts: &Arc<ModelFacts>) -> Preset {
    let LocalEngine {
        size,
        state,
        measure_link,
        loads,
    } = engine;
    // The state folder is opened before weights are loaded, so that a missing session fails at once.
    let opened = Arc::new(Mutex::new(None));
    let bar = Arc::new(Mutex::new(None));
    let has_state = state.is_some();
    let (stash, facts, resolved) = (Arc::clone(&opened), Arc::clone(facts), Arc::clone(resolved));
    let started = Arc::clone(&bar);
    let draw = move |model: &Model| {
        let _ = facts.name.set(model.name.clone());
        let generation = &model.generation;
        let samples = generation.do_sample && generation.temperature > 0.0;
        let _ = facts.samples.set(samples);
        if let Some(state) = &state {
            let restored = open_state(state, &facts)?;
            *stash.lock().unwrap_or_else(PoisonError::into_inner) = Some(restored);
        }
        let range = size(model).map_err(refused)?;
        let (backend, kv) = (resolved.backend(), KvMemory::default());
        let blueprint = Blueprint::sized(model, backend, &range, resolved.memory, &kv)?;
        if !loads {
            resolved.print_device();
            eprint!("{}", unused_flags(&resolved, &blueprint));
            return Ok(blueprint);
        }
        check_and_describe(&resolved, model, &blueprint).map_err(refused)?;
        *started.lock().unwrap_or_else(PoisonError::into_inner) = Some(Loading::new(&model.name));
        Ok(blueprint)
    };
    let take = move || {
        let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || ServeError::Internal("the state folder is not open".to_owned());
        opened.take().ok_or_else(missing)
    };
    let progress = move |progress: djinn_engine::LoadProgress| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loading) = bar.as_ref() {
            loading.update(progress);
        }
        if progress.loaded >= progress.total {
            *bar = None;
        }
    };
    Preset {
        draw: Box::new(draw),
        open_state: has_state.then(|| Box::new(take) as OpenState),
        progress: Box::new(progress),
        measure_link,
    }
}

fn open_state(
    state: &LocalState,
    facts: &ModelFacts,
) -> Result<(StateFolder, RestoreScope), ServeError> {
    let folder = StateFolder::open(&state.folder)?;
    if folder.torn() > 0 {
        let torn = folder.torn();
        eprintln!("note: {torn} bytes that were not yet acknowledged are dropped from the log");
    }
    let Some(id) = state.session else {
        return Ok((folder, RestoreScope::None));
    };
    let session = folder.get(id)?;
    if matches!(session.state, SavedState::Ready) {
        let _ = facts.interrupted.set(session.generated() as u64);
    }
    Ok((folder, RestoreScope::One(id)))
}

fn refused(failure: Failure) -> ServeError {
    match failure {
        Failure::Message(message) => ServeError::Invalid(message),
        other => ServeError::Internal(format!("{other:?}")),
    }
}
