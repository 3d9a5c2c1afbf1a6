//! State that all requests of a server share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use djinn_engine::SessionId;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    ServeError,
    audit::AuditLog,
    auth::{KeyStore, LOCAL_OWNER},
    config::ServerConfig,
    engine_thread::LoadedModel,
    fatal::FatalSignal,
    guard::{LogLimit, OriginRules},
    metrics::{Metrics, ModelReading},
    offload::Offload,
    preset::Preset,
    registry::Registry,
};

/// Shared state of a server.
pub struct App {
    /// Configuration of the server.
    pub config: Arc<ServerConfig>,
    /// API keys and rate limits.
    pub keys: Arc<KeyStore>,
    /// Models of the server.
    pub models: Arc<Registry>,
    /// Metrics of the server.
    pub metrics: Arc<Metrics>,
    /// Record of what admins do.
    pub audit: AuditLog,
    /// Threads for work that grows with a client's input.
    pub offload: Offload,
    /// Rules for the headers that browsers set.
    pub origins: OriginRules,
    /// Limit on log lines about rejected requests.
    pub rejections: LogLimit,
    /// Runtime that runs the handlers of requests.
    pub work: Handle,
    /// Cancelled when the server closes its connections.
    pub closing: CancellationToken,
    /// Raised when the process can serve no more.
    pub fatal: FatalSignal,
    /// Time of the server's start.
    pub started: Instant,
    ready: AtomicBool,
    draining: AtomicBool,
}

impl App {
    /// Creates the state of a server that has no model loaded yet. The current runtime runs its requests.
    pub fn new(config: ServerConfig, preset: Option<Preset>) -> Result<Arc<Self>, ServeError> {
        let config = Arc::new(config);
        // A program that runs a server in its process opens sessions with an empty owner.
        let local = if preset.is_some() { "" } else { LOCAL_OWNER };
        let keys = KeyStore::open(config.keys.as_deref(), local)?;
        let (keys, metrics, fatal) = (Arc::new(keys), Metrics::new(), FatalSignal::new());
        let preset = preset.map(Arc::new);
        let loopback = config
            .listen
            .iter()
            .all(|address| address.ip().is_loopback());
        Ok(Arc::new(App {
            models: Registry::new(&config, &keys, &metrics, &fatal, preset)?,
            audit: AuditLog::open(config.operation.audit.as_deref())?,
            offload: Offload::new(),
            origins: OriginRules {
                loopback_only: config.keys.is_none() && loopback,
                has_keys: config.keys.is_some(),
                allowed: config.operation.cors_origins.clone(),
            },
            rejections: LogLimit::new(),
            work: Handle::current(),
            closing: CancellationToken::new(),
            fatal,
            config,
            keys,
            metrics,
            started: Instant::now(),
            ready: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }))
    }

    /// Marks the server as ready, after the models of the configuration are loaded.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Marks the server as not ready, before it rejects requests.
    pub fn set_unready(&self) {
        self.ready.store(false, Ordering::Release);
    }

    /// Reason why the server is not ready for requests; `None` if it is.
    pub fn not_ready(&self) -> Option<String> {
        if self.is_draining() {
            return Some("the server is shutting down".to_owned());
        }
        if let Some(reason) = self.fatal.reason() {
            return Some(reason);
        }
        if !self.ready.load(Ordering::Acquire) {
            return Some("the server is starting or about to stop".to_owned());
        }
        self.models.not_ready(self.config.limits.stall)
    }

    /// Rejects new turns from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Returns an error while the server is shutting down.
    pub fn check_serving(&self) -> Result<(), ServeError> {
        match self.is_draining() {
            true => Err(ServeError::unavailable(
                "The server is shutting down; kept sessions continue after its restart, so retry then",
            )),
            false => Ok(()),
        }
    }

    /// Resolves a session's name (`MODEL:ID`) to its model and its id on that model.
    pub async fn session(&self, name: &str) -> Result<(Arc<LoadedModel>, SessionId), ServeError> {
        let missing = || {
            ServeError::NotFound(format!(
                "No session '{}' for this API key",
                name.escape_debug()
            ))
        };
        let (model, id) = name.rsplit_once(':').ok_or_else(missing)?;
        let id = id.parse().map_err(|_| missing())?;
        match self.models.get(model).await {
            Ok(found) => Ok((found, id)),
            Err(ServeError::NotFound(_)) => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// State of every loaded model, as its engine thread published it last.
    pub fn readings(&self) -> Vec<ModelReading> {
        let reading = |model: Arc<LoadedModel>| ModelReading {
            model: model.name.clone(),
            snapshot: model.snapshot(),
            queued_jobs: model.queued_jobs() as u64,
            busy_for: model.busy_for(),
            ring_bytes: model.facts.memory.ring_bytes,
            link_ceiling: model.facts.link_ceiling,
            page_bytes: model.facts.page_bytes,
            page_tokens: model.facts.page_tokens,
        };
        self.models.loaded().into_iter().map(reading).collect()
    }
}

/// Name of a session on the server: `MODEL:ID`.
pub fn session_name(model: &LoadedModel, id: SessionId) -> String {
    format!("{}:{}", model.name, id)
}
