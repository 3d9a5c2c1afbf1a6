//! Tests of the HTTP interface as OpenAI's clients use it.

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

/// Posts a streaming request and returns the data of its events, without the end mark.
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
    let (status, reply) = server.post("/v1/completions", &ask);
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["choices"][0]["text"], STORY);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], 20);
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
    // A stop string ends the text and is not part of it, even if it spans several tokens.
    let mut stop = ask.clone();
    stop["stop"] = json!(["named Lily"]);
    let (_, reply) = server.post("/v1/completions", &stop);
    assert_eq!(reply["choices"][0]["text"], ", there was a little girl ");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let text: String = events(&server, "/v1/completions", &stop)
        .iter()
        .map(|piece| piece["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, ", there was a little girl ");
    // Several prompts and choices, with echo and token ids.
    let (_, reply) = server.post(
        "/v1/completions",
        &json!({ "prompt": ["Once upon a time", "One day"], "n": 2, "max_tokens": 3, "temperature": 1,
                 "seed": 7, "echo": true, "return_token_ids": true }),
    );
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert!(
        choices[1]["text"]
            .as_str()
            .unwrap()
            .starts_with("Once upon a time")
    );
    assert!(choices[2]["text"].as_str().unwrap().starts_with("One day"));
    assert_eq!(choices[3]["token_ids"].as_array().unwrap().len(), 3);
    // Equal seeds give equal texts.
    let seeded = json!({ "prompt": "One day", "max_tokens": 8, "temperature": 1, "seed": 11 });
    let text = || server.post("/v1/completions", &seeded).1["choices"][0]["text"].clone();
    assert_eq!(text(), text());
    soon("no session is left", || server.sessions() == 0.0);
}

#[test]
fn log_probabilities() {
    let server = Server::start();
    let ask =
        json!({ "prompt": "Once upon a time", "max_tokens": 3, "temperature": 0, "logprobs": 2 });
    let (_, reply) = server.post("/v1/completions", &ask);
    let logprobs = &reply["choices"][0]["logprobs"];
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

/// Copy of the story model with a chat template.
fn with_chat_template() -> (tempfile::TempDir, djinn_server::ServedModel) {
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
    let (_home, model) = with_chat_template();
    let server = Server::with(|config| config.models = vec![model]);
    let ask = json!({
        "model": "stories", "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 1,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Tell me " },
                                                    { "type": "text", "text": "a story." }] }],
    });
    let (status, reply) = server.post("/v1/chat/completions", &ask);
    assert_eq!(status, 200, "{reply}");
    let answer = reply["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        reply["choices"][0]["logprobs"]["content"]
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
    // A kept session receives only the new messages, and answers as if it had received all.
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
    let (status, reply) = turn(
        json!([user("Something else")]),
        Some(&first["djinn"]["session"]),
    );
    assert_eq!(status, 409, "{reply}");
}

#[test]
fn a_disconnected_client_leaves_no_session() {
    let server = Server::start();
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": true, "stream": true,
                       "n": 4, "temperature": 1 });
    let body = body.to_string();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
    stream.shutdown(Shutdown::Both).unwrap();
    drop((stream, lines));
    soon("the sessions ended", || server.sessions() == 0.0);
    let pages = "djinn_kv_pages{model=\"stories\",tier=\"device\"}";
    assert_eq!(server.metric(pages), 0.0);
    server.check_alive();
}

#[test]
fn edits_captures_and_kept_sessions() {
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
    let (status, reply) = ask(json!({ "steer": [{ "layer": 3, "vector": vec![0.0; width] }] }));
    assert_eq!(
        (status, &reply["error"]["code"]),
        (400, &json!("invalid")),
        "the model is 256 wide, not {width}: {reply}"
    );
    let (_, read) = ask(json!({ "captures": ["blocks.2.hook_resid_post@-1"] }));
    let tensor = &read["djinn"]["captures"]["blocks.2.hook_resid_post"];
    assert_eq!(tensor["shape"][0], 1);
    // A kept session continues as if it had received the whole text at once.
    let (_, first) = ask(json!({ "keep": true }));
    let session = first["djinn"]["session"].as_str().unwrap();
    assert!(session.starts_with("stories:"), "{session}");
    let more = json!({ "prompt": " The end", "max_tokens": 4, "temperature": 0, "djinn": { "session": session } });
    let (status, reply) = server.post("/v1/completions", &more);
    assert_eq!(status, 200, "{reply}");
    let whole = format!(
        "Once upon a time{} The end",
        first["choices"][0]["text"].as_str().unwrap()
    );
    let (_, all) = server.post(
        "/v1/completions",
        &json!({ "prompt": whole, "max_tokens": 4, "temperature": 0 }),
    );
    assert_eq!(reply["choices"][0]["text"], all["choices"][0]["text"]);
    let unknown = json!({ "prompt": "x", "djinn": { "session": "stories:999" } });
    assert_eq!(server.post("/v1/completions", &unknown).0, 404);
}

