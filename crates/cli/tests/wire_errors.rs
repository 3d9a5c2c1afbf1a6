//! Errors of a server: their codes, and the names and numbers that they quote.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::server::Server;
use djinn_client::{
    Client, Create, Error, ErrorCode, Generate, HookEdit, Options, Register, Resume, TensorData,
};

const HOOK: &str = "blocks.3.hook_resid_post";

/// Opens a session and returns the error.
async fn refused(request: Create) -> Error {
    request.open().await.map(drop).unwrap_err()
}

/// Checks the code of an error, and the names and numbers that it quotes.
fn check(error: &Error, code: ErrorCode, quoted: &[&str]) {
    assert_eq!(error.code(), code, "{error}");
    let message = error.to_string();
    for part in quoted {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}

#[tokio::test]
async fn invalid_requests_are_refused_with_the_reason() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let request = || client.model("").session().text("The cat").max_tokens(4);
    let row = |data: Vec<f32>| TensorData::row(data);
    for (request, words) in [
        (
            request().capture("blocks.99.hook_resid_post"),
            vec!["blocks.99.hook_resid_post"],
        ),
        (
            request().edit(HookEdit::scale("blocks.3.hook_nothing", 0.5)),
            vec!["hook_nothing"],
        ),
        (
            request().edit(HookEdit::replace(HOOK, &row(vec![0.5; 7]))),
            vec!["[7]", "256"],
        ),
        (
            request().edit(HookEdit::add(HOOK, &row(vec![f32::NAN; 256]), 1.0)),
            vec![HOOK],
        ),
        (
            request().edit(HookEdit::scale(HOOK, f32::INFINITY)),
            vec![HOOK],
        ),
        (
            request().edit(HookEdit::text(format!("{HOOK}:add=/etc/x.safetensors"))),
            vec!["files"],
        ),
        (
            request().breakpoint("blocks.0.attn.hook_pattern"),
            vec!["hook_pattern"],
        ),
        (request().tokens(vec![4_000_000]), vec!["4000000"]),
        (request().text("boat ".repeat(2000)), vec!["512"]),
        (request().stop(""), vec!["stop"]),
    ] {
        check(&refused(request).await, ErrorCode::Invalid, &words);
    }
    let missing = client.model("unknown").session().text("x");
    check(
        &refused(missing).await,
        ErrorCode::NotFound,
        &["unknown", "stories-7m"],
    );
    let register = client.register(Register::new("/etc"), |_| {}).await;
    check(
        &register.unwrap_err(),
        ErrorCode::NotFound,
        &["/etc", "--model-dir"],
    );
    let hooks = client.model("").hooks("nothing.*").await;
    check(&hooks.unwrap_err(), ErrorCode::Invalid, &["nothing.*"]);
    // A refused request leaves no session behind.
    assert!(client.sessions(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_session_refuses_calls_that_its_state_does_not_allow() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let request = || {
        client
            .model("")
            .session()
            .text("The cat")
            .max_tokens(4)
            .keep()
    };
    let events = request().open().await.unwrap();
    let waiting = events.session().clone();
    events.collect().await.unwrap();
    let resumed = waiting.resume(Resume::new()).await.map(drop);
    check(&resumed.unwrap_err(), ErrorCode::Conflict, &[]);
    let read = waiting.activation("", "").await;
    check(&read.unwrap_err(), ErrorCode::Conflict, &[]);
    let branched = waiting.branch(1).await.map(drop);
    check(&branched.unwrap_err(), ErrorCode::Conflict, &[]);

    let events = request().breakpoint(HOOK).open().await.unwrap();
    let paused = events.session().clone();
    events.collect().await.unwrap();
    let more = paused.generate(Generate::new()).await.map(drop);
    check(&more.unwrap_err(), ErrorCode::Conflict, &[]);
    // An invalid edit is refused, and the session stays paused.
    let short = Resume::new().edit(HookEdit::replace(HOOK, &TensorData::row(vec![1.0; 3])));
    let resumed = paused.resume(short).await.map(drop);
    check(&resumed.unwrap_err(), ErrorCode::Invalid, &["[3]"]);
    let elsewhere = Resume::new().edit(HookEdit::scale("blocks.5.hook_resid_post", 2.0));
    let resumed = paused.resume(elsewhere).await.map(drop);
    check(
        &resumed.unwrap_err(),
        ErrorCode::Invalid,
        &["blocks.5.hook_resid_post"],
    );
    let beyond = paused.activation("[0..9999]", "-1").await;
    check(&beyond.unwrap_err(), ErrorCode::Invalid, &[]);
    assert_eq!(paused.info().await.unwrap().state, "paused");
    let many = paused.branch(100_000).await.map(drop);
    check(&many.unwrap_err(), ErrorCode::Invalid, &["100000"]);
    for name in ["stories-7m:9999", "unknown:0", "stories-7m:x", "", ":"] {
        let found = client.session(name).info().await;
        check(&found.unwrap_err(), ErrorCode::NotFound, &["session"]);
    }
    // A second follower replaces the first.
    let request = request().ignore_eos().max_tokens(400);
    let mut first = request.open().await.unwrap();
    let second = first.session().follow(0).await.unwrap();
    let replaced = loop {
        match first.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the turn ended before the second follower replaced the first"),
            Err(error) => break error,
        }
    };
    check(&replaced, ErrorCode::Replaced, &[]);
    assert_eq!(second.collect().await.unwrap().tokens.len(), 400);
}

#[tokio::test]
async fn a_key_gives_access_only_to_the_sessions_of_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let (ann, bob) = ("ann-has-a-long-key", "bob-has-a-long-key-too");
    let table = format!(
        "[[key]]\nowner = \"ann\"\nkey = \"{ann}\"\nadmin = true\n\n\
         [[key]]\nowner = \"bob\"\nkey = \"{bob}\"\n"
    );
    std::fs::write(&keys, table).unwrap();
    let server = Server::start(&["--keys", keys.to_str().unwrap()]);
    let (anns, bobs) = (server.client_with(ann).await, server.client_with(bob).await);
    assert_eq!(anns.capabilities().await.unwrap().owner, "ann");

    for client in [
        server.client().await,
        server.client_with("an-unknown-key").await,
    ] {
        let error = client.models().await.map(drop).unwrap_err();
        check(&error, ErrorCode::Unauthenticated, &["key"]);
        let error = refused(client.model("").session().text("x")).await;
        check(&error, ErrorCode::Unauthenticated, &["key"]);
    }

    let request = anns
        .model("")
        .session()
        .text("The cat")
        .max_tokens(4)
        .keep();
    let events = request.breakpoint(HOOK).open().await.unwrap();
    let session = events.session().clone();
    events.collect().await.unwrap();
    assert_eq!(anns.sessions(None).await.unwrap().len(), 1);
    assert!(bobs.sessions(None).await.unwrap().is_empty());
    let bobs_view = bobs.session(session.name());
    let attempts = [
        bobs_view.info().await.map(drop),
        bobs_view.follow(0).await.map(drop),
        bobs_view.activation("", "").await.map(drop),
        bobs_view.resume(Resume::new()).await.map(drop),
        bobs_view.branch(1).await.map(drop),
        bobs_view.set_breakpoints([HOOK]).await,
        bobs_view.fork(None).await.map(drop),
        bobs_view.save().await.map(drop),
        bobs_view.renew().await.map(drop),
        bobs_view.delete().await,
    ];
    for (number, attempt) in attempts.into_iter().enumerate() {
        let error = attempt.unwrap_err();
        assert_eq!(
            error.code(),
            ErrorCode::NotFound,
            "attempt {number}: {error}"
        );
    }
    assert_eq!(session.info().await.unwrap().state, "paused");
    let unload = bobs.model("stories-7m").unload(true, true).await;
    check(&unload.unwrap_err(), ErrorCode::Forbidden, &["bob"]);
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    let unreachable = Client::connect("127.0.0.1:1", Options::default()).await;
    check(
        &unreachable.unwrap_err(),
        ErrorCode::Unavailable,
        &["127.0.0.1:1"],
    );
    let no_host = Client::connect("http://", Options::default()).await;
    check(&no_host.unwrap_err(), ErrorCode::Local, &[]);
    let key = Options {
        key: Some("two\nlines".to_owned()),
        ..Options::default()
    };
    let invalid_key = Client::connect("127.0.0.1:1", key).await;
    check(&invalid_key.unwrap_err(), ErrorCode::Local, &["key"]);
}
