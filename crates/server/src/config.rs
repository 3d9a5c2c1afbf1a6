//! Everything a server is told before it starts, settled: no flags, no files, no environment.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use djinn_device::Backend;
use djinn_engine::KvMemory;
use djinn_weights::MemorySettings;

/// How a server runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens; all of them speak the same.
    pub listen: Vec<SocketAddr>,
    /// What this server is called among others.
    pub node: String,
    /// Where models run.
    pub backend: Arc<dyn Backend>,
    /// What all models may take together, and how weights come in.
    pub memory: MemorySettings,
    /// Where pages of KV may be.
    pub kv: KvMemory,
    /// Models that are loaded at the start.
    pub models: Vec<ModelConfig>,
    /// What a model is laid out for that does not say.
    pub layout: Layout,
    /// Folders that clients may name models in; beside those, hub ids and shapes.
    pub model_dirs: Vec<PathBuf>,
    /// Where pushed models are kept.
    pub pushed: PathBuf,
    /// Where sessions are kept, if they are.
    pub state: Option<PathBuf>,
    /// The file of keys, if there is one.
    pub keys: Option<PathBuf>,
    /// TLS, if it is spoken.
    pub tls: Option<Tls>,
    /// What is taken from whom.
    pub limits: Limits,
    /// How long turns may go on once the server is told to stop.
    pub drain: Duration,
    /// Whether strangers may come in from everywhere.
    pub insecure: bool,
    /// The commit this was built from, where that is known.
    pub commit: String,
}

/// A model to serve.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// What it is called.
    pub name: String,
    /// A folder, a hub id, a shape, or one that was pushed.
    pub reference: String,
    /// What it is laid out for.
    pub layout: Layout,
}

/// What a model is laid out for; nothing where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the device.
    pub memory: Option<u64>,
    /// Positions of its longest session.
    pub context: Option<usize>,
    /// Sessions in one pass.
    pub batch: Option<usize>,
    /// Sessions open at once.
    pub sessions: Option<usize>,
    /// Tokens that go through together while a prompt runs.
    pub rows: Option<usize>,
    /// Whether weights that stream are brought ahead of their use.
    pub prefetch: Option<bool>,
    /// Bytes of weights that stay on the device at most.
    pub resident: Option<u64>,
}

impl Layout {
    /// The same with what it does not say from another.
    pub fn or(self, other: Layout) -> Layout {
        Layout {
            memory: self.memory.or(other.memory),
            context: self.context.or(other.context),
            batch: self.batch.or(other.batch),
            sessions: self.sessions.or(other.sessions),
            rows: self.rows.or(other.rows),
            prefetch: self.prefetch.or(other.prefetch),
            resident: self.resident.or(other.resident),
        }
    }
}

/// Files of TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The server's certificate and those it stands on.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs for clients: those without a certificate of theirs are not let in.
    pub client_ca: Option<PathBuf>,
}

/// What is taken from clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Bytes of a request over HTTP, and of a message over gRPC.
    pub body_bytes: usize,
    /// Those.
    pub message_bytes: usize,
    /// Bytes of a pushed model.
    pub upload_bytes: u64,
    /// Bytes that a session may read at hooks.
    pub capture_bytes: u64,
    /// Sessions that a request may begin: prompts times choices, or branches.
    pub batch: usize,
    /// Until a connection has said something, and until a request has come whole.
    pub patience: Duration,
    /// How long a request may take.
    pub deadline: Duration,
    /// How long a session stays unused unless it says, and at most.
    pub lease: Duration,
    /// That.
    pub longest_lease: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 4096,
            body_bytes: 8 << 20,
            message_bytes: 64 << 20,
            upload_bytes: 1 << 40,
            capture_bytes: 1 << 30,
            batch: 128,
            patience: Duration::from_secs(15),
            deadline: Duration::from_secs(3600),
            lease: Duration::from_secs(900),
            longest_lease: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl Config {
    /// Refuses to let strangers in from everywhere, unless that was said.
    pub fn check(&self) -> Result<(), String> {
        let world = self
            .listen
            .iter()
            .find(|address| !address.ip().is_loopback());
        let certified = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        match world {
            Some(address) if self.keys.is_none() && !certified && !self.insecure => Err(format!(
                "{address} can be reached from other machines, and there are no keys: give --keys FILE \
                 (see docs/serving.md), listen on 127.0.0.1, or say --insecure if everybody may come in"
            )),
            _ => Ok(()),
        }
    }
}
