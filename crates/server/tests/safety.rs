//! Tests of hostile and broken clients: requests are rejected, and the server keeps serving.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use common::{Server, config, soon};
use djinn_wire::v1::{
    self, models_client::ModelsClient, sessions_client::SessionsClient,
    white_box_client::WhiteBoxClient,
};
use serde_json::json;
use tonic::{Code, Request, transport::Channel};

const ADA: &str = "ada-0123456789abcdef";
const BERT: &str = "bert-0123456789abcdef";

fn guarded() -> Server {
    Server::with(|config| {
        let path = config.pushed.parent().unwrap().join("keys.toml");
        let text = format!(
            "[[key]]\nowner = 'ada'\nkey = '{ADA}'\nadmin = true\n\n[[key]]\nowner = 'bert'\nkey = '{BERT}'\n\
             sessions = 2\nrequests_per_minute = 600\n"
        );
        std::fs::write(&path, text).unwrap();
        config.keys = Some(path);
    })
}

/// Runs a client's future.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn with_key<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

fn create(keep: bool) -> v1::CreateRequest {
    let what = v1::prompt::What::Text("Once upon a time".to_owned());
    v1::CreateRequest {
        prompt: Some(v1::Prompt { what: Some(what) }),
        max_tokens: Some(4),
        keep,
        ..v1::CreateRequest::default()
    }
}

/// Reads a stream to its end and returns the session's name.
async fn drain(mut events: tonic::Streaming<v1::Event>) -> String {
    let mut name = String::new();
    while let Some(event) = events.message().await.unwrap() {
        if let Some(v1::event::What::Opened(opened)) = event.what {
            name = opened.session;
        }
    }
    name
}

#[test]
fn requests_without_a_valid_key_are_rejected() {
    let server = guarded();
    let ask = json!({ "prompt": "x", "max_tokens": 1 });
    for key in [None, Some(""), Some("x"), Some("ada-0123456789abcdeX")] {
        let (status, reply) = server.post_as("/v1/completions", &ask, key);
        assert_eq!(
            (status, &reply["error"]["type"]),
            (401, &json!("authentication_error")),
            "{key:?}"
        );
    }
    assert_eq!(server.post_as("/v1/completions", &ask, Some(BERT)).0, 200);
    assert_eq!(server.get("/metrics").0, 401);
    assert_eq!(server.get("/v1/models").0, 401);
    assert_eq!(server.get("/healthz").0, 200);
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let rejected = sessions.create(create(false)).await.unwrap_err();
        assert_eq!(rejected.code(), Code::Unauthenticated);
        assert!(sessions.create(with_key(create(false), BERT)).await.is_ok());
        let mut models = ModelsClient::new(channel(server.address).await);
        let load = v1::RegisterRequest {
            reference: "shape:llama-2-7b?layers=1".to_owned(),
            ..v1::RegisterRequest::default()
        };
        let rejected = models.register(with_key(load, BERT)).await.unwrap_err();
        assert_eq!(rejected.code(), Code::PermissionDenied);
    });
}

#[test]
fn sessions_of_another_owner_are_not_found() {
    let server = guarded();
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let mut inside = WhiteBoxClient::new(channel(server.address).await);
        let events = sessions.create(with_key(create(true), ADA)).await.unwrap();
        let session = drain(events.into_inner()).await;
        let name = || v1::SessionRequest {
            session: session.clone(),
        };
        let mut codes = Vec::new();
        codes.push(
            sessions
                .get(with_key(name(), BERT))
                .await
                .unwrap_err()
                .code(),
        );
        codes.push(
            sessions
                .delete(with_key(name(), BERT))
                .await
                .unwrap_err()
                .code(),
        );
        codes.push(
            sessions
                .save(with_key(name(), BERT))
                .await
                .err()
                .unwrap()
                .code(),
        );
        let follow = v1::FollowRequest {
            session: session.clone(),
            from: 0,
        };
        codes.push(
            sessions
                .follow(with_key(follow, BERT))
                .await
                .err()
                .unwrap()
                .code(),
        );
        let more = v1::GenerateRequest {
            session: session.clone(),
            ..Default::default()
        };
        codes.push(
            sessions
                .generate(with_key(more, BERT))
                .await
                .err()
                .unwrap()
                .code(),
        );
        let fork = v1::ForkRequest {
            session: session.clone(),
            sampling: None,
        };
        codes.push(
            sessions
                .fork(with_key(fork, BERT))
                .await
                .unwrap_err()
                .code(),
        );
        let wait = v1::SignalRequest {
            session: session.clone(),
            signal: Some(v1::signal_request::Signal::Waiting(v1::Waiting {
                expected_s: None,
            })),
        };
        codes.push(
            sessions
                .signal(with_key(wait, BERT))
                .await
                .unwrap_err()
                .code(),
        );
        let at = v1::ActivationRequest {
            session: session.clone(),
            ..Default::default()
        };
        codes.push(
            inside
                .activation(with_key(at, BERT))
                .await
                .err()
                .unwrap()
                .code(),
        );
        let branch = v1::BranchRequest {
            session: session.clone(),
            count: 1,
        };
        codes.push(
            inside
                .branch(with_key(branch, BERT))
                .await
                .unwrap_err()
                .code(),
        );
        assert_eq!(codes, vec![Code::NotFound; codes.len()]);
        let theirs = sessions
            .list(with_key(v1::ListSessionsRequest::default(), BERT))
            .await
            .unwrap();
        assert!(theirs.into_inner().sessions.is_empty());
        // The session is unchanged for its owner.
        let found = sessions
            .get(with_key(name(), ADA))
            .await
            .unwrap()
            .into_inner();
        assert_eq!((found.state.as_str(), found.generated), ("waiting", 4));
    });
}

