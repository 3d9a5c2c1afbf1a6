//! Several models: who is loaded, who gives way, and what becomes of their sessions.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Server, model};
use djinn_server::LoadOptions;
use djinn_wire::v1::{self, models_client::ModelsClient};
use serde_json::{Value, json};
use tonic::{Code, transport::Channel};

/// Two models that do not fit beside each other.
fn crowded(state: bool) -> Server {
    Server::with(|config| {
        let layout = LoadOptions {
            memory: Some(65_000_000),
            ..LoadOptions::default()
        };
        let named = |name: &str| djinn_server::ServedModel {
            layout,
            ..model(name, "models/stories-7m")
        };
        config.models = vec![named("a")];
        config.model_dirs = vec![common::folder("models")];
        config.memory.budget = 70_000_000;
        config.state = state.then(|| config.pushed.parent().unwrap().join("state"));
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn state_of(server: &Server, name: &str) -> String {
    let (_, text) = server.get(&format!("/v1/models/{name}"));
    let told: Value = serde_json::from_str(&text).unwrap();
    told["djinn"]["state"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

async fn channel(server: &Server) -> Channel {
    let endpoint = Channel::from_shared(server.url("")).unwrap();
    endpoint.connect().await.unwrap()
}

async fn register(
    server: &Server,
    name: &str,
    memory_bytes: u64,
) -> Result<v1::Model, tonic::Status> {
    let mut models = ModelsClient::new(channel(server).await);
    let request = v1::RegisterRequest {
        reference: "stories-7m".to_owned(),
        name: name.to_owned(),
        limits: Some(v1::ModelLimits {
            memory_bytes,
            ..v1::ModelLimits::default()
        }),
    };
    let mut events = models.register(request).await?.into_inner();
    let mut ready = None;
    while let Some(event) = events.message().await? {
        if let Some(v1::register_event::What::Ready(model)) = event.what {
            ready = Some(model);
        }
    }
    Ok(ready.unwrap())
}

fn story(server: &Server, model: &str, djinn: Value) -> (u16, Value) {
    let body = json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "djinn": djinn });
    server.post("/v1/completions", &body)
}

#[test]
fn a_model_that_nobody_uses_gives_way() {
    let server = crowded(false);
    let b = block_on(register(&server, "b", 65_000_000)).unwrap();
    assert!(b.routing.contains("stay in memory"), "{}", b.routing);
    assert_eq!(
        (state_of(&server, "a"), state_of(&server, "b")),
        ("unloaded".into(), "ready".into())
    );
    // Asking for the other brings it back.
    assert_eq!(
        story(&server, "a", json!({})).1["choices"][0]["text"],
        ", there was a"
    );
    assert_eq!(
        (state_of(&server, "a"), state_of(&server, "b")),
        ("ready".into(), "unloaded".into())
    );
}

#[test]
fn one_with_sessions_that_would_be_lost_does_not() {
    let server = crowded(false);
    let (status, kept) = story(&server, "a", json!({ "keep": true }));
    assert_eq!(status, 200, "{kept}");
    let refused = block_on(register(&server, "b", 65_000_000)).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("a has"), "{}", refused.message());
    let unload = v1::UnloadRequest {
        name: "a".to_owned(),
        ..v1::UnloadRequest::default()
    };
    block_on(async {
        let mut models = ModelsClient::new(channel(&server).await);
        let refused = models.unload(unload.clone()).await.unwrap_err();
        assert!(
            refused.message().contains("1 open sessions"),
            "{}",
            refused.message()
        );
        models
            .unload(v1::UnloadRequest {
                force: true,
                ..unload
            })
            .await
            .unwrap();
    });
    assert_eq!(state_of(&server, "a"), "unloaded");
}

#[test]
fn sessions_that_are_kept_somewhere_come_back_with_their_model() {
    let server = crowded(true);
    let (_, first) = story(&server, "a", json!({ "keep": true }));
    let session = first["djinn"]["session"].clone();
    block_on(register(&server, "b", 65_000_000)).unwrap();
    assert_eq!(state_of(&server, "a"), "unloaded");
    let more = json!({ "prompt": "", "max_tokens": 4, "djinn": { "session": session } });
    let (status, told) = server.post("/v1/completions", &more);
    assert_eq!(status, 200, "{told}");
    let all =
        json!({ "model": "a", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0 });
    let whole = server.post("/v1/completions", &all).1["choices"][0]["text"].clone();
    let told = told["choices"][0]["text"].as_str().unwrap();
    assert_eq!(
        whole,
        format!("{}{told}", first["choices"][0]["text"].as_str().unwrap())
    );
}

#[test]
fn one_that_would_not_fit_alone_evicts_nobody() {
    let server = crowded(false);
    let refused = block_on(register(&server, "tiny", 1_000_000)).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert_eq!(state_of(&server, "a"), "ready");
}

#[test]
fn what_is_served_can_be_found_by_reflection() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let server = Server::start();
    let names = block_on(async {
        let mut client = ServerReflectionClient::new(channel(&server).await);
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut told = client
            .server_reflection_info(tokio_stream::once(ask))
            .await
            .unwrap()
            .into_inner();
        match told
            .message()
            .await
            .unwrap()
            .unwrap()
            .message_response
            .unwrap()
        {
            MessageResponse::ListServicesResponse(list) => list.service,
            other => panic!("{other:?}"),
        }
    });
    let names: Vec<String> = names.into_iter().map(|service| service.name).collect();
    for name in ["Models", "Sessions", "WhiteBox", "Server"] {
        assert!(names.contains(&format!("djinn.v1.{name}")), "{names:?}");
    }
}
