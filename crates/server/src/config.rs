//! Configuration of a server, fully resolved: no flags, no files, no environment variables.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use djinn_device::Backend;
use djinn_engine::{KvMemory, PrefixCacheSettings};
use djinn_types::KvDtype;
use djinn_weights::MemorySettings;

use crate::ServeError;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses to listen on. Every address serves HTTP and gRPC. Without addresses, the server
    /// is reachable only inside the process.
    pub listen: Vec<SocketAddr>,
    /// Name of this server in traces and capabilities.
    pub node: String,
    /// Device that models run on.
    pub backend: Arc<dyn Backend>,
    /// Memory that all models share, and how weights reach the device.
    pub memory: MemorySettings,
    /// Whether host memory keeps a copy of all weights, from which models return to the device.
    pub host_copy: HostCopy,
    /// Memory for KV pages by tier.
    pub kv: KvMemory,
    /// Scope and size of the prefix cache: the requests that share KV pages of equal beginnings, and
    /// the memory for pages of ended requests.
    pub prefix_cache: PrefixCacheSettings,
    /// Models to load at the start.
    pub models: Vec<ServedModel>,
    /// Load options of models that do not set their own.
    pub layout: LoadOptions,
    /// Folders from which clients may register models, in addition to hub ids and synthetic
    /// shapes.
    pub model_dirs: Vec<PathBuf>,
    /// Folder that stores pushed models.
    pub pushed: PathBuf,
    /// Folder that stores sessions durably; `None` keeps sessions in memory only.
    pub state: Option<PathBuf>,
    /// File of API keys; `None` accepts every request.
    pub keys: Option<PathBuf>,
    /// TLS files; `None` serves plain text.
    pub tls: Option<TlsFiles>,
    /// Limits on the requests of clients.
    pub limits: ServerLimits,
    /// Time that requests in flight have to finish on shutdown.
    pub drain: Duration,
    /// Whether a server without keys may listen on addresses that other machines can reach.
    pub insecure: bool,
    /// Settings for the operators of the server.
    pub operation: OperationSettings,
    /// Git commit of this build; empty if unknown.
    pub commit: String,
}

/// Whether a model keeps a copy of its weights in host memory, from which it returns to the device.
/// If the server has several models, host memory always has room for KV pages of running sessions, as
/// far as its budget allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostCopy {
    /// If the server has several models, and host memory has room beside the KV pages.
    #[default]
    Auto,
    /// Always. Loading fails if host memory has no room.
    On,
    /// Never. A model that leaves the device returns from its files.
    Off,
}

/// Settings for the operators of a server.
#[derive(Clone, Debug, Default)]
pub struct OperationSettings {
    /// Address that serves metrics and health checks without a key; `None` serves metrics to admins only.
    pub metrics_listen: Option<SocketAddr>,
    /// Origins of web pages that may call the server; `*` allows every origin.
    pub cors_origins: Vec<String>,
    /// Time for which readiness fails before the server stops to accept connections.
    pub drain_delay: Duration,
    /// File that records the actions of admins, one JSON object per line; `None` writes them to the log only.
    pub audit: Option<PathBuf>,
    /// Time after which a pass counts as hung, so that the process ends; `None` waits for ever.
    pub watchdog: Option<Duration>,
}

/// A model that the server offers.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Name of the model on this server.
    pub name: String,
    /// Folder, hub id, `shape:NAME` or `pushed:HASH`.
    pub reference: String,
    /// Load options of this model.
    pub layout: LoadOptions,
}

/// Options for loading a model; `None` takes the server's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Device memory in bytes.
    pub memory: Option<u64>,
    /// Context length: tokens of the longest session.
    pub context: Option<usize>,
    /// Sessions that one pass may combine.
    pub batch: Option<usize>,
    /// Sessions that may be open at once.
    pub sessions: Option<usize>,
    /// Rows of a pass: tokens of all its sessions together.
    pub rows: Option<usize>,
    /// Whether streamed weights are prefetched ahead of their use.
    pub prefetch: Option<bool>,
    /// Limit in bytes on weights that stay resident on the device.
    pub resident: Option<u64>,
    /// Element type of keys and values.
    pub kv_dtype: Option<KvDtype>,
}

