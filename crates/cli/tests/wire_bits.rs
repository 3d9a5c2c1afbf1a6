//! The same bits over the wire as in one process.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{
    ok,
    server::{Server, place},
    stdout,
};
use djinn_client::{EventStream, HookEdit, Resume, TensorData, TurnEvent, TurnOutput, v1};
use safetensors::SafeTensors;
use serde_json::Value;

const PROMPT: &str = "Once upon a time there was a";
const HERE: &str = "blocks.3.hook_resid_post";

/// What `djinn run` generates from the same prompt.
fn local(more: &[&str]) -> Vec<u32> {
    let args = ["run", "--json", "--prompt", PROMPT, "--max-tokens", "24"];
    let told = stdout(&ok(&[&args[..], more].concat()));
    ids(&serde_json::from_str::<Value>(&told).unwrap()["output_ids"])
}

fn ids(value: &Value) -> Vec<u32> {
    let all = value.as_array().unwrap().iter();
    all.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[tokio::test]
async fn tokens_are_those_of_one_process() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let asked = || client.model("").session().text(PROMPT).max_tokens(24);
    let turn = asked().open().await.unwrap().collect().await.unwrap();
    assert_eq!(turn.tokens, local(&[]));
    assert_eq!(turn.finished().unwrap().why, "length");

    let sampling = v1::Sampling {
        temperature: Some(0.9),
        top_p: Some(0.95),
        seed: Some(7),
        ..v1::Sampling::default()
    };
    let sampled = asked().sampling(sampling).open().await.unwrap();
    let flags = ["--temperature", "0.9", "--top-p", "0.95", "--seed", "7"];
    assert_eq!(sampled.collect().await.unwrap().tokens, local(&flags));

    let edit = format!("{HERE}:scale=0.7");
    let expect = local(&["--edit", &edit]);
    assert_ne!(expect, local(&[]));
    for edit in [HookEdit::text(edit), HookEdit::scale(HERE, 0.7)] {
        let turn = asked().edit(edit).open().await.unwrap();
        assert_eq!(turn.collect().await.unwrap().tokens, expect);
    }
}

#[tokio::test]
async fn tensors_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traced.safetensors");
    let hooks = [
        "blocks.*.hook_resid_post",
        "blocks.2.attn.hook_pattern",
        "logits",
    ];
    // Long enough that logits come in several pieces.
    let prompt = format!("{PROMPT} dog. ").repeat(12);
    ok(&[
        "trace",
        "--prompt",
        &prompt,
        "--generate",
        "6",
        "--edit",
        "blocks.1.hook_mlp_out:scale=1.5@2..5",
        "--capture",
        &hooks.join(","),
        "--out",
        file.to_str().unwrap(),
    ]);
    let server = Server::start(&[]);
    let client = server.client().await;
    let mut asked = client.model("").session().text(&prompt).max_tokens(6);
    for hook in hooks {
        asked = asked.capture(hook);
    }
    let edit = HookEdit::scale("blocks.1.hook_mlp_out", 1.5).at("2..5");
    let asked = asked.capture_positions("prompt").ignore_eos().edit(edit);
    let turn = asked.open().await.unwrap().collect().await.unwrap();

    let bytes = fs::read(file).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let traced: Vec<_> = file
        .iter()
        .filter(|(name, _)| !name.ends_with("_ids"))
        .collect();
    assert_eq!(turn.captured.len(), traced.len());
    assert!(4 * turn.captured["logits"].data.len() > 1 << 20);
    for (name, expect) in traced {
        let found = &turn.captured[name];
        assert_eq!(found.shape, expect.shape(), "{name}");
        let expect: Vec<u32> = expect
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect();
        assert_eq!(bits(&found.data), expect, "{name}");
    }
}

/// Goes on to the end, as it is, and gives all tokens.
async fn to_the_end(
    mut turn: TurnOutput,
    session: &djinn_client::SessionHandle,
) -> (Vec<u32>, usize) {
    let (mut tokens, mut stops) = (turn.tokens.clone(), 0);
    while turn.paused().is_some() {
        turn = session
            .resume(Resume::new())
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        tokens.extend(&turn.tokens);
        stops += 1;
    }
    (tokens, stops)
}

