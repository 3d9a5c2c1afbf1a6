//! Faults of kept sessions: a failed pass, a full disk, a full context or broken numbers end a
//! turn, never the session, and no acknowledged token is lost.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{path::Path, process::Command, sync::atomic::Ordering, time::Instant};

use common::{
    durable::{
        TURN, TURNS, alone, engine, engine_of, next_turns, numbered_request, restarted, result_bits,
    },
    faulty_disk::{FaultyDisk, GONE, HEALTHY, on_faulty_disk},
    open, stories, tensors,
};
use djinn_engine::{
    Engine, EngineError, FailureKind, Finish, Output, Positions, Probe, Request, RestoreScope,
    SessionId, SessionStatus, StateFolder,
};
use djinn_weights::{Keep, MemorySettings, Overrides};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Loads an engine whose weights stream from a faulty disk in every pass, over a state folder.
fn on_disk(folder: &Path) -> (Engine, std::sync::Arc<FaultyDisk>) {
    let (model, disk) = on_faulty_disk(&stories());
    let memory = MemorySettings {
        overrides: Overrides {
            keep: Keep::Nothing,
            ring: None,
        },
        ..MemorySettings::default()
    };
    let mut engine = engine_of(model, 2, memory);
    let state = StateFolder::open(folder).unwrap();
    engine.attach_state(state, RestoreScope::All).unwrap();
    (engine, disk)
}

fn run_out(engine: &mut Engine) -> Vec<Output> {
    let mut outputs = Vec::new();
    while !engine.is_idle() {
        outputs.extend(engine.step().unwrap());
        engine.check_integrity();
    }
    outputs
}

fn status(engine: &Engine, id: SessionId) -> SessionStatus {
    engine.view(id).unwrap().status()
}

/// Runs all remaining turns of a session and returns its result.
fn finish(engine: &mut Engine, id: SessionId) -> (Vec<u32>, Vec<(u32, u32)>) {
    run_out(engine);
    while next_turns(engine).is_empty() {
        run_out(engine);
    }
    result_bits(&engine.close(id).unwrap())
}

/// Opens a session, lets it generate `tokens` tokens, and fails its next pass.
fn interrupted(folder: &Path, number: u64, tokens: usize) -> (Engine, SessionId) {
    let (mut engine, disk) = on_disk(folder);
    let id = engine.open(numbered_request(number)).unwrap();
    let mut published = 0;
    while published < tokens {
        if engine.is_idle() {
            next_turns(&mut engine);
        }
        let outputs = engine.step().unwrap();
        published += outputs.iter().filter(|o| o.token.is_some()).count();
    }
    disk.reads_left.store(GONE, Ordering::SeqCst);
    engine.step().unwrap_err();
    disk.reads_left.store(HEALTHY, Ordering::SeqCst);
    assert!(engine.is_idle());
    assert_eq!(status(&engine, id), SessionStatus::Waiting);
    assert_eq!(engine.view(id).unwrap().generated(), tokens);
    let outputs = engine.maintain(Instant::now());
    let failed: Vec<_> = outputs.iter().map(|o| (o.session, o.finish)).collect();
    assert_eq!(failed, [(id, Some(Finish::Failed))]);
    let kind = outputs[0].failure.as_ref().unwrap().kind;
    assert_eq!(kind, FailureKind::Device);
    engine.check_integrity();
    (engine, id)
}

#[test]
fn a_failed_pass_interrupts_a_kept_session_and_changes_no_bit() {
    for (number, tokens) in [(0, 0), (0, 3), (1, TURN - 1), (2, TURN + 2)] {
        let expect = result_bits(&alone(number).0);
        let folder = tempfile::tempdir().unwrap();
        let (mut engine, id) = interrupted(folder.path(), number, tokens);
        engine.any_session(id).unwrap().resume().unwrap();
        assert!(finish(&mut engine, id) == expect, "session {number}");

        let folder = tempfile::tempdir().unwrap();
        let (engine, id) = interrupted(folder.path(), number, tokens);
        let before = engine.view(id).unwrap().tokens().to_vec();
        drop(engine);
        let mut engine = restarted(2, folder.path());
        assert_eq!(status(&engine, id), SessionStatus::Waiting);
        assert_eq!(engine.view(id).unwrap().tokens(), before);
        engine.any_session(id).unwrap().resume().unwrap();
        assert!(finish(&mut engine, id) == expect, "session {number}");
    }
}

#[test]
fn a_failed_pass_may_be_followed_by_another_turn() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, id) = interrupted(folder.path(), 3, 2);
    let mut session = engine.any_session(id).unwrap();
    session.append(&[5, 6, 7], 2, &[]).unwrap();
    let outputs = run_out(&mut engine);
    assert_eq!(outputs.iter().filter(|o| o.token.is_some()).count(), 2);
    let tokens = engine.view(id).unwrap().tokens().to_vec();
    drop(engine);
    let engine = restarted(2, folder.path());
    assert_eq!(engine.view(id).unwrap().tokens(), tokens);
}

