//! A server with a state folder that starts again, as operators run it: requests reuse the prompts that the
//! server before it computed.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::server::Server;
use serde_json::{Value, json};

const PROMPT: usize = 100;

/// Answer of a server with this state folder to the same prompt: the text, and the number of tokens that it
/// did not compute.
fn complete(server: &Server) -> (String, u64) {
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|at| 5 + at * 7 % 400).collect();
    let body = json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0 });
    let answer = server.post("/v1/completions", &body.to_string());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(body).unwrap();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    let text = answer["choices"][0]["text"].as_str().unwrap();
    (text.to_owned(), cached.as_u64().unwrap())
}

#[test]
fn a_server_reuses_the_prompts_of_the_server_before_it() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let start = |more: &[&str]| Server::start(&[&["--state", folder], more].concat());
    let server = start(&[]);
    let (text, cached) = complete(&server);
    assert_eq!(cached, 0);
    assert!(server.terminate().success());

    let server = start(&[]);
    assert_eq!(complete(&server), (text.clone(), 96));
    // A killed server leaves the file as it was.
    server.kill();
    let server = start(&[]);
    assert_eq!(complete(&server), (text.clone(), 96));
    assert!(server.terminate().success());

    let server = start(&["--kv-dtype", "f32"]);
    assert_eq!(complete(&server).1, 0, "other keys and values");
    assert!(server.terminate().success());
    let server = start(&["--saved-prefixes", "off"]);
    assert_eq!(complete(&server).1, 0);
}
