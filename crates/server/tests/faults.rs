//! Tests of faults outside the server's control: a model that cannot be found, a pass that fails,
//! a full disk.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use common::{Server, config, folder, stories};
use djinn_server::{LoadOptions, ServedModel};
use djinn_weights::Keep;
use serde_json::{Value, json};

/// Copies the story model to a folder.
fn copy_stories(to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(folder("models/stories-7m")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn named(name: &str, path: &Path) -> ServedModel {
    ServedModel {
        name: name.to_owned(),
        reference: path.to_string_lossy().into_owned(),
        layout: LoadOptions::default(),
    }
}

fn model_state(server: &Server, name: &str) -> Value {
    let (status, text) = server.get(&format!("/v1/models/{name}"));
    assert_eq!(status, 200, "{text}");
    let model: Value = serde_json::from_str(&text).unwrap();
    model["djinn"]["state"].clone()
}

fn complete(server: &Server, model: &str) -> (u16, Value) {
    let body =
        json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0 });
    server.post("/v1/completions", &body)
}

#[test]
fn a_model_whose_folder_is_missing_fails_and_loads_once_it_is_there() {
    let models = tempfile::tempdir().unwrap();
    let path = models.path().join("late");
    copy_stories(&path);
    let server = Server::with(|config| config.models = vec![stories(), named("late", &path)]);
    unload(&server, "late");
    fs::remove_dir_all(&path).unwrap();
    let (status, reply) = complete(&server, "late");
    assert_eq!(
        (status, &reply["error"]["code"]),
        (404, &json!("not_found")),
        "{reply}"
    );
    assert_eq!(model_state(&server, "late"), "failed");
    copy_stories(&path);
    let (status, reply) = complete(&server, "late");
    assert_eq!(status, 200, "{reply}");
    assert_eq!(model_state(&server, "late"), "ready");
}

fn unload(server: &Server, name: &str) {
    use djinn_wire::v1::{UnloadRequest, models_client::ModelsClient};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Channel::from_shared(server.url("")).unwrap();
        let mut models = ModelsClient::new(endpoint.connect().await.unwrap());
        let request = UnloadRequest {
            name: name.to_owned(),
            ..UnloadRequest::default()
        };
        models.unload(request).await.unwrap();
    });
}

#[test]
fn a_failed_pass_ends_its_request_and_the_model_recovers() {
    let models = tempfile::tempdir().unwrap();
    let path = models.path().join("broken");
    copy_stories(&path);
    let server = Server::with(|config| {
        // All weights stream from their file in every pass.
        config.memory.overrides.keep = Keep::Nothing;
        config.models = vec![stories(), named("broken", &path)];
    });
    assert_eq!(complete(&server, "broken").0, 200);
    let weights = path.join("model.safetensors");
    let content = fs::read(&weights).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
    file.set_len(1000).unwrap();
    let (status, reply) = complete(&server, "broken");
    assert_eq!(
        (status, &reply["error"]["code"]),
        (500, &json!("internal")),
        "{reply}"
    );
    server.check_alive();
    drop(file);
    fs::write(&weights, content).unwrap();
    // An engine that keeps failing is replaced after eight failed passes. Requests fail until then, and
    // while the model loads again.
    let recovered = (0..1000).any(|_| complete(&server, "broken").0 == 200);
    assert!(recovered, "the model serves again");
    server.check_alive();
}

/// Environment variable with the child's folder; without it the child's test does nothing.
const CHILD: &str = "DJINN_SERVER_TEST_FOLDER";

#[test]
fn child_with_a_full_disk() {
    let Some(home) = std::env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let server = Server::with(|config| {
        config.state = Some(home.join("state"));
        config.layout.sessions = Some(256);
        config.layout.context = Some(64);
    });
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 8, "djinn": { "keep": true } });
    let failed = (0..250).find_map(|_| {
        let (status, reply) = server.post("/v1/completions", &body);
        (status != 200).then_some((status, reply["error"]["code"].clone()))
    });
    assert_eq!(failed, Some((500, json!("internal"))));
    // Sessions that are not kept need no disk.
    server.check_alive();
    fs::write(home.join("done"), []).unwrap();
}

#[test]
fn a_full_disk_fails_kept_sessions_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    // A limit on the size of files stands in for a full disk.
    let shell = "trap '' XFSZ; ulimit -f 40; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_with_a_full_disk", "--nocapture"])
        .env(CHILD, home.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(home.path().join("done").exists(), "the child ran");
}

#[test]
fn a_full_job_queue_rejects_requests() {
    // No job may wait: every request that needs the engine is rejected at once.
    let server = Server::with(|config| config.limits.jobs = 0);
    let (status, reply) = complete(&server, "stories");
    assert_eq!(
        (status, &reply["error"]["code"]),
        (429, &json!("limited")),
        "{reply}"
    );
    assert_eq!(server.get("/healthz").0, 200);
}

#[test]
fn a_server_without_ports_answers_in_process() {
    let home = tempfile::tempdir().unwrap();
    let mut config = config(home.path());
    config.listen.clear();
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (running, connector) = server.block_on(async {
        let running = djinn_server::start(config).await.unwrap();
        running.load().await.unwrap();
        let connector = running.connector();
        (running, connector)
    });
    assert!(running.addresses.is_empty());
    // The client runs on a runtime of its own.
    let client = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let text = client.block_on(async {
        let open = connector.clone();
        let options = djinn_client::Options::default();
        let client = djinn_client::Client::connect_in_process(move || open.connect(), options)
            .await
            .unwrap();
        let session = client.model("stories").session().text("Once upon a time");
        let turn = session.max_tokens(4).open().await.unwrap();
        turn.collect().await.unwrap().text
    });
    assert_eq!(text, ", there was a");
    drop(client);
    server.block_on(running.stop());
    assert!(connector.connect().is_err(), "the server stopped");
}
