//! A server in this process, reached without a port.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use djinn_engine::{KvMemory, PrefixCacheSettings};
use djinn_server::{
    InProcessConnector, LoadOptions, OperationSettings, ServedModel, ServerConfig, ServerLimits,
};
use djinn_weights::MemorySettings;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;

use crate::{fixtures, scratch};

/// Time that an unused session stays open.
const LEASE: Duration = Duration::from_millis(50);
/// Time after which a call is given up, which ends streams that have no end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a stream without an end is given up.
const WATCH: Duration = Duration::from_millis(5);
/// Number of requests between two checks.
const CHECK_EVERY: usize = 500;
/// API key of the requests; its owner is no administrator.
const KEY: &str = "0123456789abcdef-fuzz";

/// A server and a runtime for its clients.
pub struct LocalServer {
    connector: InProcessConnector,
    runtime: Runtime,
    requests: AtomicUsize,
}

/// Reply to a gRPC call.
pub struct CallReply {
    /// Status code.
    pub code: i32,
    /// Text of the status.
    pub reason: String,
    /// Frames of the reply.
    pub body: Bytes,
}

/// Returns the server, which starts with the first call.
pub fn get() -> &'static LocalServer {
    static SERVER: OnceLock<LocalServer> = OnceLock::new();
    SERVER.get_or_init(LocalServer::start)
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(threads).enable_all().build();
    runtime.expect("the system can start threads")
}

fn config(home: &std::path::Path) -> ServerConfig {
    let keys = format!("[[key]]\nowner = \"fuzz\"\nkey = \"{KEY}\"\n");
    scratch::write(home, "keys.toml", keys.as_bytes());
    ServerConfig {
        listen: Vec::new(),
        node: "fuzz".to_owned(),
        backend: fixtures::backend(),
        memory: MemorySettings {
            budget: 64 << 20,
            host_budget: 64 << 20,
            kv_dtype: fixtures::KV_DTYPE,
            ..MemorySettings::default()
        },
        host_copy: djinn_server::HostCopy::Auto,
        kv: KvMemory::default(),
        prefix_cache: PrefixCacheSettings::default(),
        models: vec![ServedModel {
            name: "m".to_owned(),
            reference: fixtures::model_folder().to_string_lossy().into_owned(),
            layout: LoadOptions::default(),
        }],
        layout: LoadOptions {
            context: Some(fixtures::CONTEXT),
            batch: Some(4),
            sessions: Some(64),
            rows: Some(fixtures::CONTEXT),
            ..LoadOptions::default()
        },
        model_dirs: Vec::new(),
        pushed: home.join("pushed"),
        state: None,
        keys: Some(home.join("keys.toml")),
        tls: None,
        limits: ServerLimits {
            lease: LEASE,
            longest_lease: LEASE,
            deadline: PATIENCE,
            capture_bytes: 8 << 20,
            ..ServerLimits::default()
        },
        drain: Duration::ZERO,
        insecure: false,
        operation: OperationSettings::default(),
        commit: String::new(),
    }
}

impl LocalServer {
    fn start() -> Self {
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            let home = scratch::folder();
            let config = config(home.path());
            runtime(2).block_on(async {
                let running = djinn_server::start(config).await;
                let running = running.expect("the configuration is valid");
                running.load().await.expect("the model is valid");
                // The receiver waits for the connector.
                let _ = send.send(running.connector());
                std::future::pending::<()>().await;
            });
        });
        LocalServer {
            connector: receive.recv().expect("the server starts"),
            runtime: runtime(1),
            requests: AtomicUsize::new(0),
        }
    }

    /// Posts a body; returns the status, or `None` if the request cannot be sent.
    pub fn post(&self, path: &str, body: &[u8]) -> Option<u16> {
        let request = Request::post(format!("http://fuzz{path}"))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {KEY}"))
            .body(Full::new(Bytes::copy_from_slice(body)))
            .ok()?;
        self.runtime.block_on(async {
            let response = self.send(request).await?;
            let status = response.status().as_u16();
            let body = tokio::time::timeout(PATIENCE, response.into_body().collect());
            body.await.ok()?.ok()?;
            Some(status)
        })
    }

    /// Calls a gRPC method with one message; returns `None` if the call cannot be sent or has no
    /// end.
    pub fn call(&self, method: &str, message: &[u8]) -> Option<CallReply> {
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.len()).ok()?.to_be_bytes());
        frame.extend(message);
        let request = Request::post(format!("http://fuzz/djinn.v1.{method}"))
            .header("content-type", "application/grpc")
            .header("authorization", format!("Bearer {KEY}"))
            .header("te", "trailers")
            .body(Full::new(Bytes::from(frame)))
            .ok()?;
        let patience = match method.ends_with("Watch") {
            true => WATCH,
            false => PATIENCE,
        };
        self.runtime.block_on(async {
            let response = self.send(request).await?;
            if let Some((code, reason)) = status(response.headers()) {
                let body = Bytes::new();
                return Some(CallReply { code, reason, body });
            }
            let body = tokio::time::timeout(patience, response.into_body().collect());
            let body = body.await.ok()?.ok()?;
            let (code, reason) = status(body.trailers()?)?;
            let body = body.to_bytes();
            Some(CallReply { code, reason, body })
        })
    }

    /// Sends a request on a connection of its own.
    async fn send(&self, request: Request<Full<Bytes>>) -> Option<Response<Incoming>> {
        let stream = self.connector.connect().expect("the server runs");
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.expect("the server speaks HTTP/2");
        tokio::spawn(connection);
        tokio::time::timeout(PATIENCE, sender.send_request(request))
            .await
            .expect("the server answers")
            .ok()
    }

    /// Checks now and then that the server still completes a prompt.
    pub fn check_sometimes(&self) {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(CHECK_EVERY) {
            let body = br#"{"model": "m", "prompt": "Hi", "max_tokens": 2, "temperature": 0}"#;
            let status = self.post("/v1/completions", body);
            assert_eq!(status, Some(200), "the server stopped serving");
        }
    }
}

/// Reads the gRPC status from headers or trailers.
fn status(headers: &HeaderMap) -> Option<(i32, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let reason = headers.get("grpc-message");
    let reason = reason.and_then(|reason| reason.to_str().ok());
    Some((code, reason.unwrap_or_default().to_owned()))
}
