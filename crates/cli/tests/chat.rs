//! Conversations and the look at a server, as a user has them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use common::{ok, refused, server::Server, stderr, stdout};
use serde_json::Value;

/// What becomes of lines.
fn lines(args: &[&str], lines: &[&str]) -> Output {
    let nowhere = std::env::temp_dir().join("djinn-tests-have-no-home");
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .env("DJINN_HOME", &nowhere)
        .env("HF_HOME", &nowhere)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines.join("\n").as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn said(args: &[&str], told: &[&str]) -> String {
    let output = lines(args, told);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// The story model with a chat template.
fn with_template(folder: &Path) -> String {
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
fn a_model_without_a_template_goes_on_with_the_text() {
    let args = ["chat", "--max-tokens", "8", "--context", "256"];
    let output = lines(
        &args,
        &["Tom had a red boat.", "/tokens", "One day", "/show"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("has no chat template"));
    // The same text as when it is told in one go.
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
    let told = stdout(&output);
    assert!(told.starts_with(answer), "{told}\nis not after\n{answer}");
    assert!(
        told.contains("tokens of 256") && told.contains("assistant:"),
        "{told}"
    );

    let server = Server::start(&[]);
    let there = ["chat", "--max-tokens", "8", "--server", &server.address];
    let there = said(&there, &["Tom had a red boat.", "One day", "/show"]);
    let here = said(&args, &["Tom had a red boat.", "One day", "/show"]);
    assert_eq!(here, there);
}

#[test]
fn conversations_are_forked_undone_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = (
        folder.path().join("talker"),
        folder.path().join("talk.json"),
    );
    fs::create_dir(&model).unwrap();
    let (model, file) = (with_template(&model), file.to_str().unwrap());
    let save = format!("/save {file}");
    let told = [
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
    let here = ["chat", "--model", &model, "--max-tokens", "6"];
    let one = said(&here, &told);
    assert!(
        !one.contains("never heard") && one.matches("taken back").count() == 2,
        "{one}"
    );
    // The fork answers as what it was forked from.
    let shown: Vec<&str> = one.lines().collect();
    assert!(shown[1].contains("conversation 1 now"), "{one}");
    assert_eq!(shown[2], shown[5], "{one}");
    let saved: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let roles = saved["messages"].as_array().unwrap().iter();
    let roles: Vec<&str> = roles.map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);

    let talker = format!("talker={model}");
    let server = Server::start(&["--model", &talker]);
    let there = ["chat", "--server", &server.address, "--max-tokens", "6"];
    assert_eq!(said(&there, &told), one);
    // Nothing is left behind on the server.
    let left = stdout(&ok(&["sessions", "list", "--server", &server.address]));
    assert_eq!(left, "no sessions\n");

    let on = [&there[..], &["--load", file]].concat();
    let loaded = said(&on, &["And then", "/retry"]);
    assert!(loaded.contains("Hello again"), "{loaded}");
    let wrong = lines(&here, &["/fly"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("/help lists them"));
}

#[test]
fn a_server_is_looked_at() {
    let server = Server::start(&[]);
    let at = ["--server", server.address.as_str(), "--every", "0.2"];
    ok(&[
        "run",
        "--keep",
        "--max-tokens",
        "5",
        "--server",
        &server.address,
    ]);
    let text = stdout(&ok(&[&["top"], &at[..]].concat()));
    for part in [
        "stories-7m",
        "ready",
        "tokens/s",
        "1 waiting",
        "connections",
    ] {
        assert!(text.contains(part), "'{part}' is not in {text}");
    }
    let told = stdout(&ok(&[&["top", "--json"], &at[..]].concat()));
    let told: Value = serde_json::from_str(&told).unwrap();
    let model = &told["models"][0];
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
