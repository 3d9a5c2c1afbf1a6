//! Commands with --server: they print the same text as without it.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{STEER_MAKE, json_output, ok, refused, server::Server, stderr, stdout};
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time there was a";

/// JSON of the same command, run locally and on a server.
fn local_and_remote(server: &Server, args: &[&str]) -> [Value; 2] {
    let remote = [args, &["--server", &server.address]].concat();
    [json_output(args), json_output(&remote)]
}

/// Names of the fields of a JSON object.
fn keys(value: &Value) -> Vec<String> {
    let keys = value.as_object().unwrap().keys();
    keys.cloned().collect()
}

#[test]
fn run_prints_the_same_locally_and_remotely() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let vector = folder.path().join("v.safetensors");
    let vector = vector.to_str().unwrap();
    ok(&[&STEER_MAKE[..], &["--layer", "3", "--out", vector]].concat());
    let steer = format!("{vector}:2");
    let add = format!("blocks.2.hook_resid_post:add={vector}*0.5@prompt");
    let edit = "blocks.4.mlp.hook_post[0..8]:scale=0@-1";
    for more in [
        &[][..],
        &["--temperature", "0.8", "--seed", "3", "--logprobs", "2"],
        &["--edit", edit, "--edit", &add, "--steer", &steer],
        &["--stop", "named", "--ignore-eos"],
        &["--tokens", "1,5,7"],
    ] {
        let prompt = ["--prompt", PROMPT];
        let prompt = if more.contains(&"--tokens") {
            &[][..]
        } else {
            &prompt
        };
        let args = ["run", "--json", "--max-tokens", "20"];
        let [local, remote] = local_and_remote(&server, &[&args[..], prompt, more].concat());
        let same = [
            "model",
            "prompt_ids",
            "output_ids",
            "text",
            "finish",
            "logprobs",
            "device",
        ];
        for key in same {
            assert_eq!(local[key], remote[key], "{more:?}: {key}");
        }
        assert_eq!(keys(&local), keys(&remote));
        assert_eq!(keys(&local["memory"]), keys(&remote["memory"]));
    }
    let args = ["run", "--prompt", PROMPT, "--max-tokens", "20"];
    let remote = ok(&[&args[..], &["--server", &server.address]].concat());
    assert_eq!(stdout(&ok(&args)), stdout(&remote));
    assert!(
        stderr(&remote).contains("20 tokens ·"),
        "{}",
        stderr(&remote)
    );
}

#[test]
fn trace_and_lens_print_the_same_locally_and_remotely() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let args = [
        "trace",
        "--prompt",
        PROMPT,
        "--generate",
        "5",
        "--capture",
        "blocks.*.hook_resid_post,blocks.1.attn.hook_pattern,logits@-1",
        "--edit",
        "blocks.3.hook_mlp_out:zero@2..4",
    ];
    let remote_args = [&args[..], &["--server", &server.address]].concat();
    assert_eq!(stdout(&ok(&args)), stdout(&ok(&remote_args)));
    let [local, remote] = local_and_remote(&server, &[&args[..], &["--json"]].concat());
    assert_eq!(local, remote);
    let (one, two) = (path("one.safetensors"), path("two.safetensors"));
    ok(&[&args[..], &["--out", &one]].concat());
    ok(&[&remote_args[..], &["--out", &two]].concat());
    assert!(
        fs::read(one).unwrap() == fs::read(two).unwrap(),
        "the local and remote traces differ"
    );

    let args = ["lens", "--prompt", PROMPT, "--top", "2"];
    let [local, remote] = local_and_remote(&server, &[&args[..], &["--json"]].concat());
    let without_spaces = |value: &Value| {
        let mut value = value.clone();
        // A local and a remote tokenizer may decode a single token with different spaces.
        for cell in value["lens"].as_object_mut().unwrap().values_mut() {
            for top in cell.as_array_mut().unwrap() {
                for entry in top.as_array_mut().unwrap() {
                    let text = entry["text"].as_str().unwrap().trim().to_owned();
                    entry["text"] = json!(text);
                }
            }
        }
        value
    };
    assert_eq!(without_spaces(&local), without_spaces(&remote));
    let remote_args = [&args[..], &["--server", &server.address]].concat();
    assert_eq!(stdout(&ok(&args)), stdout(&ok(&remote_args)));
}

#[test]
fn sessions_of_a_server_are_listed_saved_loaded_continued_and_deleted() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("boat.djinn");
    let file = file.to_str().unwrap();
    let server_flags = ["--server", server.address.as_str()];
    let remote = |args: &[&str]| json_output(&[args, &server_flags, &["--json"]].concat());
    let prompt = [
        "run",
        "--prompt",
        "Tom had a red boat.",
        "--ignore-eos",
        "--max-tokens",
    ];
    let whole = remote(&[&prompt[..], &["20"]].concat());
    let first = remote(&[&prompt[..], &["12", "--keep"]].concat());
    let name = first["session"].as_str().unwrap();
    let listed = remote(&["sessions", "list"]);
    assert_eq!(listed["sessions"][0]["id"], name);
    assert_eq!(listed["sessions"][0]["generated"], 12);
    assert_eq!(
        remote(&["sessions", "save", name, file]),
        json!({ "sessions": [name] })
    );
    refused(
        &[&["sessions", "save", name, file], &server_flags[..]].concat(),
        &["exists"],
    );
    let loaded = remote(&["sessions", "load", file]);
    let loaded = loaded["sessions"][0].as_str().unwrap();
    for name in [name, loaded] {
        let rest = remote(&["run", "--session", name, "--max-tokens", "8"]);
        let ids = |value: &Value| value["output_ids"].as_array().unwrap().clone();
        assert_eq!([ids(&first), ids(&rest)].concat(), ids(&whole));
        assert_eq!(rest["session"], name);
    }
    // A state folder loads a session file that a server wrote.
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    ok(&[
        "run",
        "--state",
        state,
        "--prompt",
        "x",
        "--max-tokens",
        "1",
    ]);
    let in_state = json_output(&["sessions", "load", file, "--state", state, "--json"]);
    let loaded_here = in_state["sessions"][0].as_str().unwrap();
    assert!(loaded_here.len() == 26 && !name.ends_with(loaded_here));
    let shown = stdout(&ok(
        &[&["sessions", "show", name], &server_flags[..]].concat()
    ));
    assert!(
        shown.contains("Tom had a red boat.") && shown.contains("20 of them"),
        "{shown}"
    );
    refused(
        &[
            &["sessions", "delete", name, "stories-7m:77"],
            &server_flags[..],
        ]
        .concat(),
        &["no session 0000000000000000000000002D"],
    );
    remote(&["sessions", "delete", name, loaded]);
    assert_eq!(remote(&["sessions", "list"]), json!({ "sessions": [] }));
    refused(&["sessions", "list"], &["--state", "--server"]);
    refused(&["run", "--session", "0"], &["--session needs --state"]);
    refused(
        &["sessions", "show", "x", "--state", state],
        &["'x' is not the id of a session"],
    );
}

