//! Commands run as users run them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    io::Read,
    process::{Command, Stdio},
};

use common::{DamagedModel, fails, golden, ok, refused, stderr, stdout};
use serde_json::Value;

/// Runs a command and parses its standard output as JSON.
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}

#[test]
fn run_without_flags_generates_a_story() {
    let output = ok(&["run"]);
    let story = stdout(&output);
    assert!(story.starts_with("Once upon a time"), "{story}");
    assert!(story.split_whitespace().count() > 50, "{story}");
    let summary = stderr(&output);
    for part in ["tokens", "tokens/s", "first token", "weights", "KV", "cpu"] {
        assert!(summary.contains(part), "'{part}' is not in: {summary}");
    }
}

#[test]
fn text_and_json_outputs_agree() {
    let args = ["run", "--prompt", "The cat", "--max-tokens", "30"];
    let text = stdout(&ok(&args));
    let report = json(&[&args[..], &["--json"]].concat());
    let expect = format!("The cat{}\n", report["text"].as_str().unwrap());
    assert_eq!(text, expect);
    assert_eq!(report["output_ids"].as_array().unwrap().len(), 30);
    assert_eq!(report["finish"], "length");
}

#[test]
fn equal_seeds_repeat_the_text_and_other_seeds_change_it() {
    let run = |seed: &str| {
        let args = [
            "run",
            "--prompt",
            "A dog",
            "--temperature",
            "1",
            "--seed",
            seed,
            "--max-tokens",
            "40",
        ];
        stdout(&ok(&args))
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn a_stop_string_ends_the_text_and_logprobs_cover_every_token() {
    let report = json(&[
        "run",
        "--prompt",
        "Once upon a time",
        "--stop",
        "Lily",
        "--json",
        "--logprobs",
        "3",
    ]);
    let text = report["text"].as_str().unwrap();
    assert!(!text.contains("Lily") && text.ends_with("named "), "{text}");
    assert_eq!(report["finish"], "stop");
    let logprobs = report["logprobs"].as_array().unwrap();
    assert_eq!(
        logprobs.len(),
        report["output_ids"].as_array().unwrap().len()
    );
    for token in logprobs {
        let top = token["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(
            top[0]["token"], token["token"],
            "greedy decoding takes the most likely token"
        );
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
}

#[test]
fn a_prompt_is_read_from_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["run", "--prompt", "-", "--max-tokens", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"The rain").unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(text.starts_with("The rain"), "{text}");
}

#[test]
fn a_closed_standard_output_is_not_an_error() {
    for args in [
        &["run", "--ignore-eos", "--max-tokens", "400"][..],
        &["run", "--max-tokens", "5", "--json"],
        &["inspect"],
        &["inspect", "--json"],
        &["trace", "--prompt", "A", "--capture", "*"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success(), "{args:?}");
        let mut stderr_text = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr_text)
            .unwrap();
        assert!(!stderr_text.contains("panicked"), "{args:?}: {stderr_text}");
    }
}

#[test]
fn a_trace_matches_the_logits_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("traced.safetensors");
    let model = golden("gpt2");
    let bytes = std::fs::read(model.join("golden.safetensors")).unwrap();
    let expect = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tokens: Vec<String> = i64s(&expect, "input_ids")
        .iter()
        .map(i64::to_string)
        .collect();
    ok(&[
        "trace",
        "--model",
        model.to_str().unwrap(),
        "--tokens",
        &tokens.join(","),
        "--capture",
        "blocks.*.hook_resid_post,logits",
        "--generate",
        "32",
        "--edit",
        "blocks.2.hook_resid_post:scale=0.9",
        "--out",
        out.to_str().unwrap(),
    ]);
    let bytes = std::fs::read(&out).unwrap();
    let found = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(i64s(&found, "input_ids"), i64s(&expect, "input_ids"));
    assert_eq!(i64s(&found, "output_ids").len(), 32);
    let names: Vec<String> = found.names().iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), 4 + 1 + 2, "{names:?}");
    let (found, expect) = (f32s(&found, "logits"), f32s(&expect, "steered.logits"));
    assert_eq!(found.len(), expect.len());
    for (x, y) in found.iter().zip(&expect) {
        assert!((x - y).abs() <= 2e-3 + 1e-3 * y.abs(), "{x} {y}");
    }
}

