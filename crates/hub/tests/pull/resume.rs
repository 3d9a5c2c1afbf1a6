//! Tests of broken connections, and of pulls that continue earlier ones.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use djinn_hub::{HubError, pull};

use crate::fixture::{FileProgress, ProgressLog, PullFixture, SINGLE};
use crate::repo::{Repo, SHA, sha256, weights};
use crate::server::Reply;

/// Serves `trouble` for the first request of the weights, and the file for later requests.
fn troubled_once(repo: Repo, trouble: Reply) -> PullFixture {
    let asked = AtomicUsize::new(0);
    PullFixture::new(move |request| {
        if request.is_for(SINGLE) && asked.fetch_add(1, Ordering::SeqCst) == 0 {
            return trouble.clone();
        }
        repo.answer(request)
    })
}

#[test]
fn a_broken_connection_is_continued_at_the_same_byte() {
    let body = weights(400_000);
    let cut = Reply::ok(body.clone()).cut_at(150_000);
    let fixture = troubled_once(Repo::whole(&body), cut);
    fixture.pull().unwrap();
    assert_eq!(
        fixture.server.sent(SINGLE),
        [(0, 150_000), (150_000, 250_000)]
    );
    assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn an_interrupted_pull_is_continued_by_the_next() {
    let body = weights(400_000);
    let cut = Reply::ok(body.clone()).cut_at(150_000);
    let mut fixture = troubled_once(Repo::whole(&body), cut);
    fixture.request.retry.tries = 1;
    let error = fixture.error();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    assert!(!fixture.folder().join(SINGLE).exists());
    assert!(!fixture.resolves());
    fixture.server.forget();
    let log = ProgressLog::default();
    pull(&fixture.request, &log).unwrap();
    assert_eq!(fixture.server.sent(SINGLE), [(150_000, 250_000)]);
    let expect = FileProgress {
        total: Some(400_000),
        already: 150_000,
        received: 250_000,
        finished: true,
    };
    assert_eq!(log.of(SINGLE), expect);
    assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
    assert!(fixture.resolves());
}

#[test]
fn a_server_without_ranges_restarts_the_file() {
    let body = weights(400_000);
    let asked = AtomicUsize::new(0);
    let repo = Repo::whole(&body);
    let fixture = PullFixture::new(move |request| match request.is_for(SINGLE) {
        true if asked.fetch_add(1, Ordering::SeqCst) == 0 => {
            Reply::ok(repo.body(SINGLE).unwrap()).cut_at(150_000)
        }
        true => Reply::ok(repo.body(SINGLE).unwrap()),
        false => repo.answer(request),
    });
    let log = ProgressLog::default();
    pull(&fixture.request, &log).unwrap();
    assert_eq!(
        fixture.server.sent(SINGLE),
        [(0, 150_000), (150_000, 400_000)]
    );
    assert_eq!(
        log.of(SINGLE),
        FileProgress {
            total: Some(400_000),
            already: 0,
            received: 400_000,
            finished: true
        }
    );
    assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn a_wrong_range_restarts_the_file() {
    let body = weights(400_000);
    let asked = AtomicUsize::new(0);
    let repo = Repo::whole(&body);
    let fixture = PullFixture::new(move |request| {
        let whole = repo.body(SINGLE).unwrap();
        match asked.fetch_add(usize::from(request.is_for(SINGLE)), Ordering::SeqCst) {
            0 if request.is_for(SINGLE) => Reply::ok(whole).cut_at(150_000),
            1 if request.is_for(SINGLE) => Reply::ranged(whole, 1_000),
            _ => repo.answer(request),
        }
    });
    fixture.pull().unwrap();
    let asked_for: Vec<usize> = fixture
        .server
        .sent(SINGLE)
        .iter()
        .map(|(from, _)| *from)
        .collect();
    assert_eq!(asked_for, [0, 150_000, 0]);
    assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
}

/// Writes a partial file, as an interrupted pull leaves it.
fn leave_part(fixture: &PullFixture, content: &str, bytes: &[u8]) {
    let parts = fixture.folder().join(".parts");
    fs::create_dir_all(&parts).unwrap();
    fs::write(
        parts.join(format!("{SINGLE}.{}.part", &content[..12])),
        bytes,
    )
    .unwrap();
}

#[test]
fn a_complete_partial_file_of_unknown_size_is_accepted() {
    let body = weights(5_000);
    let mut repo = Repo::whole(&body);
    repo.blobs = false;
    let fixture = PullFixture::healthy(repo);
    leave_part(&fixture, SHA, &body);
    fixture.pull().unwrap();
    assert_eq!(fixture.server.sent(SINGLE), [(5_000, 0)]);
    assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn a_partial_file_that_is_too_long_is_discarded() {
    let body = weights(5_000);
    let mut repo = Repo::whole(&body);
    for blobs in [true, false] {
        repo.blobs = blobs;
        let fixture = PullFixture::healthy(repo.clone());
        let content = if blobs { sha256(&body) } else { SHA.to_owned() };
        leave_part(&fixture, &content, &weights(6_000));
        fixture.pull().unwrap();
        assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
    }
}

#[test]
fn a_partial_file_of_another_version_is_not_continued() {
    let body = weights(5_000);
    let fixture = PullFixture::healthy(Repo::whole(&body));
    leave_part(&fixture, &sha256(b"older"), b"older");
    fixture.pull().unwrap();
    assert_eq!(fixture.server.sent(SINGLE), [(0, 5_000)]);
    assert!(!fixture.folder().join(".parts").exists());
}

#[test]
fn a_damaged_partial_file_is_removed() {
    let body = weights(5_000);
    let fixture = PullFixture::healthy(Repo::whole(&body));
    leave_part(&fixture, &sha256(&body), b"damage");
    let error = fixture.error();
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    fixture.pull().unwrap();
    assert_eq!(fs::read(fixture.folder().join(SINGLE)).unwrap(), body);
}

#[test]
fn transient_failures_are_retried() {
    let body = weights(5_000);
    for trouble in [
        Reply::status(500),
        Reply::status(503),
        Reply::status(429).with("retry-after", "0"),
        Reply::ok(body.clone()).cut_at(0),
    ] {
        let fixture = troubled_once(Repo::whole(&body), trouble);
        fixture.pull().unwrap();
        assert_eq!(fixture.server.sent(SINGLE).len(), 2);
    }
}

#[test]
fn persistent_failures_are_reported_after_some_attempts() {
    for status in [500, 429] {
        let repo = Repo::whole(b"weights");
        let fixture = PullFixture::new(move |request| match request.is_for(SINGLE) {
            true => Reply::status(status),
            false => repo.answer(request),
        });
        let error = fixture.error();
        match status {
            429 => assert!(matches!(error, HubError::RateLimited { .. }), "{error}"),
            _ => assert!(
                matches!(error, HubError::Status { status: 500, .. }),
                "{error}"
            ),
        }
        assert_eq!(fixture.server.sent(SINGLE).len(), 3);
    }
}
