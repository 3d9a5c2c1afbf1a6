//! What every request sees: the server as a whole.

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
    config::Config,
    host::{Host, Worker},
    keys::{Keys, Owner, Permit},
    metrics::{Metrics, Reading},
    models::Registry,
};

/// A server.
pub struct App {
    /// As it was settled.
    pub config: Arc<Config>,
    /// Who may come in.
    pub keys: Arc<Keys>,
    /// The models.
    pub models: Arc<Registry>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Since when.
    pub started: Instant,
    ready: AtomicBool,
    draining: AtomicBool,
}

/// Whoever sent a request, for as long as it is under way.
#[derive(Clone)]
pub struct Caller {
    /// Who.
    pub owner: Arc<Owner>,
    /// Counts as under way until the last copy is gone.
    _permit: Arc<Permit>,
}

impl Caller {
    /// Lets a request in.
    pub fn new(owner: Arc<Owner>, permit: Permit) -> Self {
        Caller {
            owner,
            _permit: Arc::new(permit),
        }
    }

    /// An error unless it may load and unload models.
    pub fn check_admin(&self) -> Result<(), ServeError> {
        match self.owner.admin {
            true => Ok(()),
            false => Err(ServeError::Forbidden(format!(
                "{} may not load, push or unload models: its key is no admin's",
                self.owner.name
            ))),
        }
    }
}

impl App {
    /// A server with nothing loaded yet.
    pub fn new(config: Config) -> Result<Arc<Self>, ServeError> {
        let config = Arc::new(config);
        let keys = Keys::open(config.keys.as_deref()).map_err(ServeError::Invalid)?;
        let (keys, metrics) = (Arc::new(keys), Metrics::new());
        Ok(Arc::new(App {
            models: Registry::new(&config, &keys, &metrics)?,
            config,
            keys,
            metrics,
            started: Instant::now(),
            ready: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }))
    }

    /// The models that were asked for at the start are there.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Whether new requests are welcome.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && !self.is_draining()
    }

    /// No new turns from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the server goes down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Refuses to begin anything while the server goes down.
    pub fn check_serving(&self) -> Result<(), ServeError> {
        match self.is_draining() {
            true => Err(ServeError::Unavailable(
                "this server goes down: sessions that are kept can be followed once it is back"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// The model of a session's name, and its number there.
    pub async fn session(&self, name: &str) -> Result<(Arc<Host>, SessionId), ServeError> {
        let missing =
            || ServeError::NotFound(format!("there is no session '{}'", name.escape_debug()));
        let (model, number) = name.rsplit_once(':').ok_or_else(missing)?;
        let number = number.parse().map_err(|_| missing())?;
        match self.models.get(model).await {
            Ok(host) => Ok((host, SessionId(number))),
            Err(ServeError::NotFound(_)) => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// How every loaded model stands. One whose pass takes long is left out of it.
    pub async fn readings(&self) -> Vec<Reading> {
        let mut readings = Vec::new();
        for host in self.models.hosts() {
            let Ok(snapshot) = host.call(Worker::snapshot).await else {
                continue;
            };
            readings.push(Reading {
                model: host.name.clone(),
                snapshot,
                ring_bytes: host.facts.memory.ring_bytes,
                link_ceiling: host.facts.link_ceiling,
                page_bytes: host.facts.page_bytes,
                page_tokens: host.facts.page_tokens,
            });
        }
        readings
    }
}

/// What a session is called outside of its model.
pub fn session_name(host: &Host, id: SessionId) -> String {
    format!("{}:{}", host.name, id.0)
}
