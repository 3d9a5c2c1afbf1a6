//! Analyses on a server: patching, steering vectors and plans equal those in process.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use common::{
    PATCH, STEER_MAKE, json_output, ok,
    server::{Server, wait_until},
    stdout,
};
use serde_json::Value;

/// Server whose model is registered but not loaded.
fn unloaded_server() -> Server {
    let server = Server::start(&[]);
    let flags = [
        "models",
        "unload",
        "stories-7m",
        "--server",
        &server.address,
    ];
    ok(&flags);
    server
}

#[test]
fn patching_gives_the_same_effects_on_a_server() {
    let args = [&PATCH[..], &["--json"]].concat();
    let server = unloaded_server();
    let local = json_output(&args);
    let remote = json_output(&[&args[..], &["--server", &server.address]].concat());
    assert_eq!(local["effect"], remote["effect"]);
    assert_eq!(local["clean"], remote["clean"]);
    // The sessions of the experiment are closed.
    let left = stdout(&ok(&["sessions", "list", "--server", &server.address]));
    assert_eq!(left, "no sessions\n");
}

/// Long patching experiment in another process.
fn start_patching(address: &str) -> Child {
    let prompt = |colour: &str| format!("Tom had a {colour} car. ").repeat(12);
    Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["patch", "--compare", "--server", address])
        .args(["--clean", &prompt("red"), "--corrupt", &prompt("blue")])
        .args(["--answer", " red", "--instead", " blue"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_patch_closes_its_sessions() {
    let server = Server::start(&["--threads", "1"]);
    let client = server.client().await;
    let mut patching = start_patching(&server.address);
    wait_until("the experiment has sessions", async || {
        !client.sessions(None).await.unwrap().is_empty()
    })
    .await;
    let id = patching.id().to_string();
    let signalled = Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(signalled.success());
    // Exit status of a command that Ctrl-C ended.
    assert_eq!(patching.wait().unwrap().code(), Some(130));
    // Sessions that are not kept end when the server notices that their client left.
    wait_until("the sessions are closed", async || {
        client.sessions(None).await.unwrap().is_empty()
    })
    .await;
}

#[test]
fn steering_vectors_are_the_same_from_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (local, remote) = (path("local.safetensors"), path("remote.safetensors"));
    // Without --layer, the middle block of the model counts, which an unloaded model does not tell.
    let server = unloaded_server();
    ok(&[&STEER_MAKE[..], &["--out", &local]].concat());
    let on_server = ["--out", &remote, "--server", &server.address];
    ok(&[&STEER_MAKE[..], &on_server].concat());
    assert_eq!(fs::read(&local).unwrap(), fs::read(&remote).unwrap());

    let server = unloaded_server();
    let steer = format!("{local}:2");
    let measure = [
        "steer", "measure", "--tokens", "1,5,7", "--json", "--steer", &steer,
    ];
    let here = json_output(&measure);
    let there = json_output(&[&measure[..], &["--server", &server.address]].concat());
    assert_eq!(here["share_of_logit_norm"], there["share_of_logit_norm"]);
    assert_eq!(here["changed"], there["changed"]);
}

#[test]
fn a_plan_on_a_server_has_the_fields_of_a_local_plan() {
    let server = Server::start(&[]);
    let args = ["plan", "--json", "--link", "1GB", "--compute", "10GB"];
    let local = json_output(&args);
    let remote = json_output(&[&args[..], &["--server", &server.address]].concat());
    let keys = |plan: &Value| -> Vec<String> {
        let keys = plan.as_object().unwrap().keys();
        keys.cloned().collect()
    };
    assert_eq!(keys(&local), keys(&remote));
    assert_eq!(local["weights_bytes"], remote["weights_bytes"]);
    assert_eq!(
        remote["prediction"]["compute_bytes_per_s"].as_f64(),
        Some(1e10)
    );
}