#[test]
fn the_quota_of_an_owner_limits_its_sessions() {
    let server = guarded();
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        for _ in 0..2 {
            drain(
                sessions
                    .create(with_key(create(true), BERT))
                    .await
                    .unwrap()
                    .into_inner(),
            )
            .await;
        }
        let rejected = sessions
            .create(with_key(create(true), BERT))
            .await
            .err()
            .unwrap();
        assert_eq!(rejected.code(), Code::ResourceExhausted);
        assert!(sessions.create(with_key(create(true), ADA)).await.is_ok());
    });
}

#[test]
fn a_public_address_needs_keys_or_insecure() {
    let home = tempfile::tempdir().unwrap();
    let mut open = config(home.path());
    open.listen = vec![SocketAddr::from(([0, 0, 0, 0], 0))];
    let rejected = open.check().unwrap_err();
    assert!(
        matches!(rejected, djinn_server::ServeError::Insecure(_)),
        "{rejected}"
    );
    open.insecure = true;
    assert!(open.check().is_ok());
    open.insecure = false;
    open.keys = Some("keys.toml".into());
    assert!(open.check().is_ok());
}

#[test]
fn oversized_requests_are_rejected() {
    let server = Server::with(|config| {
        config.limits.body_bytes = 10_000;
        config.limits.message_bytes = 20_000;
        config.limits.capture_bytes = 4_000;
    });
    let long = json!({ "prompt": "a ".repeat(20_000), "max_tokens": 1 });
    assert_eq!(server.post("/v1/completions", &long).0, 413);
    let reply = server.raw(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\nconnection: close\r\n\r\nx",
    );
    assert!(reply.starts_with("HTTP/1.1 4"), "{reply}");
    let captures =
        json!({ "prompt": "Once upon", "djinn": { "captures": ["blocks.*.hook_resid_post"] } });
    let (status, reply) = server.post("/v1/completions", &captures);
    assert_eq!(status, 400, "{reply}");
    assert_eq!(reply["error"]["param"], "djinn.captures");
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let what = v1::prompt::What::Text("a ".repeat(20_000));
        let long = v1::CreateRequest {
            prompt: Some(v1::Prompt { what: Some(what) }),
            ..create(false)
        };
        assert!(sessions.create(long).await.is_err());
        let mut inside = WhiteBoxClient::new(channel(server.address).await);
        let many = v1::BranchRequest {
            session: "stories:0".to_owned(),
            count: u32::MAX,
        };
        assert!(inside.branch(many).await.is_err());
    });
    server.check_alive();
}

#[test]
fn silent_and_slow_connections_time_out() {
    let server = Server::with(|config| config.limits.patience = Duration::from_secs(1));
    let mut silent: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    // A header that never ends, and a body that does not arrive.
    let mut head = server.connect();
    head.write_all(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
    )
    .unwrap();
    let mut body = server.connect();
    body.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        .unwrap();
    let drip = {
        let mut head = head.try_clone().unwrap();
        thread::spawn(move || {
            while head.write_all(b"x: y\r\n").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        })
    };
    server.check_alive();
    for stream in &mut silent {
        let mut rest = Vec::new();
        assert!(matches!(stream.read_to_end(&mut rest), Ok(0)), "{rest:?}");
    }
    let mut reply = String::new();
    let _ = body.read_to_string(&mut reply);
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    let _ = head.read_to_string(&mut reply);
    drip.join().unwrap();
    server.check_alive();
}

