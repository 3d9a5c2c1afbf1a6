//! Tests of strangers: web pages, connections without a key, readers of other owners' figures, and names of
//! sessions that no longer exist.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

use common::{
    Server,
    grpc::{ADA, BERT, block_on, channel, create, read_all, with_key, with_two_owners},
};
use djinn_wire::v1::{self, models_client::ModelsClient, sessions_client::SessionsClient};
use serde_json::json;
use tonic::Code;

/// Status of a completion that is sent with these headers.
fn status(server: &Server, headers: &str) -> String {
    let body = json!({ "prompt": "x", "max_tokens": 1 }).to_string();
    let reply = server.raw(
        format!(
            "POST /v1/completions HTTP/1.1\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    reply.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn a_web_page_cannot_use_a_server_without_keys() {
    let server = Server::with(|config| {
        config.operation.cors_origins = vec!["https://good.example".to_owned()];
    });
    let json = "content-type: application/json\r\n";
    assert_eq!(
        status(&server, &format!("host: localhost\r\n{json}")),
        "200"
    );
    assert_eq!(
        status(&server, &format!("host: evil.example\r\n{json}")),
        "403"
    );
    let from = |origin: &str| format!("host: localhost\r\norigin: {origin}\r\n{json}");
    assert_eq!(status(&server, &from("https://evil.example")), "403");
    assert_eq!(status(&server, &from("null")), "403");
    assert_eq!(status(&server, &from("http://localhost:3000")), "200");
    assert_eq!(status(&server, &from("https://good.example")), "200");
    // A form or a script of a page can send these types without asking the server first.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
    ] {
        let headers = format!("host: localhost\r\ncontent-type: {kind}\r\n");
        assert_eq!(status(&server, &headers), "415", "{kind}");
    }
    let grpc = "host: localhost\r\ncontent-type: application/grpc\r\n";
    assert_ne!(status(&server, grpc), "200", "gRPC over HTTP/1.1");
}

#[test]
fn browsers_get_cors_headers_for_allowed_origins_only() {
    let server = Server::with(|config| {
        config.operation.cors_origins = vec!["https://good.example".to_owned()];
    });
    let preflight = |origin: &str| {
        server.raw(
            format!(
                "OPTIONS /v1/completions HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\n\
                 access-control-request-method: POST\r\nconnection: close\r\n\r\n"
            )
            .as_bytes(),
        )
    };
    let allowed = preflight("https://good.example");
    assert!(allowed.starts_with("HTTP/1.1 204"), "{allowed}");
    assert!(
        allowed.contains("access-control-allow-origin: https://good.example"),
        "{allowed}"
    );
    let other = preflight("https://evil.example");
    assert!(!other.contains("access-control-allow-origin"), "{other}");
}

#[test]
fn a_connection_without_a_key_is_closed() {
    let server = with_two_owners(|config| config.limits.patience = Duration::from_millis(500));
    // An HTTP/2 connection that is alive and never sends a request.
    let mut idle = server.connect();
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    idle.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let mut rest = Vec::new();
    // The read returns when the server closes the connection.
    idle.read_to_end(&mut rest).unwrap();
    // A connection with a valid key stays.
    block_on(async {
        let channel = channel(server.address).await;
        let mut sessions = SessionsClient::new(channel);
        sessions
            .list(with_key(v1::ListSessionsRequest::default(), BERT))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let again = with_key(v1::ListSessionsRequest::default(), BERT);
        sessions.list(again).await.unwrap();
    });
}

#[test]
fn health_checks_pass_at_the_limit_of_connections() {
    let server = Server::with(|config| {
        config.limits.connections = 2;
        config.limits.patience = Duration::from_secs(60);
    });
    let _taken = [server.connect(), server.connect()];
    common::soon("the connections are taken", || {
        let reply =
            server.raw(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        reply.starts_with("HTTP/1.1 503")
    });
    assert!(server.answers(), "a slot is reserved for health checks");
}

#[test]
fn metrics_and_paths_are_for_admins() {
    let server = with_two_owners(|config| {
        config.operation.metrics_listen = Some(([127, 0, 0, 1], 0).into());
    });
    assert_eq!(server.get("/metrics").0, 401);
    assert_eq!(server.get_as("/metrics", Some(BERT)).0, 403);
    assert_eq!(server.get_as("/metrics", Some(ADA)).0, 200);
    let open = format!("http://{}/metrics", server.metrics_address.unwrap());
    let text = ureq::get(open)
        .call()
        .unwrap()
        .body_mut()
        .read_to_string()
        .unwrap();
    assert!(text.contains("djinn_requests_total"), "{text}");
    block_on(async {
        let mut models = ModelsClient::new(channel(server.address).await);
        let mut reference = async |key: &str| {
            let listed = models
                .list(with_key(v1::ListModelsRequest::default(), key))
                .await;
            listed.unwrap().into_inner().models[0].reference.clone()
        };
        assert!(!reference(BERT).await.contains('/'));
        assert!(reference(ADA).await.contains('/'));
    });
}

#[test]
fn the_name_of_a_session_never_means_another_session() {
    let server = with_two_owners(|_| {});
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let mut models = ModelsClient::new(channel(server.address).await);
        let mut open = async || {
            let events = sessions.create(with_key(create(1, true), ADA)).await;
            read_all(events.unwrap().into_inner()).await.0
        };
        let before = open().await;
        let unload = v1::UnloadRequest {
            name: "stories".to_owned(),
            force: true,
            ..v1::UnloadRequest::default()
        };
        models.unload(with_key(unload, ADA)).await.unwrap();
        let after = open().await;
        assert_ne!(before, after);
        let stale = v1::SessionRequest { session: before };
        let found = sessions.get(with_key(stale, ADA)).await;
        assert_eq!(found.unwrap_err().code(), Code::NotFound);
    });
}

#[test]
fn files_of_the_server_are_private() {
    let home = tempfile::tempdir().unwrap();
    let (state, audit) = (home.path().join("state"), home.path().join("audit.log"));
    let server = with_two_owners(|config| {
        config.state = Some(state.clone());
        config.operation.audit = Some(audit.clone());
    });
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let events = sessions.create(with_key(create(1, true), ADA)).await;
        read_all(events.unwrap().into_inner()).await;
        let mut models = ModelsClient::new(channel(server.address).await);
        let unload = v1::UnloadRequest {
            name: "stories".to_owned(),
            ..v1::UnloadRequest::default()
        };
        models.unload(with_key(unload, ADA)).await.unwrap();
    });
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&audit), 0o600);
    let text = fs::read_to_string(&audit).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&line["owner"], &line["action"]),
        (&json!("ada"), &json!("unload"))
    );
    let folder = state.join("stories");
    assert_eq!((mode(&state), mode(&folder)), (0o700, 0o700));
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn requests_and_errors_carry_an_id() {
    let server = Server::start();
    let reply = server.raw(
        b"GET /v1/nothing HTTP/1.1\r\nhost: localhost\r\nx-request-id: my-id-1\r\nconnection: close\r\n\r\n",
    );
    assert!(reply.contains("x-request-id: my-id-1"), "{reply}");
    assert!(reply.contains("\"request_id\":\"my-id-1\""), "{reply}");
    let reply =
        server.raw(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(reply.contains("x-request-id: req-"), "{reply}");
}
