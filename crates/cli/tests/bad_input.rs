//! Invalid input: the program prints one line that names the file, the key or the limit, exits with status 2, and
//! leaves no partial output.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{DamagedModel, golden, refused, stderr};

const TRACE: [&str; 5] = ["trace", "--tokens", "5,6,7", "--capture", "logits"];

/// Checks that `djinn trace` refuses a damaged model.
fn refuses(model: &DamagedModel, parts: &[&str]) {
    let args: Vec<&str> = TRACE.into_iter().chain(["--model", model.path()]).collect();
    refused(&args, parts);
}

#[test]
fn missing_weights_are_refused() {
    let model = DamagedModel::new("llama2");
    fs::remove_file(model.file("model.safetensors")).unwrap();
    refuses(&model, &["model.safetensors"]);
}

#[test]
fn truncated_weights_are_refused() {
    let cut = |keep: usize| DamagedModel::new("llama2").weights(|bytes| bytes.truncate(keep));
    refuses(&cut(0), &["model.safetensors"]);
    refuses(&cut(7), &["model.safetensors"]);
    refuses(&cut(500), &["model.safetensors"]);
    refuses(&cut(800_000), &["model.safetensors"]);
}

#[test]
fn a_header_longer_than_the_file_is_refused() {
    for length in [u64::MAX, 1 << 40, 2_000_000] {
        let model = DamagedModel::new("llama2")
            .weights(|bytes| bytes[..8].copy_from_slice(&length.to_le_bytes()));
        refuses(&model, &["model.safetensors", "header"]);
    }
}

#[test]
fn tensors_with_a_wrong_shape_name_or_type_are_refused() {
    let shape = DamagedModel::new("llama2")
        .config("\"intermediate_size\": 160", "\"intermediate_size\": 161");
    refuses(&shape, &["mlp.gate_proj.weight", "161", "160"]);
    let missing =
        DamagedModel::new("llama2").header("layers.2.mlp.up_proj", "layers.2.mlp.xx_proj");
    refuses(&missing, &["layers.2.mlp.up_proj.weight"]);
    let dtype = DamagedModel::new("llama2").header(
        "\"model.norm.weight\":{\"dtype\":\"F32\"",
        "\"model.norm.weight\":{\"dtype\":\"I32\"",
    );
    refuses(&dtype, &["model.norm.weight", "I32"]);
}

#[test]
fn unknown_architectures_are_refused() {
    let model = DamagedModel::new("llama2")
        .config("\"llama\"", "\"perceptron\"")
        .config("LlamaForCausalLM", "PerceptronForCausalLM");
    refuses(&model, &["config.json", "perceptron"]);
}

#[test]
fn invalid_configurations_are_refused() {
    let check = |from: &str, to: &str, parts: &[&str]| {
        refuses(&DamagedModel::new("llama2").config(from, to), parts);
    };
    check(
        "\"num_attention_heads\": 4",
        "\"num_attention_heads\": 0",
        &["num_attention_heads"],
    );
    check(
        "\"num_attention_heads\": 4",
        "\"num_attention_heads\": -4",
        &["num_attention_heads"],
    );
    check(
        "\"hidden_size\": 64",
        "\"hidden_size\": \"wide\"",
        &["hidden_size"],
    );
    check(
        "\"hidden_size\": 64",
        "\"hidden_size\": 99999999999999",
        &["hidden_size"],
    );
    check(
        "\"hidden_act\": \"silu\"",
        "\"hidden_act\": \"mystery\"",
        &["hidden_act", "mystery"],
    );
    check(
        "\"rope_type\": \"default\"",
        "\"rope_type\": \"spiral\"",
        &["spiral"],
    );
    check("{", "", &["config.json"]);
}