#[test]
fn connections_above_the_limit_are_closed() {
    let server = Server::with(|config| config.limits.connections = 20);
    let all: Vec<TcpStream> = (0..30).map(|_| server.connect()).collect();
    // The server closes connections above the limit at once.
    let closed = |stream: &TcpStream| {
        let mut byte = [0; 1];
        match (&*stream).read(&mut byte) {
            Ok(0) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            Ok(_) => false,
        }
    };
    assert!(all.iter().rev().take(10).all(closed));
    drop(all);
    soon("requests are answered again", || server.answers());
    server.check_alive();
}

#[test]
fn references_and_names_cannot_escape_their_folders() {
    let server = Server::with(|config| config.model_dirs = vec![common::folder("models")]);
    block_on(async {
        let mut models = ModelsClient::new(channel(server.address).await);
        let mut register = async |reference: &str, name: &str| {
            let request = v1::RegisterRequest {
                reference: reference.to_owned(),
                name: name.to_owned(),
                limits: None,
            };
            let mut events = models.register(request).await?.into_inner();
            while events.message().await?.is_some() {}
            Ok::<_, tonic::Status>(())
        };
        for reference in [
            "/etc",
            "../testdata/golden/llama3",
            "stories-7m/../../testdata/golden/llama3",
            "..",
            ".",
            "",
            "pushed:../../x",
            "pushed:00",
            "crates/server",
            "a/b/c",
            "~/x",
        ] {
            let rejected = register(reference, "evil").await.unwrap_err();
            let wrong = [Code::NotFound, Code::InvalidArgument].contains(&rejected.code());
            assert!(wrong, "{reference}: {rejected}");
        }
        for name in ["../x", "a:b", "a/../b", "x y", "/x"] {
            let rejected = register("shape:llama-2-7b?layers=1", name)
                .await
                .unwrap_err();
            assert_eq!(rejected.code(), Code::InvalidArgument, "{name}");
        }
        register("stories-7m", "again").await.unwrap();
    });
    let (status, _) = server.get("/v1/models/..%2f..%2fetc%2fpasswd");
    assert_eq!(status, 404);
}

#[test]
fn inconsistent_tensors_are_rejected() {
    let server = Server::start();
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let edit = |dtype: i32, shape: &[u64], bytes: usize| v1::Edit {
            hook: "blocks.1.hook_resid_post".to_owned(),
            change: Some(v1::edit::Change::Replace(v1::Tensor {
                dtype,
                shape: shape.to_vec(),
                data: vec![0; bytes].into(),
            })),
            ..v1::Edit::default()
        };
        for edit in [
            edit(1, &[u64::MAX, u64::MAX], 4),
            edit(1, &[1 << 62], 4),
            edit(0, &[4], 16),
            edit(77, &[4], 16),
            edit(1, &[4], 15),
            edit(1, &[], 4),
            edit(2, &[3], 6),
            edit(1, &[0], 0),
        ] {
            let request = v1::CreateRequest {
                edits: vec![edit],
                ..create(false)
            };
            let rejected = sessions.create(request).await.err().unwrap();
            assert_eq!(rejected.code(), Code::InvalidArgument, "{rejected}");
        }
    });
    server.check_alive();
}

/// Saves a session, changes the saved file, and loads it again.
async fn tampered(
    server: &Server,
    change: impl Fn(&mut serde_json::Value),
) -> Result<v1::Session, tonic::Status> {
    let mut sessions = SessionsClient::new(channel(server.address).await);
    let session = drain(sessions.create(create(true)).await?.into_inner()).await;
    let name = v1::SessionRequest { session };
    let mut parts = sessions.save(name.clone()).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(part) = parts.message().await? {
        bytes.extend_from_slice(&part.data);
    }
    sessions.delete(name).await?;
    let mut saved: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    change(&mut saved["session"]);
    let part = v1::SavedPart {
        model: "stories".to_owned(),
        data: saved.to_string().into(),
    };
    Ok(sessions.load(tokio_stream::once(part)).await?.into_inner())
}

