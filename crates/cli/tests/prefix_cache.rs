//! The prefix cache as clients see it: answers, cached tokens, owners and metrics.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{json_output, ok, server::Server, server::wait_until, stderr};
use serde_json::{Value, json};

/// Tokens of a KV page.
const PAGE: usize = 16;
/// Bytes of a KV page of the bundled model: keys and values in f16 of 8 blocks with 4 heads of 32.
const PAGE_BYTES: usize = 8 * 2 * 4 * 32 * 2 * PAGE;

const ANN: &str = "ann-has-a-long-key";
const BOB: &str = "bob-has-a-long-key-too";

/// A prompt of `count` tokens; prompts with other seeds begin differently.
fn prompt(count: usize, seed: usize) -> Vec<usize> {
    (0..count)
        .map(|i| 5 + (i * 37 + seed * 101) % 2000)
        .collect()
}

fn cached(usage: &Value) -> u64 {
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    cached
        .as_u64()
        .unwrap_or_else(|| panic!("no cached tokens in {usage}"))
}

#[test]
fn a_long_prompt_streams_the_same_answer_from_the_cache() {
    let model = "shape:smollm2-135m?layers=2";
    let flags = ["--device", "cpu", "--memory", "1GB", "--context", "2048"];
    let server = Server::start_plain(&[&flags[..], &["--model", model]].concat());
    let body = json!({
        "prompt": prompt(1500, 1), "max_tokens": 12, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": { "include_usage": true }, "return_token_ids": true, "logprobs": 2,
    });
    let mut first = None;
    for expect in [0, 1488, 1488] {
        let events = server.stream(&body);
        let usage = &events.last().unwrap()["usage"];
        assert_eq!(usage["prompt_tokens"], 1500, "{usage}");
        assert_eq!(usage["completion_tokens"], 12, "{usage}");
        assert_eq!(cached(usage), expect, "{usage}");
        // Tokens and log-probabilities of every event.
        let choices = events
            .iter()
            .filter_map(|event| event["choices"].get(0).cloned());
        let choices: Vec<Value> = choices.collect();
        let tokens = choices
            .iter()
            .filter_map(|choice| choice["token_ids"].as_array());
        assert_eq!(tokens.flatten().count(), 12, "{choices:?}");
        let first = first.get_or_insert_with(|| choices.clone());
        assert_eq!(*first, choices);
    }
}

/// Server with two owners.
fn server_of_ann_and_bob(folder: &std::path::Path, flags: &[&str]) -> Server {
    let keys = folder.join("keys.toml");
    let table = format!(
        "[[key]]\nowner = \"ann\"\nkey = \"{ANN}\"\nadmin = true\n\n\
         [[key]]\nowner = \"bob\"\nkey = \"{BOB}\"\n"
    );
    fs::write(&keys, table).unwrap();
    Server::start(&[&["--keys", keys.to_str().unwrap()], flags].concat())
}

/// Waits until the metric has this value.
async fn metric_is(server: &Server, words: &[&str], expect: f64) {
    let name = format!("{words:?} is {expect}");
    wait_until(&name, async || server.metric_as(ANN, words) == expect).await;
}