#[test]
fn unknown_models_are_refused() {
    let with = |model: &'static str| {
        [
            "trace",
            "--tokens",
            "1",
            "--capture",
            "logits",
            "--model",
            model,
        ]
    };
    refused(&with("/no/such/folder"), &["/no/such/folder"]);
    refused(&with("unknown/model"), &["unknown/model", "djinn pull"]);
    refused(&with("shape:llama-9-900b"), &["llama-9-900b", "llama-2-7b"]);
    refused(&with("shape:gpt2?layers=many"), &["layers"]);
    refused(&with("shape:gpt2?colour=red"), &["colour"]);
}

#[test]
fn invalid_tokens_and_prompts_are_refused() {
    let llama = golden("llama2");
    let llama = llama.to_str().unwrap();
    let trace = |tokens: &str| {
        refused(
            &[
                "trace",
                "--capture",
                "logits",
                "--model",
                llama,
                "--tokens",
                tokens,
            ],
            &if tokens.contains("320") {
                ["320", "vocabulary"]
            } else {
                ["257", "256"]
            },
        );
    };
    trace("1,320");
    trace(&vec!["7"; 257].join(","));
    refused(
        &["run", "--model", llama, "--prompt", "hello"],
        &["tokenizer.json", "--tokens"],
    );
    let long = "word ".repeat(600);
    refused(&["run", "--prompt", &long], &["512", "context"]);
    refused(&["run", "--prompt", "hi", "--chat"], &["chat template"]);
}

#[test]
fn unknown_hooks_are_refused() {
    let capture = |family: &str, hook: &str, parts: &[&str]| {
        let folder = golden(family);
        let folder = folder.to_str().unwrap();
        refused(
            &[
                "trace",
                "--model",
                folder,
                "--tokens",
                "1",
                "--capture",
                hook,
            ],
            parts,
        );
    };
    capture(
        "llama2",
        "blocks.1.hook_resid_pots",
        &["blocks.1.hook_resid_pots", "blocks.1.hook_resid_post"],
    );
    capture(
        "llama2",
        "blocks.9.hook_resid_post",
        &["blocks.9", "4 blocks"],
    );
    capture(
        "gptj",
        "blocks.0.hook_resid_mid",
        &["resid_mid", "parallel"],
    );
    capture(
        "falcon7b",
        "blocks.*.hook_resid_mid",
        &["resid_mid", "parallel"],
    );
    capture(
        "mixtral",
        "blocks.0.mlp.hook_post",
        &["mlp.hook_post", "experts"],
    );
    capture("llama2", "nonsense*", &["nonsense"]);
}

#[test]
fn invalid_edits_are_refused() {
    let edit = |edit: &str, parts: &[&str]| {
        let args: Vec<&str> = TRACE.into_iter().chain(["--edit", edit]).collect();
        refused(&args, parts);
    };
    edit("blocks.0.hook_resid_post:spin=1", &["spin"]);
    edit("blocks.0.hook_resid_post:scale=NaN", &["NaN"]);
    edit(
        "blocks.0.hook_resid_psot:scale=1",
        &["blocks.0.hook_resid_psot"],
    );
    edit(
        "blocks.0.hook_resid_post:add=/no/such.safetensors",
        &["/no/such.safetensors"],
    );
    let wrong = golden("llama2").join("golden.safetensors");
    let wrong = format!("blocks.0.hook_resid_post:add={}#logits", wrong.display());
    edit(&wrong, &["blocks.0.hook_resid_post", "256"]);
    edit(
        "logits:zero@99",
        &["logits", "none of the session's 3 positions"],
    );
    edit(
        "logits:zero@generated",
        &["logits", "none of the session's 3 positions"],
    );
}

#[test]
fn sampling_flags_out_of_range_are_refused() {
    let check = |flag: &str, value: &str, part: &str| {
        let flag = format!("--{flag}={value}");
        refused(&["run", "--prompt", "a", &flag], &[part]);
    };
    check("temperature", "-1", "temperature");
    check("temperature", "NaN", "temperature");
    check("top-p", "1.5", "top-p");
    check("min-p", "2", "min-p");
    check("repetition-penalty", "0", "repetition-penalty");
    check("logit-bias", "99999=1", "logit-bias");
}

