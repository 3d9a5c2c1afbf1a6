//! `--kv-dtype` works with every command that computes.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{json_output, output_of, refused, server::Server, stderr, with_input};
use serde_json::Value;

/// Bytes of weights, KV and activations that a command prints before it computes.
fn whole_bytes(args: &[&str]) -> f64 {
    let output = with_input(args, &["Tom had a red boat."]);
    let text = stderr(&output);
    assert!(output.status.success(), "{args:?}: {text}");
    let size = text.split_once("with KV and activations (").unwrap().1;
    let size = size.split_once(" MB)").unwrap().0;
    1e6 * size.parse::<f64>().unwrap()
}

#[test]
fn local_commands_keep_keys_and_values_in_the_type() {
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(&script, "quit\n").unwrap();
    let script = script.path().to_str().unwrap();
    // A prompt of 300 tokens needs 19 pages.
    let tokens = vec!["5"; 300].join(",");
    let tokens = tokens.as_str();
    let commands: [(&[&str], f64); 4] = [
        (&["run", "--tokens", tokens, "--max-tokens", "1"], 19.0),
        (
            &["trace", "--tokens", tokens, "--capture", "logits@-1|norm"],
            19.0,
        ),
        (
            &["chat", "--context", "304", "--max-tokens", "1"],
            4.0 * 19.0,
        ),
        (&["debug", "--tokens", tokens, "--script", script], 19.0),
    ];
    for (command, pages) in commands {
        let bytes = |dtype| whole_bytes(&[command, &["--kv-dtype", dtype]].concat());
        let [half, other, auto, whole] = ["f16", "bf16", "auto", "f32"].map(bytes);
        assert_eq!((half, other), (auto, auto), "{command:?}");
        // A page takes 65,536 bytes in 16 bits. Sizes are printed with one decimal.
        let more = whole - half;
        let least = pages * 65_536.0 - 200_000.0;
        assert!(more >= least, "{command:?}: {more} bytes, not {least}");
        refused(
            &[command, &["--kv-dtype", "i32"]].concat(),
            &["auto, f16, bf16 or f32"],
        );
    }
}

#[test]
fn each_type_rounds_in_its_own_way() {
    let norm = |dtype: &str| {
        let args = ["trace", "--prompt", "Tom had a red boat", "--json"];
        let more = ["--capture", "logits@-1|norm", "--kv-dtype", dtype];
        let report = json_output(&[&args[..], &more].concat());
        report["hooks"][0]["norm"].as_f64().unwrap()
    };
    let [whole, half, other, auto] = ["f32", "f16", "bf16", "auto"].map(norm);
    assert!(whole != half && half != other, "{whole}, {half}, {other}");
    assert_eq!(half, auto, "the bundled model has weights in f16");
    // f16 rounds finer than bf16.
    assert!((half - whole).abs() < (other - whole).abs());
    assert!((other - whole).abs() < 0.01 * whole);
    // The answers of a chat are the same in all types as long as the logits are this close.
    let chat = ["chat", "--context", "64", "--max-tokens", "8", "--kv-dtype"];
    let [whole, other] = ["f32", "bf16"]
        .map(|dtype| output_of(&[&chat[..], &[dtype]].concat(), &["Tom had a red boat."]));
    assert_eq!(whole, other);
}

#[test]
fn a_server_takes_the_type_from_a_flag_or_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = |server: &Server| -> Value {
        let models = json_output(&["models", "--json", "--server", &server.address]);
        models["models"][0].clone()
    };
    let dtype = |model: &Value| model["limits"]["kv_dtype"].as_str().unwrap().to_owned();
    for (choice, expect) in [
        ("f32", "f32"),
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("auto", "f16"),
    ] {
        let by_flag = Server::start(&["--kv-dtype", choice]);
        assert_eq!(dtype(&model(&by_flag)), expect);
        let file = folder.path().join(format!("{choice}.toml"));
        fs::write(&file, format!("kv_dtype = \"{choice}\"\n")).unwrap();
        let by_file = Server::start(&["--config", file.to_str().unwrap()]);
        assert_eq!(dtype(&model(&by_file)), expect);
    }
    // A model may have a type of its own.
    let own = Server::start(&["--kv-dtype", "f16", "--model", "own=bundled,kv-dtype=f32"]);
    assert_eq!(dtype(&model(&own)), "f32");
}
