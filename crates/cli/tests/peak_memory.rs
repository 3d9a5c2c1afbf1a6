//! A process on a CPU takes its memory budget and at most 64 MB more.

#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};

use common::{checkpoint::write_smollm, json_output, server::Server};

/// Bytes that a process may take beside its budget.
const BESIDE: u64 = 64_000_000;
const SMOLLM: [&str; 4] = ["--model", "shape:smollm2-135m", "--memory", "60MB"];

/// Largest resident size of a process so far; `None` once it has ended.
fn peak(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    Some(kib * 1024)
}

fn check(peak: u64, budget: u64, what: &str) {
    assert!(
        peak <= budget + BESIDE,
        "{what}: {peak} bytes with a budget of {budget}"
    );
}

fn start(args: &[&str]) -> Child {
    let home = std::env::temp_dir().join("djinn-tests-have-no-home");
    Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .args(["--device", "cpu"])
        .env("DJINN_HOME", &home)
        .env("HF_HOME", &home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs a command to its end and returns the largest resident size that was seen.
fn peak_of(args: &[&str]) -> u64 {
    let mut child = start(args);
    drop(child.stdin.take());
    let mut most = 0;
    while let Some(now) = peak(child.id()) {
        most = now;
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}");
    assert!(most > 0, "{args:?} ended before it was measured");
    most
}

#[test]
fn runs_stay_within_their_budget() {
    let bundled = peak_of(&["run", "--memory", "6MB", "--max-tokens", "40"]);
    check(bundled, 6_000_000, "run with the bundled model");
    // A prompt that fills most of the KV pages.
    let prompt = vec!["5"; 600].join(",");
    let run = ["run", "--tokens", &prompt, "--max-tokens", "2"];
    let synthetic = peak_of(&[&run[..], &SMOLLM].concat());
    check(synthetic, 60_000_000, "run with a model of 269 MB");
    // The measurement sees the slab, not an empty process.
    assert!(synthetic > 40_000_000, "{synthetic}");
}

/// Sends one message to a chat. Returns the length of the conversation in tokens and the largest
/// resident size.
fn peak_of_chat(args: &[&str]) -> (usize, u64) {
    let mut child = start(&[&["chat"], args].concat());
    let mut stdin = child.stdin.take().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"Tom had a red boat.\n/tokens\n").unwrap();
    // The chat waits for the next message after it has answered both lines.
    let mut lines = lines.map(Result::unwrap);
    let count = lines.find_map(|line| line.split_once(" tokens of ")?.0.parse().ok());
    let most = peak(child.id()).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    (count.unwrap(), most)
}

#[test]
fn a_chat_stays_within_its_budget() {
    let (tokens, most) = peak_of_chat(&["--memory", "6MB", "--max-tokens", "40"]);
    assert!(tokens > 10, "{tokens}");
    check(most, 6_000_000, "chat");
}

#[test]
fn a_model_with_a_large_tokenizer_stays_within_less_than_a_quarter_of_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = write_smollm(folder.path());
    let model = ["--model", model.to_str().unwrap(), "--memory", "60MB"];
    let budget = 60_000_000;
    let prompt = ["--prompt", "Tom had a red boat.", "--max-tokens", "8"];
    let run = [&["run", "--ignore-eos", "--json"], &prompt[..], &model].concat();
    let run = json_output(&[&run[..], &["--device", "cpu"]].concat());
    assert_eq!(run["output_ids"].as_array().unwrap().len(), 8, "{run}");
    let run = run["memory"]["peak_rss_bytes"].as_u64().unwrap();
    let chat = [&model[..], &["--max-tokens", "8"]].concat();
    let (tokens, chat) = peak_of_chat(&chat);
    // The chat template adds words to the message, and the answer has 8 tokens.
    assert!(tokens >= 16, "{tokens}");
    let server = Server::start_plain(&[&model[..], &["--device", "cpu"]].concat());
    let body =
        r#"{"messages": [{"role": "user", "content": "Tom had a red boat."}], "max_tokens": 8}"#;
    let answer = server.post("/v1/chat/completions", body);
    assert!(answer.contains("\"completion_tokens\":"), "{answer}");
    let serve = peak(server.id()).unwrap();
    println!("run {run}, chat {chat}, serve {serve}");
    check(run, budget, "run");
    check(chat, budget, "chat");
    check(serve, budget, "serve");
    assert!(
        run.min(chat).min(serve) > 40_000_000,
        "the slab is resident"
    );
}

#[test]
fn servers_stay_within_their_budget() {
    let bundled = Server::start_plain(&["--device", "cpu", "--memory", "6MB"]);
    let answer = bundled.post(
        "/v1/completions",
        r#"{"prompt": "Tom had", "max_tokens": 40}"#,
    );
    assert!(answer.contains("completion_tokens"), "{answer}");
    check(
        peak(bundled.id()).unwrap(),
        6_000_000,
        "serve with the bundled model",
    );
    let synthetic = Server::start_plain(&[&SMOLLM[..], &["--device", "cpu"]].concat());
    let prompt = vec!["5"; 200].join(",");
    let body = format!(r#"{{"prompt": [{prompt}], "max_tokens": 2, "ignore_eos": true}}"#);
    let answer = synthetic.post("/v1/completions", &body);
    assert!(answer.contains("\"completion_tokens\":2"), "{answer}");
    check(
        peak(synthetic.id()).unwrap(),
        60_000_000,
        "serve with a model of 269 MB",
    );
}
