//! A server with elastic memory: weights yield under load and return, and clients notice nothing.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{json_output, server::Server, server::within};
use serde_json::{Value, json};

/// Flags of both servers. Sixteen sessions of this length need 240 KV pages.
const FLAGS: [&str; 10] = [
    "--device",
    "cpu",
    "--context",
    "256",
    "--batch",
    "16",
    "--sessions",
    "32",
    "--rows",
    "64",
];
/// Memory in which 33 KV pages fit beside all weights, and 216 if weights yield.
const SCARCE: [&str; 4] = ["--memory", "22MB", "--elastic", "on"];
/// Numbers of sessions that run together, one request after the other.
const LOADS: [usize; 5] = [1, 4, 16, 4, 1];

/// Request for `count` sessions that run together.
fn request(count: usize) -> Value {
    let prompts: Vec<Vec<usize>> = (0..count)
        .map(|session| {
            (0..40 + session)
                .map(|i| 5 + (i * 37 + session * 11) % 2000)
                .collect()
        })
        .collect();
    json!({
        "prompt": prompts, "max_tokens": 180, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    })
}

/// Texts and tokens of all sessions of a request.
fn answers(server: &Server, count: usize) -> Vec<(String, Value)> {
    let answer = server.complete("", &request(count));
    assert_eq!(answer["usage"]["completion_tokens"], 180 * count);
    let choices = answer["choices"].as_array().unwrap().iter();
    let answer = |choice: &Value| {
        let text = choice["text"].as_str().unwrap().to_owned();
        (text, choice["token_ids"].clone())
    };
    choices.map(answer).collect()
}

/// The model as `djinn top --json` prints it.
fn top(server: &Server) -> Value {
    let args = [
        "top",
        "--json",
        "--every",
        "0.2",
        "--server",
        &server.address,
    ];
    json_output(&args)["models"][0].take()
}

fn resident_of_top(model: &Value) -> f64 {
    model["bytes"]["resident"].as_f64().unwrap()
}

/// Reads the state of the server while `count` sessions run. The load is repeated until the reading is done.
fn while_running<T>(
    server: &Server,
    count: usize,
    expect: &[(String, Value)],
    read: impl FnOnce() -> T,
) -> T {
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            loop {
                assert!(answers(server, count) == expect, "{count} sessions");
                if is_read.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let value = read();
        is_read.store(true, Ordering::SeqCst);
        load.join().unwrap();
        value
    })
}

#[test]
fn weights_yield_to_many_sessions_and_return() {
    let fixed = Server::start_plain(&[&FLAGS[..], &["--memory", "600MB"]].concat());
    let expect: BTreeMap<usize, _> = LOADS.map(|count| (count, answers(&fixed, count))).into();
    assert_eq!(fixed.metric(&["djinn_memory_switches_total{"]), 0.0);
    drop(fixed);

    let server = Server::start_plain(&[&FLAGS[..], &SCARCE].concat());
    let resident = || server.metric(&["djinn_resident_bytes{"]);
    let switches = || server.metric(&["djinn_memory_switches_total{"]);
    let frames = || server.metric(&["djinn_kv_pages_room{", "tier=\"device\""]);
    let (all_resident, least_frames) = (resident(), frames());
    assert_eq!(switches(), 0.0);
    let idle = top(&server);
    assert_eq!(resident_of_top(&idle), all_resident);
    for _ in 0..2 {
        let before = switches();
        let mut yielded = before;
        for count in LOADS {
            let expect = &expect[&count];
            if count < 16 {
                assert!(answers(&server, count) == *expect, "{count} sessions");
                continue;
            }
            let loaded = while_running(&server, count, expect, || {
                within("weights yield", || resident() < all_resident);
                within("there are more frames", || frames() > least_frames);
                let mut loaded = top(&server);
                within("top shows that weights yield", || {
                    loaded = top(&server);
                    resident_of_top(&loaded) < all_resident
                });
                loaded
            });
            yielded = switches();
            assert!(yielded > before, "{yielded} switches");
            let kv = |model: &Value| model["bytes"]["kv"].as_f64().unwrap();
            assert!(kv(&loaded) > kv(&idle), "{loaded}");
            let streamed = loaded["bytes"]["streamed"].as_f64().unwrap();
            assert!(streamed > 0.0, "{loaded}");
        }
        within("the weights return", || resident() == all_resident);
        within("the frames return", || frames() == least_frames);
        assert!(switches() > yielded, "the return is counted");
        assert_eq!(top(&server)["bytes"], idle["bytes"]);
    }
    assert_eq!(server.metric(&["djinn_passes_failed_total{"]), 0.0);
}
