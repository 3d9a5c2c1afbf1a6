//! State that all requests of a server share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use djinn_engine::SessionId;

use crate::{
    ServeError,
    auth::{KeyStore, LOCAL_OWNER},
    config::ServerConfig,
    engine_thread::{LoadedModel, Worker},
    metrics::{Metrics, ModelReading},
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
    /// Time of the server's start.
    pub started: Instant,
    ready: AtomicBool,
    draining: AtomicBool,
}

impl App {
    /// Creates the state of a server that has no model loaded yet.
    pub fn new(config: ServerConfig, preset: Option<Preset>) -> Result<Arc<Self>, ServeError> {
        let config = Arc::new(config);
        // A program that runs a server in its process opens sessions with an empty owner.
        let local = if preset.is_some() { "" } else { LOCAL_OWNER };
        let keys = KeyStore::open(config.keys.as_deref(), local)?;
        let (keys, metrics) = (Arc::new(keys), Metrics::new());
        Ok(Arc::new(App {
            models: Registry::new(&config, &keys, &metrics, preset.map(Arc::new))?,
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

    /// Whether the server is ready and not shutting down.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && !self.is_draining()
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
            true => Err(ServeError::Unavailable(
                "The server is shutting down; kept sessions continue after its restart, so retry then".to_owned(),
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

    /// State of every loaded model, except models that are being unloaded.
    pub async fn readings(&self) -> Vec<ModelReading> {
        let mut readings = Vec::new();
        for model in self.models.loaded() {
            let Ok(snapshot) = model.call(Worker::snapshot).await else {
                continue;
            };
            readings.push(ModelReading {
                model: model.name.clone(),
                snapshot,
                ring_bytes: model.facts.memory.ring_bytes,
                link_ceiling: model.facts.link_ceiling,
                page_bytes: model.facts.page_bytes,
                page_tokens: model.facts.page_tokens,
            });
        }
        readings
    }
}

/// Name of a session on the server: `MODEL:ID`.
pub fn session_name(model: &LoadedModel, id: SessionId) -> String {
    format!("{}:{}", model.name, id)
}