#[tokio::test]
async fn stopping_changes_no_bit() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let whole = local(&[]);
    let asked = || {
        client
            .model("")
            .session()
            .text(PROMPT)
            .max_tokens(24)
            .keep()
    };

    // At every pass.
    let events = asked().breakpoint(HERE).open().await.unwrap();
    let session = events.session().clone();
    let (tokens, stops) = to_the_end(events.collect().await.unwrap(), &session).await;
    assert_eq!((tokens, stops), (whole.clone(), 24));

    // At one, and from there by hooks, by blocks and to a hook.
    let events = asked()
        .breakpoint(format!("{HERE},step=3"))
        .open()
        .await
        .unwrap();
    let session = events.session().clone();
    let mut turn = events.collect().await.unwrap();
    let at = |turn: &TurnOutput| turn.paused().unwrap().hook.clone();
    assert_eq!(at(&turn), HERE);
    assert_eq!(turn.tokens, whole[..3]);
    let go = async |how: Resume| -> TurnOutput {
        session.resume(how).await.unwrap().collect().await.unwrap()
    };
    let mut tokens = turn.tokens.clone();
    for (how, expect) in [
        (Resume::new().to_next_hook(), "blocks.4.hook_resid_pre"),
        (Resume::new().to_next_block(), "blocks.4.hook_resid_post"),
        (
            Resume::new().to_hook("blocks.6.hook_mlp_out"),
            "blocks.6.hook_mlp_out",
        ),
    ] {
        turn = go(how).await;
        assert_eq!(at(&turn), expect);
        tokens.extend(&turn.tokens);
    }
    let told = session.info().await.unwrap();
    assert_eq!((told.state.as_str(), told.generated), ("paused", 3));
    // Whoever follows hears how long it took; whoever asks later, only where it stands.
    assert_eq!(told.paused, place(turn.paused()));
    let took = turn.paused().unwrap().took_us;
    assert!(took.is_some_and(|us| us > 0), "{took:?}");
    session
        .set_breakpoints(["blocks.0.hook_resid_pre,step=9"])
        .await
        .unwrap();
    turn = go(Resume::new()).await;
    let at = turn.paused().unwrap();
    assert_eq!((at.hook.as_str(), at.rows), ("blocks.0.hook_resid_pre", 1));
    assert_eq!(tokens.len() + turn.tokens.len(), 9);
    tokens.extend(to_the_end(turn, &session).await.0);
    assert_eq!(tokens, whole);
}

/// What comes of a session that stopped, changed or not.
async fn ends(events: EventStream) -> Vec<u32> {
    events.collect().await.unwrap().tokens
}

#[tokio::test]
async fn branches_are_what_they_branched_from() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let whole = local(&[]);
    let asked = client
        .model("")
        .session()
        .text(PROMPT)
        .max_tokens(24)
        .keep();
    let asked = asked.breakpoint(format!("{HERE}@-1,step=0"));
    let events = asked
        .capture("blocks.2.hook_resid_pre@-1")
        .open()
        .await
        .unwrap();
    let session = events.session().clone();
    let stopped = events.collect().await.unwrap();
    assert!(stopped.paused().is_some() && stopped.tokens.is_empty());
    let here = session.activation("", "").await.unwrap();
    let branches = session.branch(3).await.unwrap();
    assert_eq!(branches.len(), 3);
    let same = branches[0].resume(Resume::new()).await.unwrap();
    assert_eq!(ends(same).await, whole);
    // What is there put in its own place changes nothing; the opposite does, and as scaling would.
    let put = |tensor: &TensorData| Resume::new().edit(HookEdit::replace(HERE, tensor));
    let same = branches[1].resume(put(&here)).await.unwrap();
    assert_eq!(ends(same).await, whole);
    let opposite = TensorData {
        data: here.data.iter().map(|x| -x).collect(),
        ..here.clone()
    };
    let turned = ends(branches[2].resume(put(&opposite)).await.unwrap()).await;
    assert_ne!(turned, whole);
    let scaled = Resume::new().edit(HookEdit::scale(HERE, -1.0));
    let other = &session.branch(1).await.unwrap()[0];
    assert_eq!(ends(other.resume(scaled).await.unwrap()).await, turned);

    // Back to a hook that it passed, with what was there.
    let before = &stopped.captured["blocks.2.hook_resid_pre"];
    let position = stopped.paused().unwrap().position;
    let back = session.branch_back("blocks.2.hook_resid_pre", position, before);
    let back = back.await.unwrap();
    let again = back.resume(Resume::new()).await.unwrap();
    let again = again.collect().await.unwrap();
    assert_eq!(place(again.paused()), place(stopped.paused()));
    assert_eq!(back.activation("", "").await.unwrap(), here);
    let rest = back.resume(Resume::new()).await.unwrap();
    assert_eq!(ends(rest).await, whole);
}

#[tokio::test]
async fn events_come_as_they_happen() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let asked = client.model("").session().text(PROMPT).max_tokens(5);
    let mut events = asked
        .capture("blocks.0.hook_resid_pre@0")
        .open()
        .await
        .unwrap();
    assert!(events.opened().prompt_tokens > 0);
    let mut kinds = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        kinds.push(match event {
            TurnEvent::Token(token) => {
                assert_eq!(token.index, kinds.len() as u64);
                "token"
            }
            TurnEvent::Captured(name, tensor) => {
                assert_eq!(
                    (name.as_str(), tensor.shape[0]),
                    ("blocks.0.hook_resid_pre", 1)
                );
                "captured"
            }
            TurnEvent::Paused(_) => "paused",
            TurnEvent::Finished(_) => "finished",
        });
    }
    assert_eq!(
        kinds,
        [
            "token", "token", "token", "token", "token", "captured", "finished"
        ]
    );
    // One that is not kept is over with its turn.
    let gone = events.session().info().await.unwrap_err();
    assert_eq!(gone.code(), djinn_client::ErrorCode::NotFound);
}
