//! Commands whose work a server does: they say what they would say here.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{ok, refused, server::Server, stderr, stdout};
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time there was a";

fn answer(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}

/// The same command here and there.
fn both(server: &Server, args: &[&str]) -> [Value; 2] {
    let there = [args, &["--server", &server.address]].concat();
    [answer(args), answer(&there)]
}

fn keys(value: &Value) -> Vec<String> {
    let keys = value.as_object().unwrap().keys();
    keys.cloned().collect()
}

#[test]
fn run_says_the_same() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let vector = folder.path().join("v.safetensors");
    let vector = vector.to_str().unwrap();
    ok(&[
        "steer",
        "make",
        "--positive",
        "She was happy",
        "--negative",
        "She was sad",
        "--layer",
        "3",
        "--out",
        vector,
    ]);
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
        let [here, there] = both(&server, &[&args[..], prompt, more].concat());
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
            assert_eq!(here[key], there[key], "{more:?}: {key}");
        }
        assert_eq!(keys(&here), keys(&there));
        assert_eq!(keys(&here["memory"]), keys(&there["memory"]));
    }
    let told = ["run", "--prompt", PROMPT, "--max-tokens", "20"];
    let there = ok(&[&told[..], &["--server", &server.address]].concat());
    assert_eq!(stdout(&ok(&told)), stdout(&there));
    assert!(stderr(&there).contains("20 tokens ·"), "{}", stderr(&there));
}

#[test]
fn trace_and_lens_say_the_same() {
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
    let there = [&args[..], &["--server", &server.address]].concat();
    assert_eq!(stdout(&ok(&args)), stdout(&ok(&there)));
    let [here, other] = both(&server, &[&args[..], &["--json"]].concat());
    assert_eq!(here, other);
    let (one, two) = (path("one.safetensors"), path("two.safetensors"));
    ok(&[&args[..], &["--out", &one]].concat());
    ok(&[&there[..], &["--out", &two]].concat());
    assert!(
        fs::read(one).unwrap() == fs::read(two).unwrap(),
        "not the same file"
    );

    let args = ["lens", "--prompt", PROMPT, "--top", "2"];
    let [here, there] = both(&server, &[&args[..], &["--json"]].concat());
    let bare = |value: &Value| {
        let mut value = value.clone();
        // Words are written as each tokenizer decodes them alone.
        for cell in value["lens"].as_object_mut().unwrap().values_mut() {
            for top in cell.as_array_mut().unwrap() {
                for said in top.as_array_mut().unwrap() {
                    let text = said["text"].as_str().unwrap().trim().to_owned();
                    said["text"] = json!(text);
                }
            }
        }
        value
    };
    assert_eq!(bare(&here), bare(&there));
    let there = [&args[..], &["--server", &server.address]].concat();
    assert_eq!(stdout(&ok(&args)), stdout(&ok(&there)));
}

#[test]
fn sessions_of_a_server() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("boat.djinn");
    let file = file.to_str().unwrap();
    let at = ["--server", server.address.as_str()];
    let there = |args: &[&str]| answer(&[args, &at, &["--json"]].concat());
    let prompt = [
        "run",
        "--prompt",
        "Tom had a red boat.",
        "--ignore-eos",
        "--max-tokens",
    ];
    let whole = there(&[&prompt[..], &["20"]].concat());
    let first = there(&[&prompt[..], &["12", "--keep"]].concat());
    let name = first["session"].as_str().unwrap();
    let listed = there(&["sessions", "list"]);
    assert_eq!(listed["sessions"][0]["id"], name);
    assert_eq!(listed["sessions"][0]["generated"], 12);
    assert_eq!(
        there(&["sessions", "save", name, file]),
        json!({ "sessions": [name] })
    );
    refused(
        &[&["sessions", "save", name, file], &at[..]].concat(),
        &["exists"],
    );
    let loaded = there(&["sessions", "load", file]);
    let loaded = loaded["sessions"][0].as_str().unwrap();
    for name in [name, loaded] {
        let rest = there(&["run", "--session", name, "--max-tokens", "8"]);
        let ids = |value: &Value| value["output_ids"].as_array().unwrap().clone();
        assert_eq!([ids(&first), ids(&rest)].concat(), ids(&whole));
        assert_eq!(rest["session"], name);
    }
    // What a server wrote, a folder takes in.
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
    let here = answer(&["sessions", "load", file, "--state", state, "--json"]);
    assert_eq!(here, json!({ "sessions": [1] }));
    let shown = stdout(&ok(&[&["sessions", "show", name], &at[..]].concat()));
    assert!(
        shown.contains("Tom had a red boat.") && shown.contains("20 of them"),
        "{shown}"
    );
    refused(
        &[&["sessions", "delete", name, "stories-7m:77"], &at[..]].concat(),
        &["77"],
    );
    there(&["sessions", "delete", name, loaded]);
    assert_eq!(there(&["sessions", "list"]), json!({ "sessions": [] }));
    refused(&["sessions", "list"], &["--state", "--server"]);
    refused(&["run", "--session", "0"], &["--session needs --state"]);
    refused(
        &["sessions", "show", "x", "--state", state],
        &["'x' is not the number"],
    );
}