#[test]
fn unsupported_and_invalid_fields_are_rejected_by_code() {
    let server = Server::start();
    let check = |body: Value, status: u16, code: &str| {
        let (found, reply) = server.post("/v1/completions", &body);
        assert_eq!(
            (found, reply["error"]["code"].as_str()),
            (status, Some(code)),
            "{body}: {reply}"
        );
    };
    let x = |field: &str, value: Value| json!({ "prompt": "x", field: value });
    check(x("model", json!("missing")), 404, "not_found");
    check(x("tools", json!([{}])), 400, "unsupported");
    check(x("suffix", json!("y")), 400, "unsupported");
    check(x("banana", json!(1)), 400, "unsupported");
    check(
        json!({ "prompt": "x", "echo": true, "logprobs": 1 }),
        400,
        "unsupported",
    );
    check(x("logprobs", json!(99)), 400, "invalid");
    check(x("temperature", json!(-1)), 400, "invalid");
    check(x("top_p", json!(0)), 400, "invalid");
    check(x("n", json!(0)), 400, "invalid");
    check(x("n", json!(1000)), 400, "invalid");
    check(x("stop", json!([""])), 400, "invalid");
    check(json!({ "prompt": [] }), 400, "invalid");
    check(json!({ "prompt": [4_000_000] }), 400, "invalid");
    let length = "context_length_exceeded";
    check(json!({ "prompt": vec![5; 600] }), 400, length);
    check(x("logit_bias", json!({ "x": 1 })), 400, "invalid");
    check(x("max_tokens", json!(900)), 400, length);
    check(json!({ "model": "stories" }), 400, "invalid");
    for djinn in [
        json!({ "edits": ["nowhere:zero"] }),
        json!({ "edits": ["logits:add=/etc/passwd"] }),
        json!({ "captures": ["nowhere"] }),
        json!({ "what": 1 }),
    ] {
        check(x("djinn", djinn), 400, "invalid");
    }
    for (body, field) in [
        (x("tools", json!([1])), "tools"),
        (x("n", json!(0)), "n"),
        (x("top_p", json!(0)), "top_p"),
        (x("logit_bias", json!({ "x": 1 })), "logit_bias"),
        (x("logprobs", json!(99)), "logprobs"),
        (
            x("djinn", json!({ "edits": ["logits:add=/etc/passwd"] })),
            "djinn.edits",
        ),
    ] {
        let (_, reply) = server.post("/v1/completions", &body);
        assert_eq!(reply["error"]["param"], field, "{reply}");
    }
    // The story model has no chat template.
    let chat = json!({ "messages": [{ "role": "user", "content": "x" }] });
    let (status, reply) = server.post("/v1/chat/completions", &chat);
    assert_eq!(
        (status, &reply["error"]["code"]),
        (400, &json!("invalid")),
        "{reply}"
    );
    // Fields without effect on the answer are accepted.
    let harmless = json!({ "prompt": "x", "max_tokens": 1, "user": "me", "metadata": { "a": "b" }, "suffix": null });
    assert_eq!(server.post("/v1/completions", &harmless).0, 200);
    server.check_alive();
}

#[test]
fn health_models_capabilities_openapi_and_metrics() {
    let server = Server::start();
    assert_eq!(server.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    let (_, models) = server.get("/v1/models");
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["id"], "stories");
    assert_eq!(models["data"][0]["djinn"]["state"], "ready");
    assert_eq!(server.get("/v1/models/stories").0, 200);
    assert_eq!(server.get("/v1/models/missing").0, 404);
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
    // An error counts when its answer has been sent.
    soon("the errors are counted", || {
        server.metric("djinn_errors_total{kind=\"not-found\"}") >= 2.0
    });
}
