//! Lifetime of sessions on a server: kept, saved, forked, expired, and recovered after a restart.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::server::{Server, pause_location, wait_until};
use djinn_client::{Client, ErrorCode, Generate, Register, Resume, SessionHandle, TurnEnd};

const PROMPT: &str = "Tom had a red boat.";

/// Opens a kept session, and returns it with its generated tokens.
async fn kept_session(client: &Client, tokens: u64) -> (SessionHandle, Vec<u32>) {
    let request = client.model("").session().text(PROMPT).ignore_eos().keep();
    let events = request.max_tokens(tokens).open().await.unwrap();
    let session = events.session().clone();
    (session, events.collect().await.unwrap().tokens)
}

/// Continues a session and returns the new tokens.
async fn generate(session: &SessionHandle, tokens: u64) -> Vec<u32> {
    let request = Generate::new().max_tokens(tokens);
    let turn = session.generate(request).await.unwrap();
    turn.collect().await.unwrap().tokens
}

/// Follows a session from a token on, and returns its tokens and the end of the turn.
async fn follow(session: &SessionHandle, from: u64) -> (Vec<u32>, Option<TurnEnd>) {
    let turn = session.follow(from).await.unwrap().collect().await.unwrap();
    (turn.tokens, turn.end)
}

#[tokio::test]
async fn saved_loaded_and_forked_sessions_continue_with_the_same_tokens() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let (_, whole) = kept_session(&client, 30).await;
    let (session, first) = kept_session(&client, 12).await;
    assert_eq!(first, whole[..12]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("boat.djinn");
    session.save_to(&file).await.unwrap();
    let fork = session.fork(None).await.unwrap();
    let loaded = client.model("").load_from(&file).await.unwrap();
    let names = [session.name(), fork.name(), loaded.name()];
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
    for one in [&session, &fork, &loaded] {
        assert_eq!(generate(one, 18).await, whole[12..], "{}", one.name());
        assert_eq!(one.info().await.unwrap().generated, 30);
    }
    // Another server with the same model loads the file too.
    let other = Server::start(&[]);
    let elsewhere = other
        .client()
        .await
        .model("")
        .load_from(&file)
        .await
        .unwrap();
    assert_eq!(generate(&elsewhere, 18).await, whole[12..]);
    // New text continues the forked session.
    let request = Generate::new().text(" The boat").max_tokens(6);
    let turn = fork
        .generate(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert!(turn.opened.prompt_tokens > 0 && turn.opened.generated == 30);
    assert_eq!(turn.tokens.len(), 6);
    for one in [session, fork, loaded] {
        one.delete().await.unwrap();
        assert_eq!(one.info().await.unwrap_err().code(), ErrorCode::NotFound);
    }
    let broken = client.model("").load(b"no session".to_vec()).await;
    assert_eq!(broken.unwrap_err().code(), ErrorCode::Invalid);
}

#[tokio::test]
async fn a_session_announced_as_waiting_and_resuming_continues_with_the_same_tokens() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let (_, whole) = kept_session(&client, 30).await;
    let (session, _) = kept_session(&client, 12).await;
    session
        .waiting(Some(Duration::from_secs(60)))
        .await
        .unwrap();
    session.resuming().await.unwrap();
    session.renew().await.unwrap();
    assert_eq!(generate(&session, 18).await, whole[12..]);
}

#[tokio::test]
async fn a_client_follows_its_session_again_after_a_lost_connection() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let (_, whole) = kept_session(&client, 60).await;
    let request = client.model("").session().text(PROMPT).ignore_eos().keep();
    let mut events = request.max_tokens(60).open().await.unwrap();
    let session = events.session().clone();
    events.next().await.unwrap();
    drop(events);
    let again = server.client().await.session(session.name());
    let (tokens, end) = follow(&again, 0).await;
    assert_eq!(tokens, whole);
    assert!(
        matches!(end, Some(TurnEnd::Finished(end)) if end.kept),
        "the session is kept"
    );
    let (tokens, _) = follow(&again, 50).await;
    assert_eq!(tokens, whole[50..]);
}

