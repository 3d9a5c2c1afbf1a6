//! Tests with random request bodies and messages: the server rejects them and keeps serving.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{net::SocketAddr, time::Duration};

use common::{Server, soon};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::json;

/// Runs a client's future.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Random bodies: some almost valid, some arbitrary.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|x| json!(x)),
        ".{0,12}".prop_map(|text| json!(text)),
        prop::collection::vec(any::<u32>(), 0..4).prop_map(|ids| json!(ids)),
        Just(json!([[[[]]]])),
        Just(
            json!({ "session": "stories:1", "captures": ["logits|top9999"], "edits": ["x:y=z@q"] })
        ),
    ];
    let key = prop_oneof![
        Just("prompt"),
        Just("messages"),
        Just("n"),
        Just("stop"),
        Just("logprobs"),
        Just("max_tokens"),
        Just("djinn"),
        Just("stream"),
        Just("temperature"),
        Just("logit_bias"),
        Just("seed"),
        Just("echo"),
        Just("top_p"),
        Just("stream_options"),
        Just("model"),
    ];
    let object = prop::collection::vec((key, value), 0..6).prop_map(|pairs| {
        let mut body = json!({ "max_tokens": 1 });
        for (key, value) in pairs {
            body[key] = value;
        }
        if body["max_tokens"].as_u64().is_some_and(|n| n > 8) {
            body["max_tokens"] = json!(2);
        }
        body.to_string().into_bytes()
    });
    let mutated = (object.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(
        |(mut body, at, byte)| {
            let at = at.index(body.len());
            body[at] = byte;
            body
        },
    );
    prop_oneof![object, mutated, prop::collection::vec(any::<u8>(), 0..200)]
}

#[test]
fn random_bodies_are_rejected() {
    let server = Server::start();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    });
    runner
        .run(&(bodies(), any::<bool>()), |(body, chat)| {
            let path = if chat {
                "/v1/chat/completions"
            } else {
                "/v1/completions"
            };
            let (status, text) = server.post_bytes(path, &body, None);
            prop_assert!(
                status == 200 || (400..500).contains(&status),
                "{status} {text}"
            );
            Ok(())
        })
        .unwrap();
    soon("no session is left", || server.sessions() == 0.0);
    server.check_alive();
}

#[test]
fn random_messages_are_rejected() {
    let server = Server::start();
    let methods = [
        "Sessions/Create",
        "Sessions/Generate",
        "Sessions/Follow",
        "Sessions/Signal",
        "Sessions/Fork",
        "Sessions/Get",
        "Sessions/List",
        "Sessions/Save",
        "Sessions/Load",
        "Sessions/Delete",
        "WhiteBox/Hooks",
        "WhiteBox/Activation",
        "WhiteBox/Resume",
        "WhiteBox/SetBreakpoints",
        "WhiteBox/Branch",
        "WhiteBox/BranchBack",
        "WhiteBox/Recall",
        "Models/Plan",
        "Models/Offer",
        "Models/Push",
        "Models/Tokenize",
        "Models/Detokenize",
        "Models/List",
        "Server/Capabilities",
    ];
    let frames = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        // A frame with a wrong length.
        (any::<u32>(), prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(length, rest)| {
            let mut frame = vec![0];
            frame.extend(length.to_be_bytes());
            frame.extend(rest);
            frame
        }),
        // A valid frame around an arbitrary message.
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|message| {
            let mut frame = vec![0];
            frame.extend((message.len() as u32).to_be_bytes());
            frame.extend(message);
            frame
        }),
    ];
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    });
    runner
        .run(
            &(prop::sample::select(methods.to_vec()), frames),
            |(method, frame)| {
                // Any status is fine; the server must stay alive.
                block_on(post_frame(server.address, method, frame));
                Ok(())
            },
        )
        .unwrap();
    server.check_alive();
}

/// Sends bytes as a gRPC request and returns the status code of the reply.
async fn post_frame(address: SocketAddr, method: &str, frame: Vec<u8>) -> Option<i32> {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut to, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post(format!("http://{address}/djinn.v1.{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(bytes::Bytes::from(frame)))
        .unwrap();
    let response = to.send_request(request).await.ok()?;
    let code = |headers: &hyper::HeaderMap| headers.get("grpc-status")?.to_str().ok()?.parse().ok();
    if let Some(code) = code(response.headers()) {
        return Some(code);
    }
    let body = response.into_body().collect();
    let body = tokio::time::timeout(Duration::from_secs(120), body)
        .await
        .ok()?
        .ok()?;
    body.trailers().and_then(code)
}
