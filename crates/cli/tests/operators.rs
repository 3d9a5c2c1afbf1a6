//! Interfaces for operators: access log, audit log, metrics, drain.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::Stdio,
    time::Duration,
};

use common::server::Server;
use serde_json::Value;

/// Lines of a JSON log with this message.
fn lines(log: &Path, message: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    let parsed = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter(|line| line["message"] == message).collect()
}

/// Sends a completion and returns the connection.
fn complete(server: &Server, body: &str, id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         x-request-id: {id}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

fn log_to(path: &Path) -> Stdio {
    Stdio::from(File::create(path).unwrap())
}

#[tokio::test]
async fn every_request_has_one_line_in_the_access_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let flags = ["--log-format", "json", "--log-level", "info"];
    let server = Server::start_with_log(&flags, log_to(&log));
    let mut text = String::new();
    let body =
        r#"{"prompt": "Once upon a time", "max_tokens": 5, "stream": true, "ignore_eos": true}"#;
    complete(&server, body, "first-1")
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.contains("[DONE]"), "{text}");
    let bad = r#"{"prompt": "secret words", "max_tokens": -1}"#;
    complete(&server, bad, "second-2")
        .read_to_string(&mut text)
        .unwrap();
    common::server::wait_until("both lines are written", async || {
        lines(&log, "access").len() >= 2
    })
    .await;
    let access = lines(&log, "access");
    let line = |id: &str| access.iter().find(|line| line["id"] == id).unwrap();
    let first = line("first-1");
    assert_eq!(first["outcome"], "ok", "{first}");
    assert_eq!(
        (&first["status"], &first["tokens_out"]),
        (&200.into(), &5.into())
    );
    assert_eq!(
        (&first["owner"], &first["model"]),
        (&"local".into(), &"stories-7m".into())
    );
    assert!(
        first["tokens_in"].as_u64().unwrap() > 0 && first["first_token_ms"].is_f64(),
        "{first}"
    );
    assert!(
        first["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{first}"
    );
    let second = line("second-2");
    assert_eq!(
        (&second["status"], &second["outcome"]),
        (&400.into(), &"invalid".into())
    );
    assert!(!fs::read_to_string(&log).unwrap().contains("secret words"));
}

#[test]
fn a_drain_fails_readiness_first_and_ends_streams_with_an_event() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let metrics = ["--metrics-addr", "127.0.0.1:0"];
    let drain = ["--drain", "1", "--drain-delay", "2"];
    let server = Server::start_with_log(&[&metrics[..], &drain[..]].concat(), log_to(&log));
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 500, "stream": true, "ignore_eos": true,
                   "n": 8}"#;
    let stream = complete(&server, body, "long");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    server.signal("-TERM");
    // During the delay the server still answers, and says that it is not ready.
    let mut page = server.page("/readyz");
    while page.starts_with("HTTP/1.1 200") {
        page = server.page("/readyz");
    }
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    let is_finished = rest.contains("[DONE]");
    assert!(is_finished || rest.contains("shutting down"), "{rest}");
}
