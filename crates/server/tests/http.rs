//! What OpenAI's clients see.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    io::{BufRead, BufReader, Write},
    net::Shutdown,
};

use common::{Server, folder, soon};
use serde_json::{Value, json};

const STORY: &str =
    ", there was a little girl named Lily. She loved to play outside in the sunshine. One day";

/// The data of a stream's events, and then the end.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let (status, text) = server.post_bytes(path, body.to_string().as_bytes(), None);
    assert_eq!(status, 200, "{text}");
    let mut data: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(data.pop(), Some("[DONE]"));
    data.iter()
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[test]
fn completions() {
    let server = Server::start();
    let ask = json!({ "model": "stories", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0 });
    let (status, told) = server.post("/v1/completions", &ask);
    assert_eq!(status, 200, "{told}");
    assert_eq!(told["choices"][0]["text"], STORY);
    assert_eq!(told["choices"][0]["finish_reason"], "length");
    assert_eq!(told["usage"]["completion_tokens"], 20);
    let pieces = events(&server, "/v1/completions", &ask);
    let text: String = pieces
        .iter()
        .map(|piece| piece["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, STORY);
    assert_eq!(
        pieces.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    // A stop string ends it, and is no part of it, even where it comes in pieces.
    let mut stop = ask.clone();
    stop["stop"] = json!(["named Lily"]);
    let (_, told) = server.post("/v1/completions", &stop);
    assert_eq!(told["choices"][0]["text"], ", there was a little girl ");
    assert_eq!(told["choices"][0]["finish_reason"], "stop");
    let text: String = events(&server, "/v1/completions", &stop)
        .iter()
        .map(|piece| piece["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, ", there was a little girl ");
    // Several prompts, several choices; the prompt again; ids.
    let (_, told) = server.post(
        "/v1/completions",
        &json!({ "prompt": ["Once upon a time", "One day"], "n": 2, "max_tokens": 3, "temperature": 1,
                 "seed": 7, "echo": true, "return_token_ids": true }),
    );
    let choices = told["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert!(
        choices[1]["text"]
            .as_str()
            .unwrap()
            .starts_with("Once upon a time")
    );
    assert!(choices[2]["text"].as_str().unwrap().starts_with("One day"));
    assert_eq!(choices[3]["token_ids"].as_array().unwrap().len(), 3);
    // The same seed gives the same text.
    let seeded = json!({ "prompt": "One day", "max_tokens": 8, "temperature": 1, "seed": 11 });
    let text = || server.post("/v1/completions", &seeded).1["choices"][0]["text"].clone();
    assert_eq!(text(), text());
    soon("nothing is left", || server.sessions() == 0.0);
}

#[test]
fn log_probabilities() {
    let server = Server::start();
    let ask =
        json!({ "prompt": "Once upon a time", "max_tokens": 3, "temperature": 0, "logprobs": 2 });
    let (_, told) = server.post("/v1/completions", &ask);
    let logprobs = &told["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!([",", " there", " was"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 7]));
    let chosen = logprobs["token_logprobs"][0].as_f64().unwrap();
    let top = logprobs["top_logprobs"][0].as_object().unwrap();
    assert_eq!(top.len(), 2);
    assert!((top[","].as_f64().unwrap() - chosen).abs() < 1e-9 && chosen < 0.0);
    let streamed: Vec<Value> = events(&server, "/v1/completions", &ask)
        .iter()
        .filter_map(|piece| piece["choices"][0]["logprobs"]["tokens"].get(0).cloned())
        .collect();
    assert_eq!(streamed, [",", " there", " was"]);
}

/// The story model with a template.
fn chatty() -> (tempfile::TempDir, djinn_server::ServedModel) {
    let home = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder("models/stories-7m")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), home.path().join(file.file_name())).unwrap();
    }
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}assistant:{% endif %}";
    std::fs::write(home.path().join("chat_template.jinja"), template).unwrap();
    let model = djinn_server::ServedModel {
        name: "stories".to_owned(),
        reference: home.path().to_string_lossy().into_owned(),
        layout: djinn_server::LoadOptions::default(),
    };
    (home, model)
}

#[test]
fn chats() {
    let (_home, model) = chatty();
    let server = Server::with(|config| config.models = vec![model]);
    let ask = json!({
        "model": "stories", "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 1,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Tell me " },
                                                    { "type": "text", "text": "a story." }] }],
    });
    let (status, told) = server.post("/v1/chat/completions", &ask);
    assert_eq!(status, 200, "{told}");
    let answer = told["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        told["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap()
            .len(),
        6
    );
    let plain =
        json!({ "prompt": "user:Tell me a story.\nassistant:", "max_tokens": 6, "temperature": 0 });
    let (_, same) = server.post("/v1/completions", &plain);
    assert_eq!(same["choices"][0]["text"], answer);
    let pieces = events(&server, "/v1/chat/completions", &ask);
    assert_eq!(pieces[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = pieces
        .iter()
        .filter_map(|piece| {
            piece["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(text, answer);
    // A session is told only what is new, and says the same as if it were told all.
    let turn = |messages: Value, session: Option<&Value>| {
        let mut ask = json!({ "messages": messages, "max_tokens": 6, "temperature": 0, "djinn": { "keep": true } });
        if let Some(session) = session {
            ask["djinn"]["session"] = session.clone();
        }
        server.post("/v1/chat/completions", &ask)
    };
    let user = |text: &str| json!({ "role": "user", "content": text });
    let (status, first) = turn(json!([user("Hello")]), None);
    assert_eq!(status, 200, "{first}");
    let said = &first["choices"][0]["message"]["content"];
    let so_far = json!([user("Hello"), { "role": "assistant", "content": said }, user("More")]);
    let (status, more) = turn(so_far.clone(), Some(&first["djinn"]["session"]));
    assert_eq!(status, 200, "{more}");
    let (status, told) = turn(
        json!([user("Something else")]),
        Some(&first["djinn"]["session"]),
    );
    assert_eq!(status, 409, "{told}");
}

#[test]
fn who_leaves_leaves_nothing() {
    let server = Server::start();
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": true, "stream": true,
                       "n": 4, "temperature": 1 });
    let body = body.to_string();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
    stream.shutdown(Shutdown::Both).unwrap();
    drop((stream, lines));
    soon("its sessions are gone", || server.sessions() == 0.0);
    let pages = "djinn_kv_pages{model=\"stories\",tier=\"device\"}";
    assert_eq!(server.metric(pages), 0.0);
    server.check_alive();
}

#[test]
fn what_only_djinn_does() {
    let server = Server::start();
    let ask = |djinn: Value| {
        let body = json!({ "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "djinn": djinn });
        server.post("/v1/completions", &body)
    };
    let (_, plain) = ask(json!({}));
    let (_, same) = ask(json!({ "edits": ["blocks.3.hook_resid_post:scale=1.0"] }));
    assert_eq!(plain["choices"], same["choices"]);
    let (_, other) = ask(json!({ "edits": ["blocks.3.hook_resid_post:zero"] }));
    assert_ne!(plain["choices"][0]["text"], other["choices"][0]["text"]);
    let width = 320;
    let (status, told) = ask(json!({ "steer": [{ "layer": 3, "vector": vec![0.0; width] }] }));
    let message = told["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 200 || message.contains("numbers a position"),
        "{told}"
    );
    let (_, read) = ask(json!({ "captures": ["blocks.2.hook_resid_post@-1"] }));
    let tensor = &read["djinn"]["captures"]["blocks.2.hook_resid_post"];
    assert_eq!(tensor["shape"][0], 1);
    // A session that is kept goes on with what it is told, as one that was told all at once.
    let (_, first) = ask(json!({ "keep": true }));
    let session = first["djinn"]["session"].as_str().unwrap();
    assert!(session.starts_with("stories:"), "{session}");
    let more = json!({ "prompt": " The end", "max_tokens": 4, "temperature": 0, "djinn": { "session": session } });
    let (status, told) = server.post("/v1/completions", &more);
    assert_eq!(status, 200, "{told}");
    let whole = format!(
        "Once upon a time{} The end",
        first["choices"][0]["text"].as_str().unwrap()
    );
    let (_, all) = server.post(
        "/v1/completions",
        &json!({ "prompt": whole, "max_tokens": 4, "temperature": 0 }),
    );
    assert_eq!(told["choices"][0]["text"], all["choices"][0]["text"]);
    let unknown = json!({ "prompt": "x", "djinn": { "session": "stories:999" } });
    assert_eq!(server.post("/v1/completions", &unknown).0, 404);
}

#[test]
fn what_is_not_done_is_refused_not_ignored() {
    let server = Server::start();
    let check = |body: Value, status: u16, why: &str| {
        let (found, told) = server.post("/v1/completions", &body);
        let message = told["error"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(
            found == status && message.contains(why),
            "{body}: {found} {told}"
        );
    };
    check(
        json!({ "prompt": "x", "model": "nobody" }),
        404,
        "there is no model 'nobody'",
    );
    check(
        json!({ "prompt": "x", "tools": [{}] }),
        400,
        "'tools' is not supported",
    );
    check(json!({ "prompt": "x", "suffix": "y" }), 400, "'suffix'");
    check(json!({ "prompt": "x", "banana": 1 }), 400, "'banana'");
    check(
        json!({ "prompt": "x", "echo": true, "logprobs": 1 }),
        400,
        "echo with logprobs",
    );
    check(
        json!({ "prompt": "x", "logprobs": 99 }),
        413,
        "20 alternatives",
    );
    check(
        json!({ "prompt": "x", "temperature": -1 }),
        400,
        "temperature",
    );
    check(json!({ "prompt": "x", "top_p": 0 }), 400, "top-p");
    check(json!({ "prompt": "x", "n": 0 }), 400, "n is at least 1");
    check(json!({ "prompt": "x", "n": 1000 }), 413, "1000 choices");
    check(json!({ "prompt": "x", "stop": [""] }), 400, "empty stop");
    check(json!({ "prompt": [] }), 400, "empty");
    check(
        json!({ "prompt": [4_000_000] }),
        400,
        "beyond the vocabulary",
    );
    check(json!({ "prompt": vec![5; 600] }), 400, "context");
    check(
        json!({ "prompt": "x", "logit_bias": { "x": 1 } }),
        400,
        "not a token id",
    );
    check(
        json!({ "prompt": "x", "djinn": { "edits": ["nowhere:zero"] } }),
        400,
        "unknown hook",
    );
    check(
        json!({ "prompt": "x", "djinn": { "edits": ["logits:add=/etc/passwd"] } }),
        400,
        "files are not read",
    );
    check(
        json!({ "prompt": "x", "djinn": { "captures": ["nowhere"] } }),
        400,
        "hook",
    );
    check(
        json!({ "prompt": "x", "max_tokens": 900 }),
        400,
        "positions",
    );
    check(
        json!({ "prompt": "x", "djinn": { "what": 1 } }),
        400,
        "unknown field",
    );
    check(json!({ "model": "stories" }), 400, "prompt");
    let chat = json!({ "messages": [{ "role": "user", "content": "x" }] });
    let (status, told) = server.post("/v1/chat/completions", &chat);
    assert_eq!(status, 400);
    assert!(
        told["error"]["message"]
            .as_str()
            .unwrap()
            .contains("no chat template")
    );
    // Harmless fields of OpenAI's clients are no reason to refuse.
    let harmless = json!({ "prompt": "x", "max_tokens": 1, "user": "me", "metadata": { "a": "b" }, "suffix": null });
    assert_eq!(server.post("/v1/completions", &harmless).0, 200);
    server.check_alive();
}

#[test]
fn machines_find_their_way() {
    let server = Server::start();
    assert_eq!(server.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    let (_, models) = server.get("/v1/models");
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["id"], "stories");
    assert!(
        models["data"][0]["djinn"]["routing"]
            .as_str()
            .unwrap()
            .contains("stay in memory")
    );
    assert_eq!(server.get("/v1/models/stories").0, 200);
    assert_eq!(server.get("/v1/models/nobody").0, 404);
    let (_, capabilities) = server.get("/v1/capabilities");
    let capabilities: Value = serde_json::from_str(&capabilities).unwrap();
    assert_eq!(capabilities["node"], "test");
    let (_, document) = server.get("/openapi.json");
    let document: Value = serde_json::from_str(&document).unwrap();
    assert!(document["paths"]["/v1/completions"]["post"].is_object());
    assert!(document["components"]["schemas"]["CompletionRequest"].is_object());
    assert_eq!(server.get("/nowhere").0, 404);
    assert_eq!(server.get("/v1/completions").0, 405);
    server.check_alive();
    assert!(server.metric("djinn_tokens_total{model=\"stories\"}") >= 4.0);
    assert!(server.metric("djinn_errors_total{kind=\"not-found\"}") >= 2.0);
}