#[test]
fn unwritable_outputs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("no/such/folder.safetensors");
    let args: Vec<&str> = TRACE
        .into_iter()
        .chain(["--out", out.to_str().unwrap()])
        .collect();
    refused(&args, &["no/such/folder.safetensors"]);
    // The output path is a folder.
    let args: Vec<&str> = TRACE
        .into_iter()
        .chain(["--out", folder.path().to_str().unwrap()])
        .collect();
    refused(&args, &[folder.path().to_str().unwrap()]);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "no file is left behind"
    );
}

#[test]
fn a_failed_trace_keeps_the_existing_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kept.safetensors");
    fs::write(&out, "precious").unwrap();
    refused(
        &[
            "trace",
            "--tokens",
            "99999",
            "--capture",
            "logits",
            "--out",
            out.to_str().unwrap(),
        ],
        &["99999"],
    );
    assert_eq!(fs::read_to_string(&out).unwrap(), "precious");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn invalid_flags_are_refused() {
    refused(&["run", "--rows", "0"], &["--rows", "at least 1"]);
    refused(&["run", "--tokens", "1,,2"], &["--tokens"]);
    refused(&["run", "--stop", ""], &["--stop"]);
    let shape = [
        "run",
        "--model",
        "shape:gpt2?layers=1",
        "--tokens",
        "1",
        "--stop",
        "x",
    ];
    refused(&shape, &["tokenizer.json", "stop string"]);
    refused(&["run", "--colour"], &["--colour"]);
    refused(&["trace", "--prompt", "a"], &["--capture"]);
    refused(&["bench", "memory", "--size", "16EiB"], &["16EiB"]);
    refused(&["bench", "memory", "--size", "1kB"], &["256MiB"]);
    refused(&["sing"], &["sing"]);
}

#[test]
fn models_larger_than_the_memory_are_refused() {
    let args = [
        "trace",
        "--tokens",
        "1",
        "--capture",
        "logits",
        "--model",
        "shape:falcon-180b",
    ];
    let all = ["--resident", "all"];
    refused(&[&args[..], &all].concat(), &["--resident all", "357"]);
    let more_than_free = ["--memory", "400GB"];
    let refusal = ["cannot allocate", "GB are free"];
    refused(&[&args[..], &more_than_free].concat(), &refusal);
    refused(
        &[&args[..], &["--memory", "10MB"]].concat(),
        &["is too small", "at least"],
    );
}

#[test]
fn more_threads_than_the_machine_allows_are_refused() {
    refused(
        &["bench", "memory", "--threads", "4096"],
        &["4096", "threads"],
    );
    refused(
        &["run", "--prompt", "a", "--threads", "4096"],
        &["4096", "threads"],
    );
}

#[test]
fn unknown_environment_variables_are_refused() {
    let run = |name: &str, args: &[&str]| {
        let home = std::env::temp_dir().join("djinn-tests-have-no-home");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_djinn"))
            .args(args)
            .env("DJINN_HOME", &home)
            .env("HF_HOME", &home)
            .env(name, "1")
            .output()
            .unwrap();
        (output.status.code(), stderr(&output))
    };
    for args in [
        &["serve", "--port", "0"][..],
        &["run", "--max-tokens", "1"],
        &["inspect"],
        &["sessions", "list", "--server", "127.0.0.1:1"],
    ] {
        let (code, error) = run("DJINN_PROT", args);
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(
            error.contains("DJINN_PROT; did you mean DJINN_PORT?"),
            "{error}"
        );
    }
    // Help works in every environment, and tests have variables of their own.
    assert_eq!(run("DJINN_PROT", &["--help"]).0, Some(0));
    assert_eq!(run("DJINN_TEST_ANYTHING", &["inspect"]).0, Some(0));
}
