//! KV pages in the spill file, and sessions whose pages the file lost.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeSet, fs::File, path::Path, time::Duration};

use common::paging::{SessionResult, alone, load_with_disk, result_of, tight};
use common::{request, stories};
use djinn_engine::{Engine, FailureKind, Request, SessionFailure, SessionId};

/// Opens sessions that all wait, most of them with their pages on disk.
fn on_disk(disk: &Path) -> (Engine, Vec<SessionId>, Vec<SessionResult>) {
    let folder = stories();
    let requests: Vec<Request> = (0..24)
        .map(|i| request(&folder, &[i + 5; 60], &[], 8))
        .collect();
    let expect = alone(&folder, &requests).iter().map(result_of).collect();
    let settings = tight(&folder, &requests, 4, 12);
    let mut engine = load_with_disk(&folder, settings, 0, disk);
    let open = |request: &Request| engine.open(request.clone()).unwrap();
    let sessions: Vec<SessionId> = requests.iter().map(open).collect();
    let mut waiting = BTreeSet::new();
    while waiting.len() < sessions.len() {
        for output in engine.step().unwrap() {
            if waiting.insert(output.session) {
                engine
                    .any_session(output.session)
                    .and_then(|mut session| session.wait(None))
                    .unwrap();
            }
        }
    }
    // Waits until the disk transfers in flight are done: nothing has moved for a while.
    let (mut last, mut quiet) = ((0, engine.kv_usage()), 0);
    while last.0 == 0 || quiet < 100 {
        engine.step().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let now = (
            engine.paging_stats().unwrap().spilled.bytes,
            engine.kv_usage(),
        );
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
    (engine, sessions, expect)
}

/// Resumes all sessions. Returns how many gave the expected result, and the failures of the others.
fn finish(
    mut engine: Engine,
    sessions: &[SessionId],
    expect: &[SessionResult],
) -> (usize, Vec<SessionFailure>) {
    for &id in sessions {
        engine
            .any_session(id)
            .and_then(|mut session| session.resume())
            .unwrap();
    }
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
    let (mut complete, mut failures) = (0, Vec::new());
    for (&id, expect) in sessions.iter().zip(expect) {
        let transcript = engine.close(id).unwrap();
        match transcript.failure.clone() {
            Some(failure) => failures.push(failure),
            None => {
                assert!(result_of(&transcript) == *expect, "session {id}");
                complete += 1;
            }
        }
    }
    engine.check_integrity();
    (complete, failures)
}

#[test]
fn a_damaged_spill_file_fails_only_the_sessions_it_held() {
    let path = |disk: &Path| {
        let file = std::fs::read_dir(disk).unwrap().next();
        file.unwrap().unwrap().path()
    };
    let name = |file: &Path| file.display().to_string();
    let disk = tempfile::tempdir().unwrap();
    let (engine, sessions, expect) = on_disk(disk.path());
    assert_eq!(finish(engine, &sessions, &expect), (24, vec![]));

    let (engine, sessions, expect) = on_disk(disk.path());
    let damaged = path(disk.path());
    let file = File::options().write(true).open(&damaged);
    // A byte in the middle of the first slot.
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &[0x55], 1000).unwrap();
    let (complete, failures) = finish(engine, &sessions, &expect);
    assert!(
        complete >= 22 && complete + failures.len() == 24,
        "{complete} {failures:?}"
    );
    assert!(!failures.is_empty());
    let names_file = |failure: &SessionFailure| {
        failure.kind == FailureKind::Spill && failure.message.contains(&name(&damaged))
    };
    assert!(failures.iter().all(names_file), "{failures:?}");

    let (engine, sessions, expect) = on_disk(disk.path());
    let damaged = path(disk.path());
    let file = File::options().write(true).open(&damaged);
    file.unwrap().set_len(5000).unwrap();
    let (complete, failures) = finish(engine, &sessions, &expect);
    assert!(
        complete > 0 && complete + failures.len() == 24,
        "{complete} {failures:?}"
    );
    assert!(!failures.is_empty());
    let names_file = |failure: &SessionFailure| {
        failure.kind == FailureKind::Spill && failure.message.contains(&name(&damaged))
    };
    assert!(failures.iter().all(names_file), "{failures:?}");
}
