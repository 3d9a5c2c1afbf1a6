//! What is refused, and what the refusal says.

use std::fs;
use std::path::Path;

use djinn_hub::{HubError, Token, pull};

use crate::bench::{Bench, INDEX, SINGLE, Watcher};
use crate::repo::{Repo, sha256, weights};
use crate::server::Reply;

#[test]
fn redirects_in_a_circle_end() {
    let bench = Bench::new(|request| Reply::redirect(&request.path));
    assert!(bench.refused().contains("too many redirects"));
}

#[test]
fn other_bytes_than_listed_are_not_kept() {
    let mut repo = Repo::whole(&weights(5_000));
    repo.lie = Some((SINGLE.to_owned(), None, Some(sha256(b"other"))));
    let bench = Bench::healthy(repo);
    assert!(bench.refused().contains("arrived damaged"));
    assert!(!bench.files().contains(SINGLE));
    let parts = fs::read_dir(bench.folder().join(".parts")).unwrap();
    let mut parts = parts.map(|part| part.unwrap().file_name().into_string().unwrap());
    assert!(!parts.any(|part| part.starts_with(SINGLE)));
    assert!(!bench.resolves());
}

#[test]
fn another_size_than_listed_is_refused() {
    for listed in [4_999, 5_001] {
        let mut repo = Repo::whole(&weights(5_000));
        repo.lie = Some((SINGLE.to_owned(), Some(listed), None));
        let bench = Bench::healthy(repo);
        let error = bench.refused();
        let expect = format!("has 5000 bytes where the hub lists {listed}");
        assert!(error.contains(&expect), "{error}");
        assert_eq!(bench.server.sent(SINGLE).len(), 1);
    }
}

#[test]
fn a_body_that_does_not_end_where_it_should_is_cut_off() {
    let body = weights(500_000);
    let repo = Repo::whole(&body[..5_000]);
    let bench = Bench::new(move |request| match request.is_for(SINGLE) {
        true => Reply::ok(body.clone()).unsized_body(),
        false => repo.answer(request),
    });
    let watcher = Watcher::default();
    let error = pull(&bench.request, &watcher).unwrap_err().to_string();
    assert!(error.contains("where the hub lists 5000"), "{error}");
    assert!(watcher.saw(SINGLE).came <= 5_000);
}

#[test]
fn every_refusal_says_what_to_do() {
    let gated = |status| Reply::status(status).with("x-error-code", "GatedRepo");
    let no_revision = Reply::status(404).with("x-error-code", "RevisionNotFound");
    for (reply, token, expect) in [
        (Reply::status(401), false, "set HF_TOKEN to a token from"),
        (Reply::status(401), true, "does not accept the token"),
        (
            gated(401),
            false,
            "org/name is gated: accept its terms at http://127.0.0.1",
        ),
        (gated(403), true, "is gated: accept its terms"),
        (Reply::status(403), false, "is gated: accept its terms"),
        (
            Reply::status(404),
            false,
            "there is no model org/name at http",
        ),
        (no_revision, false, "has no revision main"),
        (Reply::status(418), false, "answered 418"),
        (Reply::ok("<html>"), false, "does not answer as a hub does"),
        (
            Reply::ok(r#"{"sha":"../x","siblings":[]}"#),
            false,
            "its sha is no commit",
        ),
    ] {
        let mut bench = Bench::new(move |_| reply.clone());
        bench.request.token = token.then(|| Token::new("hf_secret").unwrap());
        let error = bench.refused();
        assert!(error.contains(expect), "{error}");
        assert!(
            !error.contains("hf_secret") && !error.contains('\n'),
            "{error}"
        );
        assert_eq!(bench.server.requests().len(), 1, "{error}");
        assert!(!bench.folder().exists(), "{error}");
    }
}

#[test]
fn refusals_of_a_file_are_told_from_those_of_the_model() {
    for (reply, expect) in [
        (
            Reply::status(404),
            "lists model.safetensors in org/name but does not have it",
        ),
        (Reply::status(403), "org/name is gated"),
    ] {
        let repo = Repo::whole(b"weights");
        let bench = Bench::new(move |request| match request.is_for(SINGLE) {
            true => reply.clone(),
            false => repo.answer(request),
        });
        let error = bench.refused();
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn a_server_that_is_not_there_is_reported() {
    let mut bench = Bench::healthy(Repo::whole(b"weights"));
    // Bound and dropped: nobody listens there now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bench.request.endpoint = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    assert!(bench.refused().contains("cannot reach http://127.0.0.1"));
    for endpoint in ["hub.co", "ftp://hub.co", "https://", "https://hub .co"] {
        bench.request.endpoint = endpoint.to_owned();
        let error = bench.pull().unwrap_err();
        assert!(matches!(error, HubError::BadEndpoint { .. }), "{error}");
    }
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for name in [
        "../evil.safetensors",
        "/evil.safetensors",
        ".djinn.json",
        "config.json",
    ] {
        let index = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
        let repo = Repo::new(&[
            ("config.json", b"{}"),
            ("../config.json", b"evil"),
            (INDEX, index.as_bytes()),
            (name, b"evil"),
        ]);
        let bench = Bench::healthy(repo);
        let error = bench.pull().unwrap_err();
        assert!(matches!(error, HubError::UnsafeName { .. }), "{error}");
        assert!(
            !bench
                .home
                .path()
                .join("models/org/evil.safetensors")
                .exists()
        );
        assert!(!Path::new("/evil.safetensors").exists());
        assert_eq!(fs::read(bench.folder().join("config.json")).unwrap(), b"{}");
        assert!(!bench.resolves());
    }
}

#[test]
fn repositories_without_a_model_are_refused_before_anything_is_written() {
    let pickle = Repo::new(&[("config.json", b"{}"), ("pytorch_model.bin", b"x")]);
    let bench = Bench::healthy(pickle);
    assert!(
        bench
            .refused()
            .contains("has no model.safetensors (it has pytorch_model.bin)")
    );
    assert!(!bench.folder().exists());
}

#[test]
fn an_index_must_be_true() {
    for (index, expect) in [
        (
            r#"{"weight_map":{"a":"x.safetensors"}}"#,
            "lists the shard x.safetensors",
        ),
        ("{", "not a usable index"),
        ("{}", "not a usable index"),
    ] {
        let repo = Repo::new(&[("config.json", b"{}"), (INDEX, index.as_bytes())]);
        let error = Bench::healthy(repo).refused();
        assert!(error.contains(expect), "{error}");
    }
}

#[test]
fn a_disk_too_small_is_found_out_first() {
    let mut repo = Repo::whole(b"weights");
    repo.lie = Some((SINGLE.to_owned(), Some(1 << 60), None));
    let bench = Bench::healthy(repo);
    let error = bench.refused();
    assert!(
        error.contains("the download needs 1152921504606846978"),
        "{error}"
    );
    assert_eq!(bench.server.requests().len(), 1);
}
