//! Results over the network equal local results bit for bit.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{
    ok,
    server::{Server, pause_location},
    stdout,
};
use djinn_client::{EventStream, HookEdit, Resume, TensorData, TurnEvent, TurnOutput, v1};
use safetensors::SafeTensors;
use serde_json::Value;

const PROMPT: &str = "Once upon a time there was a";
const HOOK: &str = "blocks.3.hook_resid_post";

/// Tokens that `djinn run` generates from the same prompt.
fn local(more: &[&str]) -> Vec<u32> {
    let args = ["run", "--json", "--prompt", PROMPT, "--max-tokens", "24"];
    let output = stdout(&ok(&[&args[..], more].concat()));
    ids(&serde_json::from_str::<Value>(&output).unwrap()["output_ids"])
}

/// Token ids of a JSON array.
fn ids(value: &Value) -> Vec<u32> {
    let all = value.as_array().unwrap().iter();
    all.map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Bit patterns of numbers, for exact comparisons.
fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[tokio::test]
async fn tokens_equal_those_of_a_local_run() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let request = || client.model("").session().text(PROMPT).max_tokens(24);
    let turn = request().open().await.unwrap().collect().await.unwrap();
    assert_eq!(turn.tokens, local(&[]));
    assert_eq!(turn.finished().unwrap().why, "length");

    let sampling = v1::Sampling {
        temperature: Some(0.9),
        top_p: Some(0.95),
        seed: Some(7),
        ..v1::Sampling::default()
    };
    let sampled = request().sampling(sampling).open().await.unwrap();
    let flags = ["--temperature", "0.9", "--top-p", "0.95", "--seed", "7"];
    assert_eq!(sampled.collect().await.unwrap().tokens, local(&flags));

    let edit = format!("{HOOK}:scale=0.7");
    let expect = local(&["--edit", &edit]);
    assert_ne!(expect, local(&[]));
    for edit in [HookEdit::text(edit), HookEdit::scale(HOOK, 0.7)] {
        let turn = request().edit(edit).open().await.unwrap();
        assert_eq!(turn.collect().await.unwrap().tokens, expect);
    }
}

#[tokio::test]
async fn captured_tensors_equal_those_of_a_local_trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traced.safetensors");
    let hooks = [
        "blocks.*.hook_resid_post",
        "blocks.2.attn.hook_pattern",
        "logits",
    ];
    // The prompt is long enough that the logits arrive in several pieces.
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
    let mut request = client.model("").session().text(&prompt).max_tokens(6);
    for hook in hooks {
        request = request.capture(hook);
    }
    let edit = HookEdit::scale("blocks.1.hook_mlp_out", 1.5).at("2..5");
    let request = request.capture_positions("prompt").ignore_eos().edit(edit);
    let turn = request.open().await.unwrap().collect().await.unwrap();

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

/// Resumes a session until it ends, and returns all tokens and the number of pauses.
async fn resume_to_the_end(
    mut turn: TurnOutput,
    session: &djinn_client::SessionHandle,
) -> (Vec<u32>, usize) {
    let (mut tokens, mut pauses) = (turn.tokens.clone(), 0);
    while turn.paused().is_some() {
        turn = session
            .resume(Resume::new())
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        tokens.extend(&turn.tokens);
        pauses += 1;
    }
    (tokens, pauses)
}

