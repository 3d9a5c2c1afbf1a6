//! Tests that one owner can neither stall nor starve another: hostile input is refused before the engine
//! sees it, and sessions are shared fairly.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{sync::Arc, thread};

use common::{
    Server,
    grpc::{ADA, BERT, block_on, channel, create, read_all, with_key, with_two_owners},
    send_completion, soon,
};
use djinn_wire::v1::{
    self, models_client::ModelsClient, sessions_client::SessionsClient,
    white_box_client::WhiteBoxClient,
};
use serde_json::{Value, json};
use tonic::Code;

/// Field that the server blames for refusing a completion; empty if it answered.
fn blamed(server: &Server, body: &Value) -> (u16, String) {
    let (status, reply) = server.post("/v1/completions", body);
    let field = reply["error"]["param"].as_str().unwrap_or_default();
    (status, field.to_owned())
}

#[test]
fn edits_and_captures_of_any_size_are_refused_by_their_field() {
    let server = Server::start();
    let ranges: String = (0..200_000).map(|n| format!("{n},")).collect::<String>() + "0";
    let edits = json!({ "prompt": "x", "djinn": { "edits": [format!("*:zero@{ranges}")] } });
    assert_eq!(blamed(&server, &edits), (400, "djinn.edits".to_owned()));
    let hook = "x".repeat(7 << 20);
    let edits = json!({ "prompt": "x", "djinn": { "edits": [format!("{hook}:zero")] } });
    assert_eq!(blamed(&server, &edits), (400, "djinn.edits".to_owned()));
    let captures = json!({ "prompt": "x", "djinn": { "captures": [hook] } });
    assert_eq!(
        blamed(&server, &captures),
        (400, "djinn.captures".to_owned())
    );
    block_on(async {
        let mut inside = WhiteBoxClient::new(channel(server.address).await);
        let hooks = v1::HooksRequest {
            pattern: "*".repeat(8 << 20),
            ..v1::HooksRequest::default()
        };
        let refused = inside.hooks(hooks).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    });
    server.check_alive();
}

#[test]
fn many_captures_of_many_choices_are_bound_once() {
    let server = Server::start();
    let list: String = (0..200).map(|n| format!("{},", 2 * n)).collect::<String>() + "0";
    let captures: Vec<String> = (0..6)
        .map(|block| format!("blocks.{block}.hook_resid_post@{list}"))
        .collect();
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 2, "n": 16,
                       "djinn": { "captures": captures } });
    let (status, reply) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["choices"].as_array().unwrap().len(), 16);
}

#[test]
fn prompts_beyond_the_context_are_refused_before_they_are_tokenized_or_copied() {
    let server = Server::start();
    for prompt in [json!("a ".repeat(3 << 20)), json!(vec![5; 1 << 20])] {
        let body = json!({ "prompt": prompt, "n": 128, "max_tokens": 1 });
        let (status, reply) = server.post("/v1/completions", &body);
        let code = &reply["error"]["code"];
        assert_eq!((status, code), (400, &json!("context_length_exceeded")));
        assert_eq!(reply["error"]["param"], "prompt");
    }
    block_on(async {
        let mut models = ModelsClient::new(channel(server.address).await);
        let tokens = v1::DetokenizeRequest {
            tokens: vec![5; 3 << 20],
            each: true,
            ..v1::DetokenizeRequest::default()
        };
        let refused = models.detokenize(tokens).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    });
}

#[test]
fn captures_of_all_choices_count_together() {
    let server = Server::with(|config| config.limits.capture_bytes = 40_000);
    let ask = |n: usize| {
        let body = json!({ "prompt": "Once upon a time", "max_tokens": 1, "n": n,
                           "djinn": { "captures": ["blocks.0.hook_resid_post"] } });
        blamed(&server, &body)
    };
    assert_eq!(ask(1), (200, String::new()));
    assert_eq!(ask(16), (400, "djinn.captures".to_owned()));
}

#[test]
fn the_largest_number_of_tokens_does_not_disable_a_limit() {
    let server = Server::with(|config| config.limits.capture_bytes = 40_000);
    let captures = json!({ "captures": ["blocks.*.hook_resid_post"], "keep": true });
    let body = json!({ "prompt": "x", "max_tokens": u64::MAX, "djinn": captures });
    assert_eq!(server.post("/v1/completions", &body).0, 400);
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let captured = v1::CreateRequest {
            captures: vec!["blocks.0.hook_resid_post".to_owned()],
            ..create(1, true)
        };
        let events = sessions.create(captured).await.unwrap();
        let (session, _) = read_all(events.into_inner()).await;
        let more = v1::GenerateRequest {
            session,
            max_tokens: Some(u64::MAX),
            ..v1::GenerateRequest::default()
        };
        let refused = sessions.generate(more).await.err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    });
}