#[tokio::test]
async fn owners_share_prefixes_only_if_the_server_says_so() {
    for (share, for_bob, hits, pages) in [("owner", 0, 2, 4), ("all", 32, 3, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let server = server_of_ann_and_bob(folder.path(), &["--share-prefixes", share]);
        let body = json!({ "prompt": prompt(40, 1), "max_tokens": 4, "temperature": 0, "ignore_eos": true });
        let mut texts = Vec::new();
        let mut found = Vec::new();
        for key in [ANN, ANN, BOB, BOB] {
            let answer = server.complete(key, &body);
            found.push(cached(&answer["usage"]));
            texts.push(answer["choices"][0]["text"].clone());
        }
        assert_eq!(found, [0, 32, for_bob, 32], "--share-prefixes {share}");
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
        metric_is(&server, &["djinn_prefix_lookups_total{"], 4.0).await;
        metric_is(&server, &["djinn_prefix_hits_total{"], f64::from(hits)).await;
        let reused = f64::from(hits * 2 * PAGE as i32);
        metric_is(&server, &["djinn_adopted_tokens_total{"], reused).await;
        let bytes = |tier| ["djinn_prefix_cache_bytes{", tier];
        let expect = (pages * PAGE_BYTES) as f64;
        metric_is(&server, &bytes("tier=\"device\""), expect).await;
        for tier in ["tier=\"host\"", "tier=\"disk\""] {
            metric_is(&server, &bytes(tier), 0.0).await;
        }
        metric_is(&server, &["djinn_prefix_evicted_pages_total{"], 0.0).await;
    }
}

#[tokio::test]
async fn a_limited_cache_evicts_pages_and_counts_them() {
    let folder = tempfile::tempdir().unwrap();
    let limit = format!("{}B", 3 * PAGE_BYTES);
    let server = server_of_ann_and_bob(folder.path(), &["--prefix-cache", &limit]);
    let ask = |seed| {
        let body = json!({ "prompt": prompt(40, seed), "max_tokens": 1, "ignore_eos": true });
        cached(&server.complete(ANN, &body)["usage"])
    };
    let bytes = ["djinn_prefix_cache_bytes{", "tier=\"device\""];
    let evicted = ["djinn_prefix_evicted_pages_total{"];
    assert_eq!(ask(1), 0);
    metric_is(&server, &bytes, (2 * PAGE_BYTES) as f64).await;
    // Two pages of another prompt leave room for one of the first.
    assert_eq!(ask(2), 0);
    metric_is(&server, &evicted, 1.0).await;
    metric_is(&server, &bytes, (3 * PAGE_BYTES) as f64).await;
    assert_eq!(ask(2), 32);
    assert_eq!(ask(1), 16, "the first page of the first prompt is left");
}

#[tokio::test]
async fn cached_pages_move_to_host_memory_and_are_counted_there() {
    let folder = tempfile::tempdir().unwrap();
    let kv = format!("{}B", 8 * PAGE_BYTES);
    let flags = ["--context", "128", "--kv", &kv, "--batch", "1"];
    let keys = folder.path().join("keys.toml");
    fs::write(
        &keys,
        format!("[[key]]\nowner = \"ann\"\nkey = \"{ANN}\"\nadmin = true\n"),
    )
    .unwrap();
    let more = ["--device", "cpu", "--keys", keys.to_str().unwrap()];
    let server = Server::start_plain(&[&flags[..], &more].concat());
    let ask = |seed| {
        let body = json!({ "prompt": prompt(72, seed), "max_tokens": 1, "ignore_eos": true });
        cached(&server.complete(ANN, &body)["usage"])
    };
    // Each prompt leaves four pages, and needs five of the eight frames. Pages of earlier prompts move to
    // host memory, except those whose frames are needed at once.
    for seed in 1..=5 {
        assert_eq!(ask(seed), 0);
    }
    let pages = |tier| {
        let bytes = server.metric_as(ANN, &["djinn_prefix_cache_bytes{", tier]);
        bytes / PAGE_BYTES as f64
    };
    // A page with copies in two tiers counts in both.
    wait_until("every page is in a tier, or was evicted", async || {
        let [device, host] = ["tier=\"device\"", "tier=\"host\""].map(pages);
        let evicted = server.metric_as(ANN, &["djinn_prefix_evicted_pages_total{"]);
        host > 0.0 && (4.0..=8.0).contains(&device) && device + host + evicted >= 20.0
    })
    .await;
    assert_eq!(pages("tier=\"disk\""), 0.0);
    assert_eq!(ask(5), 64, "the last prompt is on the device");
}

#[test]
fn run_and_chat_print_cached_tokens() {
    let server = Server::start(&[]);
    let flags = ["--server", server.address.as_str()];
    let text = "Once upon a time there was a little girl named Lily. She loved to play outside in the \
                sunshine with her friend Tom. One day they went to the park";
    let run = ["run", "--max-tokens", "2", "--prompt", text];
    let json = || json_output(&[&run[..], &["--json"], &flags].concat());
    let [first, second] = [json(), json()];
    assert_eq!(first["cached_tokens"], 0);
    let count = first["prompt_ids"].as_array().unwrap().len();
    let expect = (count - 1) / PAGE * PAGE;
    assert!(expect > 0, "{first}");
    assert_eq!(second["cached_tokens"], expect);
    assert_eq!(first["output_ids"], second["output_ids"]);
    let summary = stderr(&ok(&[&run[..], &flags].concat()));
    let part = format!("({expect} tokens from the prefix cache)");
    assert!(summary.contains(&part), "{summary}");
    // A model in this process has computed nothing before.
    assert_eq!(
        json_output(&[&run[..], &["--json"]].concat())["cached_tokens"],
        0
    );
    assert!(!stderr(&ok(&run)).contains("prefix cache"));

    let chat = [&["chat", "--max-tokens", "2"][..], &flags].concat();
    let answer = common::output_of(&chat, &[text, "/tokens"]);
    let part = format!("; {expect} tokens before it came from the prefix cache");
    assert!(answer.contains(&part), "{answer}");
    let local = common::output_of(&chat[..3], &[text, "/tokens"]);
    assert!(local.contains("the last answer has 2"), "{local}");
    assert!(!local.contains("prefix cache"), "{local}");
}