#[test]
fn models_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--push-dir", folder.path().to_str().unwrap()]);
    let at = ["--server", server.address.as_str()];
    let there = |args: &[&str]| answer(&[args, &at, &["--json"]].concat());
    let model = common::root().join("models/stories-7m");
    let model = model.to_str().unwrap();
    let pushed = there(&[
        "models", "push", model, "--name", "mine", "--memory", "80MB",
    ]);
    assert_eq!(
        (&pushed["name"], &pushed["state"]),
        (&json!("mine"), &json!("ready"))
    );
    assert!(pushed["sent_bytes"].as_u64().unwrap() > 1 << 20);
    let again = there(&["models", "push", model, "--no-load"]);
    assert_eq!(again["sent_bytes"], 0);
    let reference = again["reference"].as_str().unwrap();
    assert_eq!(pushed["reference"], reference);
    let listed = there(&["models"]);
    let names = listed["models"].as_array().unwrap().iter();
    assert_eq!(
        names.map(|m| &m["name"]).collect::<Vec<_>>(),
        ["stories-7m", "mine"]
    );
    let story = there(&[
        "run",
        "--model",
        "mine",
        "--prompt",
        PROMPT,
        "--max-tokens",
        "8",
    ]);
    assert_eq!(story["model"], "mine");
    there(&["models", "unload", "mine", "--forget"]);
    let text = stdout(&ok(&[&["models"], &at[..]].concat()));
    assert!(
        text.contains("stories-7m") && !text.contains("mine"),
        "{text}"
    );
    refused(
        &[&["models", "register", "/etc"], &at[..]].concat(),
        &["--model-dir"],
    );

    let plan = there(&["plan", "--model", "shape:gpt2", "--memory", "400MB"]);
    assert!(
        plan["streamed_bytes_per_pass"].as_u64().unwrap() > 0,
        "{plan}"
    );
    let text = stdout(&ok(&[&["plan"], &at[..]].concat()));
    assert!(
        text.contains("stories-7m") && text.contains("over the link   nothing"),
        "{text}"
    );
}

#[test]
fn what_makes_no_sense_there_is_refused() {
    refused(
        &["run", "--server", "127.0.0.1:1", "--memory", "1GB"],
        &["--server", "cannot be used with", "--memory"],
    );
    refused(&["run", "--server", "127.0.0.1:1"], &["127.0.0.1:1"]);
    refused(&["models", "--server", "a b"], &["'a b'"]);
    refused(&["run", "--keep"], &["--server"]);
    let server = Server::start(&[]);
    let at = ["--server", server.address.as_str()];
    refused(
        &[
            &["trace", "--capture", "blocks.99.hook_resid_post"],
            &at[..],
        ]
        .concat(),
        &["blocks.99.hook_resid_post"],
    );
    refused(
        &[&["run", "--model", "nobody"], &at[..]].concat(),
        &["'nobody'"],
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
    let at = ["--server", server.address.as_str()];
    refused(&[&["run"], &at[..]].concat(), &["API key"]);
    let wrong = ["run", "--key", "nobody-has-this-key"];
    refused(&[&wrong, &at[..]].concat(), &["API key"]);
    ok(&[&["run", "--max-tokens", "2", "--key", key], &at[..]].concat());
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
    // Who may talk may not load.
    let unload = ["models", "unload", "stories-7m", "--key", key];
    refused(&[&unload, &at[..]].concat(), &["ann", "Admin key"]);
}
