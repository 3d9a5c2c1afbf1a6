//! Sessions over the wire: kept, saved, forked, let go, and found again after the server was not there.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::server::{Server, place, until};
use djinn_client::{Client, ErrorCode, Generate, Register, Resume, SessionHandle, TurnEnd};

const PROMPT: &str = "Tom had a red boat.";

/// A session that is kept after so many tokens.
async fn kept(client: &Client, tokens: u64) -> (SessionHandle, Vec<u32>) {
    let asked = client.model("").session().text(PROMPT).ignore_eos().keep();
    let events = asked.max_tokens(tokens).open().await.unwrap();
    let session = events.session().clone();
    (session, events.collect().await.unwrap().tokens)
}

async fn more(session: &SessionHandle, tokens: u64) -> Vec<u32> {
    let asked = Generate::new().max_tokens(tokens);
    let turn = session.generate(asked).await.unwrap();
    turn.collect().await.unwrap().tokens
}

async fn followed(session: &SessionHandle, from: u64) -> (Vec<u32>, Option<TurnEnd>) {
    let turn = session.follow(from).await.unwrap().collect().await.unwrap();
    (turn.tokens, turn.end)
}

#[tokio::test]
async fn saved_loaded_and_forked_sessions_go_on_alike() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let (_, whole) = kept(&client, 30).await;
    let (session, first) = kept(&client, 12).await;
    assert_eq!(first, whole[..12]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("boat.djinn");
    session.save_to(&file).await.unwrap();
    let fork = session.fork(None).await.unwrap();
    let loaded = client.model("").load_from(&file).await.unwrap();
    let names = [session.name(), fork.name(), loaded.name()];
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
    for one in [&session, &fork, &loaded] {
        assert_eq!(more(one, 18).await, whole[12..], "{}", one.name());
        assert_eq!(one.info().await.unwrap().generated, 30);
    }
    // By another server too, which knows it by the model alone.
    let other = Server::start(&[]);
    let elsewhere = other
        .client()
        .await
        .model("")
        .load_from(&file)
        .await
        .unwrap();
    assert_eq!(more(&elsewhere, 18).await, whole[12..]);
    // What is told is as if it had been there from the beginning.
    let told = Generate::new().text(" The boat").max_tokens(6);
    let turn = fork.generate(told).await.unwrap().collect().await.unwrap();
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
async fn pages_go_and_come_back_with_their_owner() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let (_, whole) = kept(&client, 30).await;
    let (session, _) = kept(&client, 12).await;
    session
        .waiting(Some(Duration::from_secs(60)))
        .await
        .unwrap();
    session.resuming().await.unwrap();
    session.renew().await.unwrap();
    assert_eq!(more(&session, 18).await, whole[12..]);
}

#[tokio::test]
async fn who_lost_the_connection_follows_again() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let (_, whole) = kept(&client, 60).await;
    let asked = client.model("").session().text(PROMPT).ignore_eos().keep();
    let mut events = asked.max_tokens(60).open().await.unwrap();
    let session = events.session().clone();
    events.next().await.unwrap();
    drop(events);
    let again = server.client().await.session(session.name());
    let (tokens, end) = followed(&again, 0).await;
    assert_eq!(tokens, whole);
    assert!(
        matches!(end, Some(TurnEnd::Finished(end)) if end.kept),
        "it waits for more"
    );
    let (tokens, _) = followed(&again, 50).await;
    assert_eq!(tokens, whole[50..]);
}

#[tokio::test]
async fn a_lease_that_runs_out_gives_its_memory_back() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let asked = client
        .model("")
        .session()
        .text(PROMPT)
        .max_tokens(20)
        .keep();
    let events = asked.lease(Duration::from_secs(10)).open().await.unwrap();
    let session = events.session().clone();
    events.collect().await.unwrap();
    let held = |tier: &str| server.metric(&["djinn_kv_pages{", &format!("tier=\"{tier}\"")]);
    let pages = || ["device", "host", "disk"].map(held).iter().sum::<f64>();
    assert!(pages() > 0.0);
    until("the session is gone", async || {
        // Asking for it would renew it.
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

/// A server that is gone in some way, and back: sessions go on as if nothing had been.
async fn comes_back(end: fn(Server)) {
    let folder = tempfile::tempdir().unwrap();
    let state = ["--state", folder.path().to_str().unwrap()];
    let server = Server::start(&state);
    let client = server.client().await;
    let (_, whole) = kept(&client, 30).await;
    let (session, first) = kept(&client, 12).await;
    let asked = client.model("").session().text(PROMPT).ignore_eos().keep();
    let asked = asked
        .max_tokens(30)
        .breakpoint("blocks.3.hook_resid_post,step=5");
    let events = asked.open().await.unwrap();
    let stopped = events.session().clone();
    let before = events.collect().await.unwrap();
    assert_eq!(before.tokens, whole[..5]);
    let here = stopped.activation("", "").await.unwrap();
    end(server);
    let gone = session.info().await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::Unavailable, "{gone}");

    let server = Server::start(&state);
    let client = server.client().await;
    let session = client.session(session.name());
    let (tokens, _) = followed(&session, 0).await;
    assert_eq!(tokens, first);
    assert_eq!(more(&session, 18).await, whole[12..]);
    // One that stood at a hook is brought there again, to the bit, and goes on.
    let stopped = client.session(stopped.name());
    let recalled = stopped.recall().await.unwrap().collect().await.unwrap();
    assert_eq!(place(recalled.paused()), place(before.paused()));
    assert_eq!(stopped.activation("", "").await.unwrap(), here);
    let rest = stopped.resume(Resume::new()).await.unwrap();
    assert_eq!(rest.collect().await.unwrap().tokens, whole[5..]);
}

#[tokio::test]
async fn sessions_outlive_a_server_that_is_told_to_end() {
    comes_back(|server| assert!(server.terminate().success())).await;
}

#[tokio::test]
async fn sessions_outlive_a_server_that_is_killed() {
    comes_back(Server::kill).await;
}

#[tokio::test]
async fn a_turn_that_was_cut_off_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let state = ["--state", folder.path().to_str().unwrap()];
    let server = Server::start(&state);
    let client = server.client().await;
    let (_, whole) = kept(&client, 300).await;
    let asked = client.model("").session().text(PROMPT).ignore_eos().keep();
    let mut events = asked.max_tokens(300).open().await.unwrap();
    let session = events.session().clone();
    events.next().await.unwrap();
    server.kill();
    let broke = loop {
        match events.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it came to its end before the server did"),
            Err(error) => break error,
        }
    };
    assert_eq!(broke.code(), ErrorCode::Unavailable, "{broke}");
    let server = Server::start(&state);
    let session = server.client().await.session(session.name());
    let (tokens, end) = followed(&session, 0).await;
    assert_eq!(tokens, whole);
    assert!(matches!(end, Some(TurnEnd::Finished(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_listed_while_models_come_and_go() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let going = async {
        for _ in 0..20 {
            // Asked for, it is there again, and makes way for the next.
            let asked = client.model("stories-7m").session().text(PROMPT);
            let events = asked.max_tokens(1).open().await.unwrap();
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
        () = going => {}
        _ = listing => {}
    }
}