impl LoadOptions {
    /// Fills unset options from `defaults`.
    pub fn or(self, defaults: LoadOptions) -> LoadOptions {
        LoadOptions {
            memory: self.memory.or(defaults.memory),
            context: self.context.or(defaults.context),
            batch: self.batch.or(defaults.batch),
            sessions: self.sessions.or(defaults.sessions),
            rows: self.rows.or(defaults.rows),
            prefetch: self.prefetch.or(defaults.prefetch),
            resident: self.resident.or(defaults.resident),
            kv_dtype: self.kv_dtype.or(defaults.kv_dtype),
        }
    }
}

/// PEM files for TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain of the server.
    pub certificate: PathBuf,
    /// Private key of the server.
    pub key: PathBuf,
    /// CA of client certificates. If set, the server rejects clients without a certificate.
    pub client_ca: Option<PathBuf>,
}

/// Limits on the requests of clients.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Open connections.
    pub connections: usize,
    /// Open connections from one address other than loopback.
    pub connections_per_address: usize,
    /// Bytes of an HTTP request body.
    pub body_bytes: usize,
    /// Bytes of a gRPC message.
    pub message_bytes: usize,
    /// Bytes of a pushed model.
    pub upload_bytes: u64,
    /// Bytes that the sessions of one request may capture in one turn.
    pub capture_bytes: u64,
    /// Bytes of host memory that captures and checkpoints of all sessions may take.
    pub probe_bytes: u64,
    /// Sessions that one request may open: prompts times choices, or branches.
    pub batch: usize,
    /// Requests that may wait for one model's engine.
    pub jobs: usize,
    /// Requests that may wait for a free session of one model.
    pub queue: usize,
    /// Longest time that a request waits for a free session.
    pub queue_wait: Duration,
    /// Time after which an engine that does not finish its pass makes the server unready.
    pub stall: Duration,
    /// Time that a client has to send the first bytes of a connection, and a whole request.
    pub patience: Duration,
    /// Longest run time of a request.
    pub deadline: Duration,
    /// Lease of an unused session that requests no other lease.
    pub lease: Duration,
    /// Longest lease that a session may request.
    pub longest_lease: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections: 4096,
            connections_per_address: 1024,
            body_bytes: 8 << 20,
            message_bytes: 64 << 20,
            upload_bytes: 1 << 40,
            capture_bytes: 256 << 20,
            probe_bytes: 4 << 30,
            batch: 128,
            jobs: 16_384,
            queue: 1024,
            queue_wait: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            patience: Duration::from_secs(15),
            deadline: Duration::from_secs(3600),
            lease: Duration::from_secs(900),
            longest_lease: Duration::from_secs(24 * 3600),
        }
    }
}

impl ServerLimits {
    /// Returns an error if the turns of a request would capture more bytes than the limit.
    pub fn check_captured(&self, bytes: u64) -> Result<(), ServeError> {
        let limit = self.capture_bytes;
        match bytes > limit {
            true => Err(ServeError::out_of_range(
                "djinn.captures",
                format!(
                    "Captures of this request take up to {bytes} bytes, but the limit is {limit}: capture \
                     fewer positions, a part of the width, or a reduction"
                ),
            )),
            false => Ok(()),
        }
    }
}

impl ServerConfig {
    /// Returns an error if other machines can reach a server that has neither keys nor client certificates.
    pub fn check(&self) -> Result<(), ServeError> {
        let public = self
            .listen
            .iter()
            .find(|address| !address.ip().is_loopback());
        let certified = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        match public {
            Some(address) if self.keys.is_none() && !certified && !self.insecure => {
                Err(ServeError::Insecure(*address))
            }
            _ => Ok(()),
        }
    }

    /// Address that sends API keys in plain text over a network, if any.
    pub fn plain_text_address(&self) -> Option<SocketAddr> {
        let mut listen = self.listen.iter().copied();
        match self.tls.is_none() && self.keys.is_some() {
            true => listen.find(|address| !address.ip().is_loopback()),
            false => None,
        }
    }
}
