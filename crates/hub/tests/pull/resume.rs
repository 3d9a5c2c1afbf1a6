//! Connections that break, and pulls that go on where others stopped.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use djinn_hub::pull;

use crate::bench::{Bench, SINGLE, Seen, Watcher};
use crate::repo::{Repo, SHA, sha256, weights};
use crate::server::Reply;

/// Serves the file like `trouble` the first time and properly after that.
fn troubled_once(repo: Repo, trouble: Reply) -> Bench {
    let asked = AtomicUsize::new(0);
    Bench::new(move |request| {
        if request.is_for(SINGLE) && asked.fetch_add(1, Ordering::SeqCst) == 0 {
            return trouble.clone();
        }
        repo.answer(request)
    })
}

#[test]
fn a_cut_connection_is_resumed_where_it_was_cut() {
    let body = weights(400_000);
    let cut = Reply::ok(body.clone()).cut_at(150_000);
    let bench = troubled_once(Repo::whole(&body), cut);
    bench.pull().unwrap();
    assert_eq!(
        bench.server.sent(SINGLE),
        [(0, 150_000), (150_000, 250_000)]
    );
    assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn an_interrupted_pull_is_resumed_by_the_next() {
    let body = weights(400_000);
    let cut = Reply::ok(body.clone()).cut_at(150_000);
    let mut bench = troubled_once(Repo::whole(&body), cut);
    bench.request.retry.tries = 1;
    assert!(bench.refused().contains("pull again to continue"));
    assert!(!bench.folder().join(SINGLE).exists());
    assert!(!bench.resolves());
    bench.server.forget();
    let watcher = Watcher::default();
    pull(&bench.request, &watcher).unwrap();
    assert_eq!(bench.server.sent(SINGLE), [(150_000, 250_000)]);
    let expect = Seen {
        total: Some(400_000),
        already: 150_000,
        came: 250_000,
        finished: true,
    };
    assert_eq!(watcher.saw(SINGLE), expect);
    assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
    assert!(bench.resolves());
}

#[test]
fn a_server_without_ranges_starts_again() {
    let body = weights(400_000);
    let asked = AtomicUsize::new(0);
    let repo = Repo::whole(&body);
    let bench = Bench::new(move |request| match request.is_for(SINGLE) {
        true if asked.fetch_add(1, Ordering::SeqCst) == 0 => {
            Reply::ok(repo.body(SINGLE).unwrap()).cut_at(150_000)
        }
        true => Reply::ok(repo.body(SINGLE).unwrap()),
        false => repo.answer(request),
    });
    let watcher = Watcher::default();
    pull(&bench.request, &watcher).unwrap();
    assert_eq!(
        bench.server.sent(SINGLE),
        [(0, 150_000), (150_000, 400_000)]
    );
    assert_eq!(
        watcher.saw(SINGLE),
        Seen {
            total: Some(400_000),
            already: 0,
            came: 400_000,
            finished: true
        }
    );
    assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn another_range_than_asked_for_starts_again() {
    let body = weights(400_000);
    let asked = AtomicUsize::new(0);
    let repo = Repo::whole(&body);
    let bench = Bench::new(move |request| {
        let whole = repo.body(SINGLE).unwrap();
        match asked.fetch_add(usize::from(request.is_for(SINGLE)), Ordering::SeqCst) {
            0 if request.is_for(SINGLE) => Reply::ok(whole).cut_at(150_000),
            1 if request.is_for(SINGLE) => Reply::ranged(whole, 1_000),
            _ => repo.answer(request),
        }
    });
    bench.pull().unwrap();
    let asked_for: Vec<usize> = bench
        .server
        .sent(SINGLE)
        .iter()
        .map(|(from, _)| *from)
        .collect();
    assert_eq!(asked_for, [0, 150_000, 0]);
    assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
}

/// Puts a part file where an earlier pull would have left it.
fn leave_part(bench: &Bench, content: &str, bytes: &[u8]) {
    let parts = bench.folder().join(".parts");
    fs::create_dir_all(&parts).unwrap();
    fs::write(
        parts.join(format!("{SINGLE}.{}.part", &content[..12])),
        bytes,
    )
    .unwrap();
}

#[test]
fn a_part_that_is_whole_without_our_knowing_is_taken() {
    let body = weights(5_000);
    let mut repo = Repo::whole(&body);
    repo.blobs = false;
    let bench = Bench::healthy(repo);
    leave_part(&bench, SHA, &body);
    bench.pull().unwrap();
    assert_eq!(bench.server.sent(SINGLE), [(5_000, 0)]);
    assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn a_part_longer_than_the_file_is_dropped() {
    let body = weights(5_000);
    let mut repo = Repo::whole(&body);
    for blobs in [true, false] {
        repo.blobs = blobs;
        let bench = Bench::healthy(repo.clone());
        let content = if blobs { sha256(&body) } else { SHA.to_owned() };
        leave_part(&bench, &content, &weights(6_000));
        bench.pull().unwrap();
        assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
    }
}

#[test]
fn a_part_of_another_version_is_not_continued() {
    let body = weights(5_000);
    let bench = Bench::healthy(Repo::whole(&body));
    leave_part(&bench, &sha256(b"older"), b"older");
    bench.pull().unwrap();
    assert_eq!(bench.server.sent(SINGLE), [(0, 5_000)]);
    assert!(!bench.folder().join(".parts").exists());
}

#[test]
fn a_damaged_part_is_found_out_and_the_next_pull_is_clean() {
    let body = weights(5_000);
    let bench = Bench::healthy(Repo::whole(&body));
    leave_part(&bench, &sha256(&body), b"damage");
    assert!(bench.refused().contains("arrived damaged"));
    bench.pull().unwrap();
    assert_eq!(fs::read(bench.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn trouble_that_passes_is_waited_out() {
    let body = weights(5_000);
    for trouble in [
        Reply::status(500),
        Reply::status(503),
        Reply::status(429).with("retry-after", "0"),
        Reply::ok(body.clone()).cut_at(0),
    ] {
        let bench = troubled_once(Repo::whole(&body), trouble);
        bench.pull().unwrap();
        assert_eq!(bench.server.sent(SINGLE).len(), 2);
    }
}

#[test]
fn trouble_that_stays_is_reported_after_a_few_tries() {
    for (status, expect) in [(500, "answered 500"), (429, "limits the requests")] {
        let repo = Repo::whole(b"weights");
        let bench = Bench::new(move |request| match request.is_for(SINGLE) {
            true => Reply::status(status),
            false => repo.answer(request),
        });
        let error = bench.refused();
        assert!(error.contains(expect), "{error}");
        assert_eq!(bench.server.sent(SINGLE).len(), 3);
    }
}
