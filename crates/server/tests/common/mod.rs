//! Helpers of the tests: a server on its own port, plain HTTP clients, and gRPC clients with keys.

#![allow(dead_code, clippy::unwrap_used)]

pub mod grpc;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use djinn_device::cpu::CpuBackend;
use djinn_engine::{KvMemory, PrefixCacheSettings};
use djinn_server::{LoadOptions, OperationSettings, ServedModel, ServerConfig, ServerLimits};
use djinn_weights::MemorySettings;
use serde_json::Value;

/// Path in the source tree.
pub fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Configuration of the story model.
pub fn stories() -> ServedModel {
    model("stories", "models/stories-7m")
}

pub fn model(name: &str, path: &str) -> ServedModel {
    ServedModel {
        name: name.to_owned(),
        reference: folder(path).to_string_lossy().into_owned(),
        layout: LoadOptions::default(),
    }
}

/// Configuration of a small server with the story model.
pub fn config(home: &Path) -> ServerConfig {
    let backend = Arc::new(CpuBackend {
        threads: Some(2),
        isa: None,
    });
    ServerConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        node: "test".to_owned(),
        backend,
        memory: MemorySettings {
            budget: 1 << 30,
            host_budget: 1 << 28,
            ..MemorySettings::default()
        },
        host_copy: djinn_server::HostCopy::Auto,
        kv: KvMemory::default(),
        prefix_cache: PrefixCacheSettings::default(),
        models: vec![stories()],
        layout: LoadOptions {
            context: Some(256),
            batch: Some(8),
            sessions: Some(16),
            rows: Some(128),
            ..LoadOptions::default()
        },
        model_dirs: Vec::new(),
        pushed: home.join("pushed"),
        state: None,
        keys: None,
        tls: None,
        limits: ServerLimits {
            patience: Duration::from_secs(2),
            ..ServerLimits::default()
        },
        drain: Duration::from_secs(5),
        insecure: false,
        operation: OperationSettings::default(),
        commit: String::new(),
    }
}

/// Server that runs until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub metrics_address: Option<SocketAddr>,
    pub home: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut config = config(home.path());
        change(&mut config);
        let (ready, started) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let running = djinn_server::start(config).await.unwrap();
                running.load().await.unwrap();
                let addresses = (running.addresses[0], running.metrics_address);
                ready.send(addresses).unwrap();
                let _ = stopped.await;
                running.stop().await;
            });
        });
        let (address, metrics_address) = started.recv().unwrap();
        Server {
            address,
            metrics_address,
            home,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Posts JSON and returns the status and the reply.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_as(path, body, None)
    }

    pub fn post_as(&self, path: &str, body: &Value, key: Option<&str>) -> (u16, Value) {
        let (status, text) = self.post_bytes(path, body.to_string().as_bytes(), key);
        (
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    pub fn post_bytes(&self, path: &str, body: &[u8], key: Option<&str>) -> (u16, String) {
        let agent = agent();
        let mut request = agent
            .post(self.url(path))
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.send(body).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), text)
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, None)
    }

    pub fn get_as(&self, path: &str, key: Option<&str>) -> (u16, String) {
        let agent = agent();
        let mut request = agent.get(self.url(path));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), text)
    }

    /// Sends raw bytes and returns the reply up to the end of the connection.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    /// Panics unless the server completes a prompt correctly.
    pub fn check_alive(&self) {
        let body =
            serde_json::json!({ "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0 });
        let (status, reply) = self.post("/v1/completions", &body);
        assert_eq!(status, 200, "{reply}");
        assert_eq!(reply["choices"][0]["text"], ", there was a");
    }

    /// Whether the server answers a health check; a server at its limit of connections does not.
    pub fn answers(&self) -> bool {
        let reply =
            self.raw(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        reply.starts_with("HTTP/1.1 200")
    }

    /// Value of a line of `/metrics`.
    pub fn metric(&self, line: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let found = text
            .lines()
            .find_map(|l| l.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("missing {line} in\n{text}"))
    }

    /// Number of open sessions.
    pub fn sessions(&self) -> f64 {
        ["ready", "running", "waiting", "paused", "done"]
            .iter()
            .map(|state| {
                self.metric(&format!(
                    "djinn_sessions{{model=\"stories\",state=\"{state}\"}}"
                ))
            })
            .sum()
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .into()
}

impl Server {
    /// Stops the server and waits until it has ended.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends a completion over a plain connection, which the server closes after its answer.
pub fn send_completion(stream: &mut TcpStream, body: &Value) {
    let body = body.to_string();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
}

/// Waits until a condition holds, at most a minute.
pub fn soon(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1200 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("timed out: {what}");
}