#[tokio::test]
async fn an_expired_lease_releases_the_memory_of_its_session() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let request = client
        .model("")
        .session()
        .text(PROMPT)
        .max_tokens(20)
        .keep();
    let events = request.lease(Duration::from_secs(10)).open().await.unwrap();
    let session = events.session().clone();
    events.collect().await.unwrap();
    let held = |tier: &str| server.metric(&["djinn_kv_pages{", &format!("tier=\"{tier}\"")]);
    let pages = || ["device", "host", "disk"].map(held).iter().sum::<f64>();
    assert!(pages() > 0.0);
    wait_until("expiry of the session", async || {
        // `info` would renew the lease.
        client.sessions(None).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(
        session.info().await.unwrap_err().code(),
        ErrorCode::NotFound
    );
    assert_eq!(pages(), 0.0);
    let status = client
        .watch(Duration::from_secs(1))
        .await
        .unwrap()
        .next()
        .await;
    let status = status.unwrap();
    let model = &status.models[0];
    let tiers = [model.device, model.host, model.disk];
    assert!(tiers.into_iter().flatten().all(|tier| tier.used == 0));
    assert!(model.sessions.values().all(|&count| count == 0));
}

/// Checks that kept and paused sessions continue with the same tokens after the server ends and restarts.
async fn sessions_survive_a_restart(end: fn(Server)) {
    let folder = tempfile::tempdir().unwrap();
    let state = ["--state", folder.path().to_str().unwrap()];
    let server = Server::start(&state);
    let client = server.client().await;
    let (_, whole) = kept_session(&client, 30).await;
    let (session, first) = kept_session(&client, 12).await;
    let request = client.model("").session().text(PROMPT).ignore_eos().keep();
    let request = request
        .max_tokens(30)
        .breakpoint("blocks.3.hook_resid_post,step=5");
    let events = request.open().await.unwrap();
    let paused = events.session().clone();
    let before = events.collect().await.unwrap();
    assert_eq!(before.tokens, whole[..5]);
    let activation = paused.activation("", "").await.unwrap();
    end(server);
    let gone = session.info().await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::Unavailable, "{gone}");

    let server = Server::start(&state);
    let client = server.client().await;
    let session = client.session(session.name());
    let (tokens, _) = follow(&session, 0).await;
    assert_eq!(tokens, first);
    assert_eq!(generate(&session, 18).await, whole[12..]);
    // A session paused at a hook returns to it with the same activation, and continues.
    let paused = client.session(paused.name());
    let recalled = paused.recall().await.unwrap().collect().await.unwrap();
    assert_eq!(
        pause_location(recalled.paused()),
        pause_location(before.paused())
    );
    assert_eq!(paused.activation("", "").await.unwrap(), activation);
    let rest = paused.resume(Resume::new()).await.unwrap();
    assert_eq!(rest.collect().await.unwrap().tokens, whole[5..]);
}

#[tokio::test]
async fn sessions_survive_a_terminated_server() {
    sessions_survive_a_restart(|server| assert!(server.terminate().success())).await;
}

#[tokio::test]
async fn sessions_survive_a_killed_server() {
    sessions_survive_a_restart(Server::kill).await;
}

#[tokio::test]
async fn an_interrupted_turn_continues_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let state = ["--state", folder.path().to_str().unwrap()];
    let server = Server::start(&state);
    let client = server.client().await;
    let (_, whole) = kept_session(&client, 300).await;
    let request = client.model("").session().text(PROMPT).ignore_eos().keep();
    let mut events = request.max_tokens(300).open().await.unwrap();
    let session = events.session().clone();
    events.next().await.unwrap();
    server.kill();
    let error = loop {
        match events.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the turn ended before the server was killed"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
    let server = Server::start(&state);
    let session = server.client().await.session(session.name());
    let (tokens, end) = follow(&session, 0).await;
    assert_eq!(tokens, whole);
    assert!(matches!(end, Some(TurnEnd::Finished(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_listed_while_models_load_and_unload() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let loading = async {
        for _ in 0..20 {
            // The request loads the model again; registering the next model may evict it.
            let request = client.model("stories-7m").session().text(PROMPT);
            let events = request.max_tokens(1).open().await.unwrap();
            events.collect().await.unwrap();
            let other = Register::new("shape:gpt2?layers=1").name("other");
            client.register(other, |_| {}).await.unwrap();
            client.model("other").unload(true, true).await.unwrap();
        }
    };
    let list = async || {
        let client = server.client().await;
        loop {
            client.sessions(None).await.unwrap();
        }
    };
    let listing = async { tokio::join!(list(), list(), list(), list()) };
    tokio::select! {
        () = loading => {}
        _ = listing => {}
    }
}