#[test]
fn models_of_a_server_are_pushed_listed_unloaded_and_planned() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--push-dir", folder.path().to_str().unwrap()]);
    let server_flags = ["--server", server.address.as_str()];
    let remote = |args: &[&str]| json_output(&[args, &server_flags, &["--json"]].concat());
    let model = common::root().join("models/stories-7m");
    let model = model.to_str().unwrap();
    let pushed = remote(&[
        "models", "push", model, "--name", "mine", "--memory", "80MB",
    ]);
    assert_eq!(
        (&pushed["name"], &pushed["state"]),
        (&json!("mine"), &json!("ready"))
    );
    assert!(pushed["sent_bytes"].as_u64().unwrap() > 1 << 20);
    let again = remote(&["models", "push", model, "--no-load"]);
    assert_eq!(again["sent_bytes"], 0);
    let reference = again["reference"].as_str().unwrap();
    assert_eq!(pushed["reference"], reference);
    let listed = remote(&["models"]);
    let names = listed["models"].as_array().unwrap().iter();
    assert_eq!(
        names.map(|m| &m["name"]).collect::<Vec<_>>(),
        ["stories-7m", "mine"]
    );
    let story = remote(&[
        "run",
        "--model",
        "mine",
        "--prompt",
        PROMPT,
        "--max-tokens",
        "8",
    ]);
    assert_eq!(story["model"], "mine");
    remote(&["models", "unload", "mine", "--forget"]);
    let text = stdout(&ok(&[&["models"], &server_flags[..]].concat()));
    assert!(
        text.contains("stories-7m") && !text.contains("mine"),
        "{text}"
    );
    refused(
        &[&["models", "register", "/etc"], &server_flags[..]].concat(),
        &["--model-dir"],
    );

    let plan = remote(&["plan", "--model", "shape:gpt2", "--memory", "400MB"]);
    assert!(
        plan["streamed_bytes_per_pass"].as_u64().unwrap() > 0,
        "{plan}"
    );
    let text = stdout(&ok(&[&["plan"], &server_flags[..]].concat()));
    assert!(
        text.contains("stories-7m") && text.contains("over the link   nothing"),
        "{text}"
    );
}

#[test]
fn invalid_remote_commands_are_refused() {
    refused(
        &["run", "--server", "127.0.0.1:1", "--memory", "1GB"],
        &["--server", "cannot be used with", "--memory"],
    );
    refused(&["run", "--server", "127.0.0.1:1"], &["127.0.0.1:1"]);
    refused(&["models", "--server", "a b"], &["'a b'"]);
    refused(&["run", "--keep"], &["--server"]);
    let server = Server::start(&[]);
    let server_flags = ["--server", server.address.as_str()];
    refused(
        &[
            &["trace", "--capture", "blocks.99.hook_resid_post"],
            &server_flags[..],
        ]
        .concat(),
        &["blocks.99.hook_resid_post"],
    );
    refused(
        &[&["run", "--model", "unknown"], &server_flags[..]].concat(),
        &["'unknown'"],
    );
}

#[test]
fn keys_and_addresses_come_from_flags_or_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, key) = (folder.path().join("keys.toml"), "ann-has-a-long-key");
    fs::write(
        &keys,
        format!("[[key]]\nowner = \"ann\"\nkey = \"{key}\"\n"),
    )
    .unwrap();
    let server = Server::start(&["--keys", keys.to_str().unwrap()]);
    let server_flags = ["--server", server.address.as_str()];
    refused(&[&["run"], &server_flags[..]].concat(), &["API key"]);
    let wrong = ["run", "--key", "an-unknown-key"];
    refused(&[&wrong, &server_flags[..]].concat(), &["API key"]);
    ok(&[
        &["run", "--max-tokens", "2", "--key", key],
        &server_flags[..],
    ]
    .concat());
    for variable in ["DJINN_SERVER", "GENIE_SERVER_ADDRESS"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_djinn"))
            .args(["models", "--json"])
            .env_remove("DJINN_SERVER")
            .env(variable, &server.address)
            .env("DJINN_KEY", key)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("stories-7m"));
    }
    // A key without admin rights cannot unload a model.
    let unload = ["models", "unload", "stories-7m", "--key", key];
    refused(
        &[&unload, &server_flags[..]].concat(),
        &["ann", "Admin key"],
    );
}