#[test]
fn manipulated_session_files_are_rejected() {
    let server = Server::start();
    let rejected = |change: fn(&mut serde_json::Value), why: &str| {
        let loaded = block_on(tampered(&server, change));
        let error = loaded.expect_err(why);
        assert_ne!(error.code(), Code::Internal, "{why}: {error}");
        server.check_alive();
    };
    rejected(
        |s| s["tokens"] = json!(vec![5; 258]),
        "more tokens than the context",
    );
    let long = |s: &mut serde_json::Value| {
        s["tokens"] = json!(vec![5; 257]);
        s["given"] = json!([[0, 1], [1, 257]]);
    };
    rejected(long, "one token more than the context");
    let loose = |s: &mut serde_json::Value| {
        s["keep"] = json!(false);
        s["state"] = json!("ready");
        s["max_tokens"] = json!(1);
        s["tokens"] = json!(vec![5; 300]);
        s["given"] = json!([[0, 1], [1, 300]]);
    };
    rejected(loose, "a session that is not kept, with a second prompt");
    let over = |s: &mut serde_json::Value| {
        s["state"] = json!({ "done": { "finish": "eos", "failure": null } });
    };
    rejected(over, "a session that ended");
    rejected(
        |s| s["sampling"]["logprobs"] = json!(100_000),
        "more log-probabilities than the limit",
    );
    // A session without a lease gets the server's default.
    let loaded = block_on(tampered(&server, |s| s["lease"] = json!(null))).unwrap();
    assert_eq!(loaded.state, "waiting");
}

#[test]
fn too_many_edits_captures_and_stop_strings_are_rejected() {
    let server = Server::start();
    let edits = vec!["*:zero"; 1000];
    let (status, _) = server.post(
        "/v1/completions",
        &json!({ "prompt": "x", "djinn": { "edits": edits } }),
    );
    assert_eq!(status, 400);
    let captures = vec!["logits"; 1000];
    let (status, _) = server.post(
        "/v1/completions",
        &json!({ "prompt": "x", "djinn": { "captures": captures } }),
    );
    assert_eq!(status, 400);
    let long = format!("logits@{}", "9,".repeat(5000) + "9");
    let (status, _) = server.post(
        "/v1/completions",
        &json!({ "prompt": "x", "djinn": { "captures": [long] } }),
    );
    assert_eq!(status, 400);
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let stops = v1::CreateRequest {
            stop: vec!["x".to_owned(); 100],
            ..create(false)
        };
        assert!(sessions.create(stops).await.is_err());
        let sampling = v1::Sampling {
            logprobs: Some(4000),
            ..v1::Sampling::default()
        };
        let many = v1::CreateRequest {
            sampling: Some(sampling),
            ..create(false)
        };
        assert!(sessions.create(many).await.is_err());
        // Invalid durations of a wait signal are rejected.
        let reads = v1::CreateRequest {
            captures: vec!["blocks.*.attn.hook_pattern".to_owned()],
            ..create(true)
        };
        let session = drain(sessions.create(reads).await.unwrap().into_inner()).await;
        for expected_s in [f64::MAX, 9.223372036854775e18, -1.0, f64::NAN] {
            let signal = Some(v1::signal_request::Signal::Waiting(v1::Waiting {
                expected_s: Some(expected_s),
            }));
            let wait = v1::SignalRequest {
                session: session.clone(),
                signal,
            };
            assert_eq!(
                sessions.signal(wait).await.unwrap_err().code(),
                Code::InvalidArgument
            );
        }
    });
    server.check_alive();
}

#[test]
fn an_incomplete_http2_preface_times_out() {
    let server = Server::with(|config| config.limits.patience = Duration::from_secs(1));
    let mut stream = server.connect();
    stream.write_all(b"PRI * HTT").unwrap();
    let mut rest = Vec::new();
    // The server closes the connection: without that, the read would time out with an error.
    assert!(matches!(stream.read_to_end(&mut rest), Ok(0)), "{rest:?}");
    server.check_alive();
}

#[test]
fn a_client_that_disconnects_early_leaves_no_session() {
    let server = Server::start();
    block_on(async {
        for _ in 0..20 {
            let mut sessions = SessionsClient::new(channel(server.address).await);
            let asked = v1::CreateRequest {
                max_tokens: Some(200),
                ignore_eos: true,
                ..create(false)
            };
            let _ = tokio::time::timeout(Duration::from_micros(300), sessions.create(asked)).await;
        }
    });
    soon("no session is left", || server.sessions() == 0.0);
}

#[test]
fn keys_in_plain_text_on_a_public_address_are_noticed() {
    let home = tempfile::tempdir().unwrap();
    let mut config = config(home.path());
    config.keys = Some(home.path().join("keys.toml"));
    assert_eq!(config.plain_text_address(), None, "loopback");
    let public = SocketAddr::from(([0, 0, 0, 0], 5556));
    config.listen.push(public);
    assert_eq!(config.plain_text_address(), Some(public));
    config.tls = Some(djinn_server::TlsFiles {
        certificate: "cert.pem".into(),
        key: "key.pem".into(),
        client_ca: None,
    });
    assert_eq!(config.plain_text_address(), None, "TLS");
}
