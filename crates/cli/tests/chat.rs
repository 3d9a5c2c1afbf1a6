//! `djinn chat` and `djinn top` run as users run them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::{ok, output_of, refused, server::Server, stderr, stdout, with_input};
use serde_json::Value;

/// Copies the bundled model to a folder, adds a chat template, and returns the path.
fn model_with_template(folder: &Path) -> String {
    let from = common::root().join("models/stories-7m");
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ] {
        fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let config = fs::read_to_string(from.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["chat_template"] =
        Value::from("{% for m in messages %}{{ m.role }} said {{ m.content }}. {% endfor %}Then");
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn chat_without_a_template_continues_the_text() {
    let args = ["chat", "--max-tokens", "8", "--context", "256"];
    let output = with_input(
        &args,
        &["Tom had a red boat.", "/tokens", "One day", "/show"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("has no chat template"));
    // The first answer equals that of `djinn run`.
    let first = [
        "run",
        "--prompt",
        "Tom had a red boat.",
        "--max-tokens",
        "8",
    ];
    let first = stdout(&ok(&first));
    let answer = first
        .trim_end()
        .strip_prefix("Tom had a red boat.")
        .unwrap();
    let text = stdout(&output);
    assert!(
        text.starts_with(answer),
        "'{answer}' does not begin: {text}"
    );
    assert!(
        text.contains("tokens of 256") && text.contains("assistant:"),
        "{text}"
    );

    let server = Server::start(&[]);
    let remote = ["chat", "--max-tokens", "8", "--server", &server.address];
    let remote = output_of(&remote, &["Tom had a red boat.", "One day", "/show"]);
    let local = output_of(&args, &["Tom had a red boat.", "One day", "/show"]);
    assert_eq!(local, remote);
}

#[test]
fn conversations_are_forked_undone_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = (
        folder.path().join("talker"),
        folder.path().join("talk.json"),
    );
    fs::create_dir(&model).unwrap();
    let (model, file) = (model_with_template(&model), file.to_str().unwrap());
    let save = format!("/save {file}");
    let lines = [
        "Hello",
        "/fork",
        "Goodbye",
        "/switch 0",
        "Goodbye",
        "/undo",
        "/undo",
        "/system Be kind",
        "Hello again",
        &save,
        "/temperature 0.7",
        "/seed 3",
        "Once more",
        "/quit",
        "never heard",
    ];
    let local_args = ["chat", "--model", &model, "--max-tokens", "6"];
    let local = output_of(&local_args, &lines);
    assert!(
        !local.contains("never heard")
            && local.matches("the last question is removed").count() == 2,
        "{local}"
    );
    // The fork and its origin answer the same question alike.
    let shown: Vec<&str> = local.lines().collect();
    assert!(shown[1].contains("now in conversation 1"), "{local}");
    assert_eq!(shown[2], shown[5], "{local}");
    let saved: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let roles = saved["messages"].as_array().unwrap().iter();
    let roles: Vec<&str> = roles.map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);

    let talker = format!("talker={model}");
    let server = Server::start(&["--model", &talker]);
    let remote_args = ["chat", "--server", &server.address, "--max-tokens", "6"];
    assert_eq!(output_of(&remote_args, &lines), local);
    // The command closes its sessions on the server.
    let sessions = stdout(&ok(&["sessions", "list", "--server", &server.address]));
    assert_eq!(sessions, "no sessions\n");

    let load_args = [&remote_args[..], &["--load", file]].concat();
    let loaded = output_of(&load_args, &["And then", "/retry"]);
    assert!(loaded.contains("Hello again"), "{loaded}");
    let unknown = with_input(&local_args, &["/fly"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("/help lists them"));
}

#[test]
fn top_reports_models_sessions_and_kv_pages() {
    let server = Server::start(&[]);
    let flags = ["--server", server.address.as_str(), "--every", "0.2"];
    ok(&[
        "run",
        "--keep",
        "--max-tokens",
        "5",
        "--server",
        &server.address,
    ]);
    let text = stdout(&ok(&[&["top"], &flags[..]].concat()));
    for part in [
        "stories-7m",
        "ready",
        "tokens/s",
        "1 waiting",
        "connections",
    ] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    let report = stdout(&ok(&[&["top", "--json"], &flags[..]].concat()));
    let report: Value = serde_json::from_str(&report).unwrap();
    let model = &report["models"][0];
    assert_eq!(
        (&model["name"], &model["sessions"]["waiting"]),
        (&"stories-7m".into(), &1.into())
    );
    let pages = ["device", "host", "disk"].map(|tier| model["kv"][tier]["pages"].as_u64());
    assert!(pages.into_iter().flatten().sum::<u64>() > 0, "{model}");
    refused(
        &["top", "--once", "--server", "127.0.0.1:1"],
        &["127.0.0.1:1"],
    );
}
