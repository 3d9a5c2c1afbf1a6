//! KV pages in the spill file, and sessions whose pages the file lost.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

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
    // The file has no name, so only this process can open it, by its descriptor.
    let open_for_writing = |disk: &Path| {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut paths = descriptors.map(|entry| entry.unwrap().path());
        let is_spill =
            |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.starts_with(disk));
        let path = paths.find(is_spill).unwrap();
        File::options().write(true).open(path).unwrap()
    };
    let disk = tempfile::tempdir().unwrap();
    let names_folder = |failure: &SessionFailure| {
        let name = disk.path().display().to_string();
        failure.kind == FailureKind::Spill && failure.message.contains(&name)
    };
    let (engine, sessions, expect) = on_disk(disk.path());
    assert_eq!(finish(engine, &sessions, &expect), (24, vec![]));

    let (engine, sessions, expect) = on_disk(disk.path());
    let file = open_for_writing(disk.path());
    // A byte in the middle of the first slot.
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x55], 1000).unwrap();
    drop(file);
    let (complete, failures) = finish(engine, &sessions, &expect);
    assert!(
        complete >= 22 && complete + failures.len() == 24,
        "{complete} {failures:?}"
    );
    assert!(!failures.is_empty());
    assert!(failures.iter().all(names_folder), "{failures:?}");

    let (engine, sessions, expect) = on_disk(disk.path());
    open_for_writing(disk.path()).set_len(5000).unwrap();
    let (complete, failures) = finish(engine, &sessions, &expect);
    assert!(
        complete > 0 && complete + failures.len() == 24,
        "{complete} {failures:?}"
    );
    assert!(!failures.is_empty());
    assert!(failures.iter().all(names_folder), "{failures:?}");
}