#[test]
fn loaded_and_forked_sessions_obey_the_limits_of_new_ones() {
    let server = Server::start();
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let (session, _) =
            read_all(sessions.create(create(2, true)).await.unwrap().into_inner()).await;
        let name = v1::SessionRequest {
            session: session.clone(),
        };
        let mut parts = sessions.save(name).await.unwrap().into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await.unwrap() {
            bytes.extend_from_slice(&part.data);
        }
        let saved: Value = serde_json::from_slice(&bytes).unwrap();
        let load = async |change: &dyn Fn(&mut Value)| {
            let mut file = saved.clone();
            change(&mut file["session"]);
            let part = v1::SavedPart {
                model: "stories".to_owned(),
                data: serde_json::to_vec(&file).unwrap().into(),
            };
            let mut sessions = SessionsClient::new(channel(server.address).await);
            let loaded = sessions.load(tokio_stream::iter([part])).await;
            loaded
                .map(|reply| reply.into_inner().session)
                .map_err(|error| error.code())
        };
        assert!(load(&|_| {}).await.is_ok());
        assert!(
            load(&|s| s["class"] = json!("realtime")).await.is_ok(),
            "as an interactive one"
        );
        type Change<'a> = &'a dyn Fn(&mut Value);
        let changes: [Change<'_>; 4] = [
            &|s| s["stop"] = json!(vec!["x"; 5000]),
            &|s| s["stop"] = json!(["x".repeat(5000)]),
            &|s| s["sampling"]["logprobs"] = json!(4096),
            &|s| s["eos"] = json!(vec![1; 100_000]),
        ];
        for change in changes {
            assert_eq!(load(change).await, Err(Code::InvalidArgument));
        }
        let fork = v1::ForkRequest {
            session,
            sampling: Some(v1::Sampling {
                logprobs: Some(4096),
                ..v1::Sampling::default()
            }),
        };
        let refused = sessions.fork(fork).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    });
}

#[test]
fn requests_beyond_the_sessions_wait_for_their_turn() {
    let server = Arc::new(Server::with(|config| config.layout.sessions = Some(2)));
    let ask = |server: Arc<Server>| {
        thread::spawn(move || {
            let body =
                json!({ "prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": true });
            server.post("/v1/completions", &body).0
        })
    };
    let asked: Vec<_> = (0..8).map(|_| ask(Arc::clone(&server))).collect();
    for one in asked {
        assert_eq!(one.join().unwrap(), 200);
    }
}

#[test]
fn a_full_queue_refuses_and_says_when_to_retry() {
    let server = Server::with(|config| {
        config.layout.sessions = Some(1);
        config.limits.queue = 0;
    });
    let long = json!({ "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": true,
                       "stream": true });
    let mut first = server.connect();
    send_completion(&mut first, &long);
    soon("the first session is open", || server.sessions() == 1.0);
    let mut second = server.connect();
    send_completion(&mut second, &long);
    let mut reply = String::new();
    let _ = std::io::Read::read_to_string(&mut second, &mut reply);
    assert!(reply.starts_with("HTTP/1.1 429"), "{reply}");
    assert!(
        reply.to_ascii_lowercase().contains("\r\nretry-after: "),
        "{reply}"
    );
}

#[test]
fn one_owner_cannot_take_every_session() {
    let server = with_two_owners(|config| config.layout.sessions = Some(8));
    block_on(async {
        let mut sessions = SessionsClient::new(channel(server.address).await);
        let mut kept = Vec::new();
        // Kept sessions never end by themselves, so the server refuses them at some point.
        for _ in 0..8 {
            match sessions.create(with_key(create(1, true), ADA)).await {
                Ok(events) => kept.push(read_all(events.into_inner()).await.0),
                Err(refused) => {
                    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
                    assert!(refused.metadata().contains_key("retry-after"));
                }
            }
        }
        assert!(kept.len() < 8, "one owner has all sessions");
        let events = sessions.create(with_key(create(1, true), BERT)).await;
        let (theirs, _) = read_all(events.unwrap().into_inner()).await;
        // An admin sees and ends everyone's sessions; others do not.
        let all = v1::ListSessionsRequest {
            all_owners: true,
            ..v1::ListSessionsRequest::default()
        };
        let refused = sessions
            .list(with_key(all.clone(), BERT))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let listed = sessions
            .list(with_key(all, ADA))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(listed.sessions.len(), kept.len() + 1);
        let name = |session: &str| v1::SessionRequest {
            session: session.to_owned(),
        };
        let refused = sessions.delete(with_key(name(&kept[0]), BERT)).await;
        assert_eq!(refused.unwrap_err().code(), Code::NotFound);
        sessions.delete(with_key(name(&theirs), ADA)).await.unwrap();
        let gone = sessions.get(with_key(name(&theirs), BERT)).await;
        assert_eq!(gone.unwrap_err().code(), Code::NotFound);
    });
}
