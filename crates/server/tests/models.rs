//! Tests of several models: loading, turns on the device, and their sessions.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    io::Read,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use common::{Server, model, soon};
use djinn_device::testing::{Fault, FaultSwitch, FaultyBackend, LateBackend};
use djinn_server::{HostCopy, LoadOptions, ServerConfig};
use djinn_types::Tier;
use djinn_wire::v1::{self, models_client::ModelsClient, sessions_client::SessionsClient};
use serde_json::{Value, json};
use tonic::{Code, transport::Channel};

/// Server with memory for one of two models.
fn crowded(state: bool) -> Server {
    Server::with(|config| {
        crowd(config);
        config.state = state.then(|| config.pushed.parent().unwrap().join("state"));
    })
}

fn crowd(config: &mut ServerConfig) {
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

/// Adds another model that needs all memory.
fn add_model(config: &mut ServerConfig, name: &str) {
    let layout = config.models[0].layout;
    config.models.push(djinn_server::ServedModel {
        layout,
        ..model(name, "models/stories-7m")
    });
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

/// Memory of two models of 65 MB that take turns, with `host` bytes of host memory.
fn memory_of_two(host: u64, change: impl FnOnce(&mut ServerConfig)) -> Vec<v1::ModelMemory> {
    let server = Server::with(|config| {
        crowd(config);
        add_model(config, "b");
        config.memory.host_budget = host;
        change(config);
    });
    let listed = block_on(async {
        let mut models = ModelsClient::new(channel(&server).await);
        models.list(v1::ListModelsRequest::default()).await.unwrap()
    });
    let models = listed.into_inner().models.into_iter();
    models.map(|model| model.memory.unwrap()).collect()
}

#[test]
fn host_memory_has_room_for_the_weights_of_every_model() {
    let from_host = |config: &mut ServerConfig| {
        config.memory.tier = Some(Tier::Host);
        // Weights pass through little memory on their way to the device.
        (config.memory.chunk, config.memory.workers) = (Some(1 << 16), Some(1));
    };
    let rich = memory_of_two(1 << 28, from_host);
    let (weights, whole) = (rich[0].resident_bytes, rich[0].host_bytes);
    let pages = whole - weights;
    assert!(pages > 0 && pages < weights, "{pages} bytes of pages");
    // Room for two copies, but not for the first model to take more pages than it needs.
    let host = 2 * whole + pages / 2;
    let tight = memory_of_two(host, from_host);
    for memory in &tight {
        assert!(memory.host_bytes >= weights, "{tight:?}");
    }
    // A copy of the second model would leave no room for its pages, so it would never yield.
    let host = 2 * whole - pages / 2;
    let short = memory_of_two(host, from_host);
    assert_eq!(short[0].host_bytes, whole, "{short:?}");
    assert!(
        short[1].host_bytes >= pages && short[1].host_bytes < weights,
        "{short:?}"
    );
}

#[test]
fn models_that_load_from_files_leave_host_memory_to_the_pages() {
    let rich = memory_of_two(1 << 28, |_| {});
    let pages = rich[0].host_bytes;
    assert!(pages > 0 && pages < rich[0].resident_bytes);
    for memory in memory_of_two(2 * pages + pages / 4, |_| {}) {
        assert_eq!(memory.host_bytes, pages);
    }
}

#[test]
fn a_model_without_a_copy_in_host_memory_has_room_for_its_pages_there() {
    for memory in memory_of_two(1 << 28, |config| config.host_copy = HostCopy::Off) {
        assert!(memory.host_bytes > 0);
    }
}

#[test]
fn a_load_at_the_start_waits_as_long_as_it_takes() {
    let server = Server::with(|config| {
        crowd(config);
        add_model(config, "b");
        config.limits.queue_wait = Duration::ZERO;
    });
    assert_eq!(state_of(&server, "b"), "ready");
}

/// Opens a session of a model that pauses in its first pass. Without host memory, the model cannot leave
/// the device until the session ends.
async fn pause_session(server: &Server, model: &str) -> String {
    let mut sessions = SessionsClient::new(channel(server).await);
    let request = v1::CreateRequest {
        model: model.to_owned(),
        breakpoints: vec!["blocks.0.hook_resid_mid".to_owned()],
        ..common::grpc::create(4, true)
    };
    let mut events = sessions.create(request).await.unwrap().into_inner();
    let mut name = String::new();
    loop {
        match events.message().await.unwrap().unwrap().what {
            Some(v1::event::What::Opened(opened)) => name = opened.session,
            Some(v1::event::What::Paused(_)) => return name,
            _ => {}
        }
    }
}

fn unload_by_force(name: &str) -> v1::UnloadRequest {
    v1::UnloadRequest {
        name: name.to_owned(),
        force: true,
        ..v1::UnloadRequest::default()
    }
}

/// Server whose models cannot leave the device while a session is paused.
fn stuck(queue_wait: Duration) -> Server {
    Server::with(|config| {
        crowd(config);
        add_model(config, "b");
        config.memory.host_budget = 0;
        config.limits.queue_wait = queue_wait;
    })
}

#[test]
fn a_request_to_a_model_off_the_device_does_not_wait_for_ever() {
    let server = stuck(Duration::from_secs(3));
    let (status, kept) = story(&server, "a", json!({ "keep": true }));
    assert_eq!(status, 200, "{kept}");
    block_on(pause_session(&server, "b"));
    assert_eq!(state_of(&server, "a"), "swapped_out");
    let session = kept["djinn"]["session"].clone();
    let more =
        json!({ "model": "a", "prompt": "", "max_tokens": 4, "djinn": { "session": session } });
    let another = json!({ "model": "a", "prompt": "Once upon a time", "max_tokens": 4 });
    std::thread::scope(|scope| {
        let asked = [&more, &another].map(|body| {
            let ask = || {
                let mut stream = server.connect();
                common::send_completion(&mut stream, body);
                let mut reply = String::new();
                stream.read_to_string(&mut reply).unwrap();
                reply
            };
            scope.spawn(ask)
        });
        for reply in asked.map(|asked| asked.join().unwrap()) {
            assert!(reply.starts_with("HTTP/1.1 429"), "{reply}");
            assert!(reply.contains("retry-after: "), "{reply}");
            assert!(reply.contains("b holds "), "{reply}");
        }
    });
    soon("the session has ended", || {
        server.metric("djinn_sessions_ended_total{model=\"a\"}") == 1.0
    });
    let refused = server.metric("djinn_swaps_refused_total{model=\"b\"}");
    assert_eq!(refused, 1.0, "one refusal, however long it lasts");
    // The kept session stays, and ran its turn when its model returned.
    block_on(async {
        let mut models = ModelsClient::new(channel(&server).await);
        models.unload(unload_by_force("b")).await.unwrap();
    });
    soon("the turn is over", || {
        server.post("/v1/completions", &more).0 == 200
    });
}

#[test]
fn an_admin_can_unload_the_model_that_a_load_waits_for() {
    let server = stuck(Duration::from_mins(10));
    block_on(async {
        pause_session(&server, "b").await;
        let mut models = ModelsClient::new(channel(&server).await);
        models.unload(unload_by_force("a")).await.unwrap();
        let load = register(&server, "c", 65_000_000);
        let unload = async {
            while state_of(&server, "c") != "loading" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            models.unload(unload_by_force("b")).await.unwrap();
            assert_eq!(state_of(&server, "b"), "unloaded");
        };
        let (loaded, ()) = tokio::join!(load, unload);
        assert_eq!(loaded.unwrap().name, "c");
    });
    assert_eq!(state_of(&server, "c"), "ready");
}

#[test]
fn a_model_is_unloaded_when_its_thread_has_ended() {
    let switch = FaultSwitch::default();
    let server = Server::with(|config| {
        crowd(config);
        let inner = Arc::clone(&config.backend);
        config.backend = Arc::new(FaultyBackend::new(inner, switch.clone()));
    });
    switch.set(Fault::Hang);
    std::thread::scope(|scope| {
        scope.spawn(|| story(&server, "a", json!({})));
        soon("a pass hangs", || {
            server.metric("djinn_engine_busy_seconds{model=\"a\"}") > 1.0
        });
        let unload = || {
            block_on(async {
                let mut models = ModelsClient::new(channel(&server).await);
                models.unload(unload_by_force("a")).await
            })
        };
        let refused = unload().unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert_ne!(state_of(&server, "a"), "unloaded", "its memory is not free");
        switch.clear();
        unload().unwrap();
        assert_eq!(state_of(&server, "a"), "unloaded");
    });
}

#[test]
fn a_model_that_cannot_leave_does_not_keep_another_from_leaving() {
    let server = Server::with(|config| {
        crowd(config);
        add_model(config, "b");
        add_model(config, "c");
        config.memory.budget = 135_000_000;
        config.memory.host_budget = 0;
    });
    // Loading the third model made one of the others leave. Both that are used now stay.
    block_on(pause_session(&server, "a"));
    assert_eq!(story(&server, "b", json!({})).0, 200);
    assert_eq!(state_of(&server, "c"), "swapped_out");
    assert_eq!(story(&server, "c", json!({})).0, 200);
    assert_eq!(
        (state_of(&server, "a"), state_of(&server, "b")),
        ("ready".into(), "swapped_out".into())
    );
}

#[test]
fn a_model_returns_when_another_process_frees_the_device() {
    let backend = LateBackend::new(1, 3);
    let faults = backend.memory_faults();
    let server = Server::with(|config| {
        crowd(config);
        add_model(config, "b");
        config.backend = Arc::new(backend);
    });
    assert_eq!(state_of(&server, "a"), "swapped_out");
    faults.restore.store(u32::MAX, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| story(&server, "a", json!({})));
        soon("the reason is shown", || {
            let (_, text) = server.get("/v1/models/a");
            text.contains("a cannot return to the device")
                && text.contains("a test took the memory")
        });
        faults.restore.store(0, Ordering::SeqCst);
        let (status, reply) = asked.join().unwrap();
        assert_eq!(status, 200, "{reply}");
        assert_eq!(reply["choices"][0]["text"], ", there was a");
    });
}

#[test]
fn memory_that_the_device_did_not_free_goes_to_no_other_model() {
    let backend = LateBackend::new(1, 3);
    let faults = backend.memory_faults();
    faults.release.store(1, Ordering::SeqCst);
    let server = Server::with(|config| {
        crowd(config);
        add_model(config, "b");
        config.backend = Arc::new(backend);
    });
    // The second model loaded only after another attempt to free the memory.
    assert_eq!(faults.release.load(Ordering::SeqCst), 0);
    assert_eq!(server.metric("djinn_swaps_total{model=\"a\"}"), 1.0);
    assert_eq!(
        story(&server, "a", json!({})).1["choices"][0]["text"],
        ", there was a"
    );
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
