//! Tests of several models: loading, turns on the device, and their sessions.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Server, model};
use djinn_server::LoadOptions;
use djinn_wire::v1::{self, models_client::ModelsClient};
use serde_json::{Value, json};
use tonic::{Code, transport::Channel};

/// Server with memory for one of two models.
fn crowded(state: bool) -> Server {
    Server::with(|config| {
        crowd(config);
        config.state = state.then(|| config.pushed.parent().unwrap().join("state"));
    })
}

fn crowd(config: &mut djinn_server::ServerConfig) {
    let layout = LoadOptions {
        memory: Some(65_000_000),
        ..LoadOptions::default()
    };
    config.models = vec![djinn_server::ServedModel {
        layout,
        ..model("a", "models/stories-7m")
    }];
    config.model_dirs = vec![common::folder("models")];
    config.memory.budget = 70_000_000;
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
    let reply: Value = serde_json::from_str(&text).unwrap();
    reply["djinn"]["state"]
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
fn an_idle_model_leaves_the_device_for_another() {
    let server = crowded(false);
    let b = block_on(register(&server, "b", 65_000_000)).unwrap();
    assert_eq!(b.memory.unwrap().streamed_bytes, 0, "{}", b.routing);
    assert_eq!(
        (state_of(&server, "a"), state_of(&server, "b")),
        ("swapped_out".into(), "ready".into())
    );
    // A request for the other model brings it back.
    assert_eq!(
        story(&server, "a", json!({})).1["choices"][0]["text"],
        ", there was a"
    );
    assert_eq!(
        (state_of(&server, "a"), state_of(&server, "b")),
        ("ready".into(), "swapped_out".into())
    );
    let (_, metrics) = server.get("/metrics");
    for line in [
        "djinn_swaps_total{model=\"a\"} 1.0",
        "djinn_on_device{model=\"a\"} 1.0",
        "djinn_on_device{model=\"b\"} 0.0",
    ] {
        assert!(metrics.contains(line), "missing {line} in\n{metrics}");
    }
}

#[test]
fn models_take_turns_under_load() {
    let server = crowded(false);
    block_on(register(&server, "b", 65_000_000)).unwrap();
    let long = |model: &str| {
        let body = json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 200,
            "temperature": 0, "ignore_eos": true });
        let (status, reply) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{reply}");
        reply["choices"][0]["text"].clone()
    };
    let alone = long("a");
    std::thread::scope(|scope| {
        let asked = ["a", "b"].repeat(4);
        let asked = asked
            .into_iter()
            .map(|model| scope.spawn(move || long(model)));
        let asked: Vec<_> = asked.collect();
        for text in asked {
            assert_eq!(text.join().unwrap(), alone);
        }
    });
}

#[test]
fn host_memory_has_room_for_the_weights_of_every_model() {
    const HOST: u64 = 40_000_000;
    let server = Server::with(|config| {
        crowd(config);
        let layout = config.models[0].layout;
        config.models = ["a", "b"]
            .map(|name| djinn_server::ServedModel {
                layout,
                ..model(name, "models/stories-7m")
            })
            .into();
        config.memory.host_budget = HOST;
    });
    let listed = block_on(async {
        let mut models = ModelsClient::new(channel(&server).await);
        models.list(v1::ListModelsRequest::default()).await.unwrap()
    });
    let memory = listed
        .into_inner()
        .models
        .into_iter()
        .map(|m| m.memory.unwrap());
    let memory: Vec<_> = memory.collect();
    let host: Vec<u64> = memory.iter().map(|memory| memory.host_bytes).collect();
    let weights = memory[0].resident_bytes;
    assert!(host.iter().all(|&bytes| bytes >= weights), "{host:?}");
    assert!(host.iter().sum::<u64>() <= HOST, "{host:?}");
}

#[test]
fn models_that_need_little_stay_on_the_device_together() {
    let server = Server::with(|config| {
        config.models = ["a", "b"]
            .map(|name| model(name, "models/stories-7m"))
            .into();
        config.memory.budget = 400_000_000;
    });
    for name in ["a", "b"] {
        assert_eq!(state_of(&server, name), "ready", "{name}");
    }
}

#[test]
fn a_session_survives_while_its_model_is_off_the_device() {
    let server = crowded(false);
    let (status, kept) = story(&server, "a", json!({ "keep": true }));
    assert_eq!(status, 200, "{kept}");
    block_on(register(&server, "b", 65_000_000)).unwrap();
    assert_eq!(state_of(&server, "a"), "swapped_out");
    check_continues(&server, &kept);
}

#[test]
fn unloading_loses_sessions_only_by_force() {
    let server = crowded(false);
    let (status, kept) = story(&server, "a", json!({ "keep": true }));
    assert_eq!(status, 200, "{kept}");
    let unload = v1::UnloadRequest {
        name: "a".to_owned(),
        ..v1::UnloadRequest::default()
    };
    block_on(async {
        let mut models = ModelsClient::new(channel(&server).await);
        let rejected = models.unload(unload.clone()).await.unwrap_err();
        assert_eq!(rejected.code(), Code::FailedPrecondition);
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
fn durable_sessions_return_with_their_model() {
    let server = crowded(true);
    let (_, kept) = story(&server, "a", json!({ "keep": true }));
    let unload = v1::UnloadRequest {
        name: "a".to_owned(),
        ..v1::UnloadRequest::default()
    };
    block_on(async {
        let mut models = ModelsClient::new(channel(&server).await);
        models.unload(unload).await.unwrap();
    });
    assert_eq!(state_of(&server, "a"), "unloaded");
    check_continues(&server, &kept);
}

/// Panics unless a kept session of model `a` continues as one request would.
fn check_continues(server: &Server, kept: &Value) {
    let session = kept["djinn"]["session"].clone();
    let more = json!({ "prompt": "", "max_tokens": 4, "djinn": { "session": session } });
    let (status, reply) = server.post("/v1/completions", &more);
    assert_eq!(status, 200, "{reply}");
    let all =
        json!({ "model": "a", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0 });
    let whole = server.post("/v1/completions", &all).1["choices"][0]["text"].clone();
    let first = kept["choices"][0]["text"].as_str().unwrap();
    let reply = reply["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole, format!("{first}{reply}"));
}

#[test]
fn a_model_that_never_fits_evicts_no_other() {
    let server = crowded(false);
    let rejected = block_on(register(&server, "tiny", 1_000_000)).unwrap_err();
    assert_eq!(rejected.code(), Code::FailedPrecondition, "{rejected}");
    assert_eq!(state_of(&server, "a"), "ready");
}

#[test]
fn reflection_lists_all_services() {
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
        let mut reply = client
            .server_reflection_info(tokio_stream::once(ask))
            .await
            .unwrap()
            .into_inner();
        match reply
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