#[tokio::test]
async fn pauses_do_not_change_the_tokens() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let whole = local(&[]);
    let request = || {
        client
            .model("")
            .session()
            .text(PROMPT)
            .max_tokens(24)
            .keep()
    };

    // The session pauses in every pass.
    let events = request().breakpoint(HOOK).open().await.unwrap();
    let session = events.session().clone();
    let (tokens, pauses) = resume_to_the_end(events.collect().await.unwrap(), &session).await;
    assert_eq!((tokens, pauses), (whole.clone(), 24));

    // The session pauses in one pass, then advances by a hook, by a block and to a named hook.
    let events = request()
        .breakpoint(format!("{HOOK},step=3"))
        .open()
        .await
        .unwrap();
    let session = events.session().clone();
    let mut turn = events.collect().await.unwrap();
    let at = |turn: &TurnOutput| turn.paused().unwrap().hook.clone();
    assert_eq!(at(&turn), HOOK);
    assert_eq!(turn.tokens, whole[..3]);
    let resume = async |options: Resume| -> TurnOutput {
        session
            .resume(options)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap()
    };
    let mut tokens = turn.tokens.clone();
    for (options, expect) in [
        (Resume::new().to_next_hook(), "blocks.4.hook_resid_pre"),
        (Resume::new().to_next_block(), "blocks.4.hook_resid_post"),
        (
            Resume::new().to_hook("blocks.6.hook_mlp_out"),
            "blocks.6.hook_mlp_out",
        ),
    ] {
        turn = resume(options).await;
        assert_eq!(at(&turn), expect);
        tokens.extend(&turn.tokens);
    }
    let info = session.info().await.unwrap();
    assert_eq!((info.state.as_str(), info.generated), ("paused", 3));
    // A followed turn reports the time of the pause; `info` reports only its location.
    assert_eq!(info.paused, pause_location(turn.paused()));
    let took = turn.paused().unwrap().took_us;
    assert!(took.is_some_and(|us| us > 0), "{took:?}");
    session
        .set_breakpoints(["blocks.0.hook_resid_pre,step=9"])
        .await
        .unwrap();
    turn = resume(Resume::new()).await;
    let at = turn.paused().unwrap();
    assert_eq!((at.hook.as_str(), at.rows), ("blocks.0.hook_resid_pre", 1));
    assert_eq!(tokens.len() + turn.tokens.len(), 9);
    tokens.extend(resume_to_the_end(turn, &session).await.0);
    assert_eq!(tokens, whole);
}

/// Tokens of the rest of a turn.
async fn tokens_of(events: EventStream) -> Vec<u32> {
    events.collect().await.unwrap().tokens
}

#[tokio::test]
async fn branches_continue_with_the_state_of_their_origin() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let whole = local(&[]);
    let request = client
        .model("")
        .session()
        .text(PROMPT)
        .max_tokens(24)
        .keep();
    let request = request.breakpoint(format!("{HOOK}@-1,step=0"));
    let events = request
        .capture("blocks.2.hook_resid_pre@-1")
        .open()
        .await
        .unwrap();
    let session = events.session().clone();
    let stopped = events.collect().await.unwrap();
    assert!(stopped.paused().is_some() && stopped.tokens.is_empty());
    let activation = session.activation("", "").await.unwrap();
    let branches = session.branch(3).await.unwrap();
    assert_eq!(branches.len(), 3);
    let same = branches[0].resume(Resume::new()).await.unwrap();
    assert_eq!(tokens_of(same).await, whole);
    // Replacing an activation with itself changes nothing; replacing it with its negative equals scaling by -1.
    let replace_with = |tensor: &TensorData| Resume::new().edit(HookEdit::replace(HOOK, tensor));
    let same = branches[1].resume(replace_with(&activation)).await.unwrap();
    assert_eq!(tokens_of(same).await, whole);
    let negative = TensorData {
        data: activation.data.iter().map(|x| -x).collect(),
        ..activation.clone()
    };
    let negated = tokens_of(branches[2].resume(replace_with(&negative)).await.unwrap()).await;
    assert_ne!(negated, whole);
    let scaled = Resume::new().edit(HookEdit::scale(HOOK, -1.0));
    let other = &session.branch(1).await.unwrap()[0];
    assert_eq!(
        tokens_of(other.resume(scaled).await.unwrap()).await,
        negated
    );

    // `branch_back` returns to an earlier hook with the captured activation.
    let before = &stopped.captured["blocks.2.hook_resid_pre"];
    let position = stopped.paused().unwrap().position;
    let back = session.branch_back("blocks.2.hook_resid_pre", position, before);
    let back = back.await.unwrap();
    let again = back.resume(Resume::new()).await.unwrap();
    let again = again.collect().await.unwrap();
    assert_eq!(
        pause_location(again.paused()),
        pause_location(stopped.paused())
    );
    assert_eq!(back.activation("", "").await.unwrap(), activation);
    let rest = back.resume(Resume::new()).await.unwrap();
    assert_eq!(tokens_of(rest).await, whole);
}

#[tokio::test]
async fn events_arrive_in_the_order_in_which_they_happen() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let request = client.model("").session().text(PROMPT).max_tokens(5);
    let mut events = request
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
    // A session without `keep` ends with its turn.
    let gone = events.session().info().await.unwrap_err();
    assert_eq!(gone.code(), djinn_client::ErrorCode::NotFound);
}
