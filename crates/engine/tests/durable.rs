//! Durable sessions: wherever the process ends, acknowledged state is restored, and the sessions
//! continue with the same bits.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::durable::{
    TURN, TURNS, alone, copy, engine, next_turns, numbered_request, restarted, result_bits,
};
use common::{open, request, stories};
use djinn_engine::{Engine, Finish, Request, Sampling, SessionId, StateFolder, Transcript};

#[test]
fn a_restart_after_any_step_changes_no_bit() {
    let expect: Vec<_> = (0..3).map(|number| result_bits(&alone(number).0)).collect();
    let folder = tempfile::tempdir().unwrap();
    let states = folder.path().join("states");
    let mut engine = restarted(3, &folder.path().join("state"));
    let open = |number| engine.open(numbered_request(number)).unwrap();
    let ids: Vec<SessionId> = (0..3).map(open).collect();
    assert!(ids.is_sorted());
    let mut copies = 0;
    loop {
        copy(
            &folder.path().join("state"),
            &states.join(copies.to_string()),
        );
        copies += 1;
        engine.step().unwrap();
        if engine.is_idle() {
            copy(
                &folder.path().join("state"),
                &states.join(copies.to_string()),
            );
            copies += 1;
        }
        if engine.is_idle() && next_turns(&mut engine).len() == 3 {
            break;
        }
    }
    assert!(copies > TURN * TURNS, "{copies}");
    drop(engine);
    for number in 0..copies {
        let mut engine = restarted(3, &states.join(number.to_string()));
        loop {
            while !engine.is_idle() {
                engine.step().unwrap();
                engine.check_integrity();
            }
            if next_turns(&mut engine).len() == 3 {
                break;
            }
        }
        for (&id, expect) in ids.iter().zip(&expect) {
            let found = result_bits(&engine.close(id).unwrap());
            assert!(found == *expect, "session {id}");
        }
        drop(engine);
        let state = StateFolder::open(&states.join(number.to_string())).unwrap();
        assert_eq!(
            state.sessions().count(),
            0,
            "closed sessions are not restored"
        );
    }
}

#[test]
fn edits_captures_and_forks_are_restored() {
    use djinn_engine::{EditSpec, Positions, Probe};
    let folder = tempfile::tempdir().unwrap();
    let model = open(&stories());
    let edits: Vec<EditSpec> = [
        "blocks.2.hook_resid_post:scale=0.5@2..9",
        "blocks.1.hook_mlp_out:scale=0.9@generated",
    ]
    .map(|edit| edit.parse().unwrap())
    .to_vec();
    let captures = ["blocks.3.hook_mlp_out"];
    let probe = Probe::new(&model.program, &captures, Positions::All, &edits).unwrap();
    let ask = Request {
        probe,
        ..numbered_request(4)
    };
    let run = |engine: &mut Engine| {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
    };
    let mut whole = engine(3);
    let id = whole.open(ask.clone()).unwrap();
    run(&mut whole);
    let expect = whole.close(id).unwrap();

    let mut engine = restarted(3, folder.path());
    let id = engine.open(ask).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
    }
    let other = Sampling {
        temperature: 1.0,
        seed: 99,
        ..Sampling::default()
    };
    let fork = engine
        .any_session(id)
        .and_then(|mut session| session.fork(Some(other.clone())))
        .unwrap();
    drop(engine);
    let mut engine = restarted(3, folder.path());
    run(&mut engine);
    let (found, fork) = (engine.close(id).unwrap(), engine.close(fork).unwrap());
    assert!(result_bits(&found) == result_bits(&expect));
    let tensors = |t: &Transcript| t.captured.tensors();
    assert_eq!(tensors(&found), tensors(&expect));
    assert_eq!(fork.generated[..2], expect.generated[..2]);
    assert_ne!(fork.generated, expect.generated);
}

/// A stop string whose first part was generated before a restart is found after it.
#[test]
fn a_stop_string_may_span_a_restart() {
    let text = |engine: &Engine, ids: &[u32]| {
        let text = engine.model().tokenizer.as_ref().unwrap();
        text.decode(ids, true).unwrap()
    };
    let ask = request(&stories(), &[0, 1577, 395, 259, 698, 1108, 14], &[], 16);
    let mut whole = engine(1);
    let id = whole
        .open(Request {
            keep: true,
            ..ask.clone()
        })
        .unwrap();
    while !whole.is_idle() {
        whole.step().unwrap();
    }
    let generated = whole.close(id).unwrap().generated;
    // The stop string is the end of one token and the beginning of the next.
    let (third, fourth) = (
        text(&whole, &generated[2..3]),
        text(&whole, &generated[3..4]),
    );
    let stop = format!("{}{}", &third[third.len() - 1..], &fourth[..2]);
    let folder = tempfile::tempdir().unwrap();
    let mut engine = restarted(1, folder.path());
    let stop = Request {
        stop: vec![stop],
        keep: true,
        ..ask
    };
    let id = engine.open(stop).unwrap();
    while engine
        .view(id)
        .map(|session| session.tokens())
        .unwrap()
        .len()
        < 7 + 3
    {
        engine.step().unwrap();
    }
    drop(engine);
    let mut engine = restarted(1, folder.path());
    let mut finish = None;
    while !engine.is_idle() {
        for output in engine.step().unwrap() {
            finish = output.finish;
        }
    }
    assert_eq!(
        (
            finish,
            engine
                .view(id)
                .map(|session| session.tokens())
                .unwrap()
                .len()
        ),
        (Some(Finish::Stop), 7 + 4)
    );
}