#[test]
fn an_interrupted_turn_captures_again_after_a_failed_pass() {
    let program = open(&stories()).program;
    let captures = ["blocks.1.hook_mlp_out"];
    let ask = Request {
        probe: Probe::new(&program, &captures, Positions::All, &[]).unwrap(),
        ..numbered_request(5)
    };
    let mut whole = engine(1);
    let id = whole.open(ask.clone()).unwrap();
    run_out(&mut whole);
    let expect = tensors(&whole.close(id).unwrap());

    let folder = tempfile::tempdir().unwrap();
    let (mut engine, disk) = on_disk(folder.path());
    let id = engine.open(ask).unwrap();
    engine.step().unwrap();
    disk.reads_left.store(GONE, Ordering::SeqCst);
    engine.step().unwrap_err();
    disk.reads_left.store(HEALTHY, Ordering::SeqCst);
    engine.any_session(id).unwrap().resume().unwrap();
    run_out(&mut engine);
    assert_eq!(tensors(&engine.close(id).unwrap()), expect);
}

#[test]
fn a_full_context_ends_the_turn_and_not_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = restarted(1, folder.path());
    let ask = Request {
        max_tokens: 60,
        ..numbered_request(0)
    };
    let id = engine.open(ask).unwrap();
    run_out(&mut engine);
    let mut session = engine.any_session(id).unwrap();
    session.append(&[9; 10], 60, &[]).unwrap();
    let outputs = run_out(&mut engine);
    assert_eq!(outputs.last().unwrap().finish, Some(Finish::Context));
    assert_eq!(status(&engine, id), SessionStatus::Waiting);
    let mut session = engine.any_session(id).unwrap();
    let error = session.append(&[1], 1, &[]).unwrap_err();
    assert!(matches!(error, EngineError::PromptTooLong { .. }));
    let tokens = engine.view(id).unwrap().tokens().to_vec();
    drop(engine);
    let engine = restarted(1, folder.path());
    assert_eq!(engine.view(id).unwrap().tokens(), tokens);
    assert_eq!(status(&engine, id), SessionStatus::Waiting);
}

#[test]
fn broken_numbers_end_the_turn_and_not_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = restarted(1, folder.path());
    let first = Request {
        max_tokens: 3,
        ..numbered_request(0)
    };
    let id = engine.open(first).unwrap();
    run_out(&mut engine);
    // A product of two numbers that are too large.
    let edits = [
        "blocks.0.hook_resid_post:scale=3e38",
        "blocks.1.hook_resid_post:scale=3e38",
    ];
    let edits = edits.map(|edit| edit.parse().unwrap());
    let mut session = engine.any_session(id).unwrap();
    session.append(&[4, 5], 3, &edits).unwrap();
    let outputs = run_out(&mut engine);
    assert_eq!(outputs.last().unwrap().finish, Some(Finish::NotANumber));
    assert_eq!(status(&engine, id), SessionStatus::Waiting);
    let tokens = engine.view(id).unwrap().tokens().to_vec();
    drop(engine);
    let engine = restarted(1, folder.path());
    assert_eq!(engine.view(id).unwrap().tokens(), tokens);
    assert_eq!(status(&engine, id), SessionStatus::Waiting);
}

/// Environment variable with the state folder of the child process whose disk is full.
const CHILD: &str = "DJINN_TEST_FULL_DISK";

/// Limits the size of files, which stands in for a full disk.
fn limit_files(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit {
        current: bytes,
        maximum,
    };
    setrlimit(Resource::Fsize, limit).unwrap();
}

fn child(folder: &Path) {
    let mut engine = restarted(2, folder);
    let (first, second) = (
        engine.open(numbered_request(0)).unwrap(),
        engine.open(numbered_request(1)).unwrap(),
    );
    limit_files(Some(1));
    let outputs = run_out(&mut engine);
    for id in [first, second] {
        let mut of = outputs.iter().filter(|output| output.session == id);
        let last = of.next_back().unwrap();
        assert_eq!(last.finish, Some(Finish::Failed));
        assert_eq!(last.failure.as_ref().unwrap().kind, FailureKind::Log);
        assert_eq!(status(&engine, id), SessionStatus::Waiting);
        assert_eq!(engine.view(id).unwrap().generated(), TURN);
    }
    let refused = engine.any_session(first).unwrap().append(&[7], 1, &[]);
    assert!(matches!(refused, Err(EngineError::Wal(_))));
    // The disk has room again: the log gets what it lacks.
    limit_files(None);
    assert!(engine.maintain(Instant::now()).is_empty());
    let copied = folder.with_extension("copy");
    common::durable::copy(folder, &copied);
    let copy = restarted(2, &copied);
    for id in [first, second] {
        let (found, expect) = (copy.view(id).unwrap(), engine.view(id).unwrap());
        assert_eq!(found.tokens(), expect.tokens());
        assert_eq!(found.status(), SessionStatus::Waiting);
    }
    for turn in 1..TURNS {
        next_turns(&mut engine);
        // The second turn has no disk either; the third one begins after a repair.
        limit_files((turn == 1).then_some(1));
        run_out(&mut engine);
        limit_files(None);
    }
    drop(engine);
    let mut engine = restarted(2, folder);
    for (number, id) in [(0, first), (1, second)] {
        let expect = result_bits(&alone(number).0);
        assert!(result_bits(&engine.close(id).unwrap()) == expect);
    }
}

#[test]
fn a_full_disk_at_the_end_of_a_turn_loses_no_token() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return child(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["a_full_disk_at_the_end", "--nocapture", "--test-threads=1"])
        .env(CHILD, folder.path().join("state"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}