/// Reads a tensor of 64-bit integers.
fn i64s(file: &safetensors::SafeTensors<'_>, name: &str) -> Vec<i64> {
    let (numbers, _) = file.tensor(name).unwrap().data().as_chunks::<8>();
    numbers.iter().map(|&b| i64::from_le_bytes(b)).collect()
}

/// Reads a tensor of 32-bit floats.
fn f32s(file: &safetensors::SafeTensors<'_>, name: &str) -> Vec<f32> {
    let (numbers, _) = file.tensor(name).unwrap().data().as_chunks::<4>();
    numbers.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn a_trace_without_an_output_file_prints_a_table() {
    let table = stdout(&ok(&[
        "trace",
        "--prompt",
        "A cat",
        "--capture",
        "*.hook_pattern",
    ]));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("hook"), "{table}");
    assert_eq!(lines.len(), 1 + 8 + 1, "{table}");
    assert!(lines[1].contains("[8, 3, 3]"), "{table}");
}

#[test]
fn inspect_describes_bundled_shape_and_folder_models() {
    let report = json(&["inspect", "--json"]);
    assert_eq!(report["parameters"], 6_951_168);
    assert_eq!(report["kv_bytes_per_token"]["f16"], 4096);
    let report = json(&["inspect", "shape:llama-2-13b", "--json"]);
    assert_eq!(report["parameters"], 13_015_864_320u64);
    assert_eq!(report["kv_bytes_per_token"]["f16"], 819_200);
    assert_eq!(report["segments"].as_array().unwrap().len(), 42);
    let text = stdout(&ok(&["inspect", golden("mixtral").to_str().unwrap()]));
    for part in ["mixtral", "experts", "expert"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn shape_models_depend_on_their_seed_alone() {
    let run = |model: &str, more: &[&str]| {
        let args = [
            "run",
            "--model",
            model,
            "--tokens",
            "1,2,3",
            "--max-tokens",
            "4",
            "--json",
        ];
        json(&[&args[..], more].concat())["output_ids"].clone()
    };
    let ids = run("shape:gpt2?layers=2&seed=7", &[]);
    assert_eq!(ids.as_array().unwrap().len(), 4);
    assert_eq!(run("shape:gpt2?layers=2&seed=7", &["--threads", "1"]), ids);
    assert_ne!(
        run("shape:gpt2?layers=2&seed=8", &[]),
        ids,
        "the seed changes the tokens"
    );
}

#[test]
fn weights_with_nan_are_reported() {
    let model = DamagedModel::new("llama2").weights(|bytes| {
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    fails(
        &["run", "--model", model.path(), "--tokens", "1", "--json"],
        &["not a number"],
    );
}

#[test]
fn the_bundled_model_is_found_from_any_working_directory() {
    let output = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["inspect", "--json"])
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success());
}

#[test]
fn help_lists_examples_and_flags() {
    let check = |command: &str, parts: &[&str]| {
        let text = stdout(&ok(&[command, "--help"]));
        for part in parts {
            assert!(
                text.contains(part),
                "'{part}' is not in {command} --help: {text}"
            );
        }
    };
    check(
        "run",
        &[
            "Examples:",
            "generation_config.json",
            "--repetition-penalty",
            "--stop",
        ],
    );
    check(
        "trace",
        &["Examples:", "hook_resid_mid", "project-out", "0,3,-1"],
    );
    check("inspect", &["shape", "--json"]);
    check("pull", &["HF_TOKEN", "DJINN_HOME"]);
    check("bench", &["memory", "decode", "prefill", "Examples:"]);
}

#[test]
fn the_largest_token_counts_do_not_overflow() {
    let largest = u64::MAX.to_string();
    let report = json(&[
        "run",
        "--prompt",
        "The end",
        "--max-tokens",
        &largest,
        "--json",
    ]);
    assert_eq!(report["finish"], "eos");
    let report = json(&[
        "run",
        "--prompt",
        "A",
        "--ignore-eos",
        "--max-tokens",
        &largest,
        "--json",
    ]);
    assert_eq!(report["finish"], "context");
    let prompt = report["prompt_ids"].as_array().unwrap().len();
    let output = report["output_ids"].as_array().unwrap().len();
    assert_eq!(
        prompt + output,
        512 + 1,
        "the context limits the tokens that run, and the last generated token does not run"
    );
    refused(
        &["bench", "decode", "--context", &largest],
        &["context", "512"],
    );
    refused(
        &["bench", "decode", "--tokens", &largest],
        &["context", "512"],
    );
    refused(
        &["bench", "prefill", "--tokens", &largest],
        &["context", "512"],
    );
}

#[test]
fn swapped_models_return_with_the_same_tokens() {
    let swap = |memory| {
        [
            "bench", "swap", "--device", "cpu", "--tokens", "40", "--rounds", "1", "--memory",
            memory,
        ]
    };
    let args = [&swap("24MB")[..], &["--json"]].concat();
    let report = json(&args);
    assert_eq!(report["differing_tokens"], 0);
    assert_eq!(report["turns"].as_array().map(Vec::len), Some(2));
    refused(&swap("200MB"), &["both models fit", "--memory"]);
}

#[test]
fn decode_and_prefill_benchmarks_report_positive_rates() {
    let report = json(&[
        "bench",
        "decode",
        "--tokens",
        "4",
        "--sessions",
        "3",
        "--rows",
        "8",
        "--json",
    ]);
    assert_eq!(report["passes"], 4);
    for key in [
        "pass_s",
        "tokens_per_s",
        "memory_gb_per_s",
        "share_of_memory",
    ] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let report = json(&[
        "bench", "prefill", "--tokens", "32", "--repeat", "1", "--json",
    ]);
    if cfg!(feature = "yardstick") {
        assert!(report["share_of_gemm"].as_f64().unwrap() > 0.0);
    } else {
        assert!(report["gemm_comparison"].is_string());
    }
}

#[test]
fn sessions_larger_than_the_kv_memory_complete_with_the_same_tokens() {
    let report = json(&[
        "bench",
        "sessions",
        "--device",
        "cpu",
        "--sessions",
        "30",
        "--kv",
        "2MB",
        "--batch",
        "8",
        "--turns",
        "3",
        "--think",
        "0.01..0.05",
        "--arrivals",
        "500",
        "--announce",
        "--check",
        "6",
        "--json",
    ]);
    let number = |key: &str| report.pointer(key).unwrap().as_f64().unwrap();
    assert_eq!(report["completed"], 30);
    assert_eq!(
        (&report["checked"], &report["differ"]),
        (&6.into(), &Value::Array(vec![]))
    );
    assert!(number("/kv_wanted_bytes") > 5.0 * number("/device/kv_bytes"));
    assert!(number("/device/kv_peak_bytes") <= number("/device/kv_bytes"));
    assert!(number("/host/kv_peak_bytes") <= number("/host/kv_bytes"));
    let (out, back) = (number("/paged_out/bytes"), number("/paged_back/bytes"));
    assert!(0.0 < back && 0.0 < out);
    assert_eq!(number("/first_token_s/count"), 30.0);
    assert_eq!(number("/resume_to_token_s/count"), 60.0);
    // Invalid flags are refused before the model loads.
    refused(
        &["bench", "sessions", "--prompt", "9..3"],
        &["--prompt", "lower first"],
    );
    refused(
        &["bench", "sessions", "--output", "0"],
        &["at least one token"],
    );
    refused(
        &["bench", "sessions", "--prompt", "600"],
        &["context", "512"],
    );
    refused(&["bench", "sessions", "--think", "1..inf"], &["--think"]);
}
