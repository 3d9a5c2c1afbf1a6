//! Tests of pulls that fail, and of the kind of their error.

use std::fs;
use std::path::Path;

use djinn_hub::{HubError, HubToken, ResponseProblem, pull};

use crate::fixture::{INDEX, ProgressLog, PullFixture, SINGLE};
use crate::repo::{Repo, sha256, weights};
use crate::server::Reply;

#[test]
fn circular_redirects_end() {
    let fixture = PullFixture::new(|request| Reply::redirect(&request.path));
    let error = fixture.error();
    let HubError::BadResponse { problem, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(problem, ResponseProblem::TooManyRedirects);
}

#[test]
fn damaged_files_are_removed() {
    let mut repo = Repo::whole(&weights(5_000));
    repo.lie = Some((SINGLE.to_owned(), None, Some(sha256(b"other"))));
    let fixture = PullFixture::healthy(repo);
    let error = fixture.error();
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    assert!(!fixture.files().contains(SINGLE));
    let parts = fs::read_dir(fixture.folder().join(".parts")).unwrap();
    let mut parts = parts.map(|part| part.unwrap().file_name().into_string().unwrap());
    assert!(!parts.any(|part| part.starts_with(SINGLE)));
    assert!(!fixture.resolves());
}

#[test]
fn a_size_that_differs_from_the_listing_is_refused() {
    for listed in [4_999, 5_001] {
        let mut repo = Repo::whole(&weights(5_000));
        repo.lie = Some((SINGLE.to_owned(), Some(listed), None));
        let fixture = PullFixture::healthy(repo);
        match fixture.error() {
            HubError::WrongSize {
                want_bytes,
                got_bytes,
                ..
            } => assert_eq!((want_bytes, got_bytes), (listed, 5_000)),
            other => panic!("{other}"),
        }
        assert_eq!(fixture.server.sent(SINGLE).len(), 1);
    }
}

#[test]
fn a_body_longer_than_listed_is_cut_off() {
    let body = weights(500_000);
    let repo = Repo::whole(&body[..5_000]);
    let fixture = PullFixture::new(move |request| match request.is_for(SINGLE) {
        true => Reply::ok(body.clone()).unsized_body(),
        false => repo.answer(request),
    });
    let log = ProgressLog::default();
    let error = pull(&fixture.request, &log).unwrap_err();
    assert!(
        matches!(
            error,
            HubError::WrongSize {
                want_bytes: 5_000,
                ..
            }
        ),
        "{error}"
    );
    assert!(log.of(SINGLE).received <= 5_000);
}

#[test]
fn every_status_of_the_listing_has_its_error() {
    let gated = |status| Reply::status(status).with("x-error-code", "GatedRepo");
    let no_revision = Reply::status(404).with("x-error-code", "RevisionNotFound");
    let is_gated = |error: &HubError| matches!(error, HubError::Gated { .. });
    type Case = (Reply, bool, fn(&HubError) -> bool);
    let cases: [Case; 10] = [
        (Reply::status(401), false, |error| {
            matches!(error, HubError::TokenNeeded { .. })
        }),
        (Reply::status(401), true, |error| {
            matches!(error, HubError::TokenRefused { .. })
        }),
        (gated(401), false, is_gated),
        (gated(403), true, is_gated),
        (Reply::status(403), false, is_gated),
        (Reply::status(404), false, |error| {
            matches!(error, HubError::NoSuchModel { .. })
        }),
        (
            no_revision,
            false,
            |error| matches!(error, HubError::NoSuchRevision { revision, .. } if revision == "main"),
        ),
        (Reply::status(418), false, |error| {
            matches!(error, HubError::Status { status: 418, .. })
        }),
        (Reply::ok("<html>"), false, |error| {
            let HubError::BadResponse { problem, .. } = error else {
                return false;
            };
            matches!(problem, ResponseProblem::NotAListing(_))
        }),
        (
            Reply::ok(r#"{"sha":"../x","siblings":[]}"#),
            false,
            |error| {
                let HubError::BadResponse { problem, .. } = error else {
                    return false;
                };
                *problem == ResponseProblem::NoCommit
            },
        ),
    ];
    for (reply, token, is_expected) in cases {
        let mut fixture = PullFixture::new(move |_| reply.clone());
        fixture.request.token = token.then(|| HubToken::new("hf_secret").unwrap());
        let error = fixture.error();
        assert!(is_expected(&error), "{error:?}");
        let message = error.to_string();
        assert!(
            !message.contains("hf_secret") && !message.contains('\n'),
            "{message}"
        );
        assert_eq!(fixture.server.requests().len(), 1, "{message}");
        assert!(!fixture.folder().exists(), "{message}");
    }
}

#[test]
fn errors_of_a_file_differ_from_errors_of_the_model() {
    let error = |reply: Reply| {
        let repo = Repo::whole(b"weights");
        let fixture = PullFixture::new(move |request| match request.is_for(SINGLE) {
            true => reply.clone(),
            false => repo.answer(request),
        });
        fixture.error()
    };
    match error(Reply::status(404)) {
        HubError::NoSuchFile { file, .. } => assert_eq!(file, SINGLE),
        other => panic!("{other}"),
    }
    let gated = error(Reply::status(403));
    assert!(matches!(gated, HubError::Gated { .. }), "{gated}");
}

#[test]
fn an_unreachable_server_is_reported() {
    let mut fixture = PullFixture::healthy(Repo::whole(b"weights"));
    // The port of a closed listener refuses connections.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    fixture.request.endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let error = fixture.error();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    for endpoint in ["hub.co", "ftp://hub.co", "https://", "https://hub .co"] {
        fixture.request.endpoint = endpoint.to_owned();
        let error = fixture.error();
        assert!(matches!(error, HubError::BadEndpoint { .. }), "{error}");
    }
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
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
        let fixture = PullFixture::healthy(repo);
        let error = fixture.pull().unwrap_err();
        assert!(matches!(error, HubError::UnsafeName { .. }), "{error}");
        assert!(
            !fixture
                .home
                .path()
                .join("models/org/evil.safetensors")
                .exists()
        );
        assert!(!Path::new("/evil.safetensors").exists());
        assert_eq!(
            fs::read(fixture.folder().join("config.json")).unwrap(),
            b"{}"
        );
        assert!(!fixture.resolves());
    }
}

#[test]
fn a_repository_without_a_model_is_refused_before_writing() {
    let pickle = Repo::new(&[("config.json", b"{}"), ("pytorch_model.bin", b"x")]);
    let fixture = PullFixture::healthy(pickle);
    match fixture.error() {
        HubError::NotACheckpoint { missing, found, .. } => {
            assert_eq!((missing, &*found), (SINGLE, "pytorch_model.bin"));
        }
        other => panic!("{other}"),
    }
    assert!(!fixture.folder().exists());
}

#[test]
fn invalid_indexes_are_refused() {
    let error = |index: &str| {
        let repo = Repo::new(&[("config.json", b"{}"), (INDEX, index.as_bytes())]);
        PullFixture::healthy(repo).error()
    };
    match error(r#"{"weight_map":{"a":"x.safetensors"}}"#) {
        HubError::MissingShard { shard, .. } => assert_eq!(shard, "x.safetensors"),
        other => panic!("{other}"),
    }
    for index in ["{", "{}"] {
        let error = error(index);
        assert!(matches!(error, HubError::BadIndex { .. }), "{error}");
    }
}

#[test]
fn too_little_disk_space_is_detected_before_the_download() {
    let mut repo = Repo::whole(b"weights");
    repo.lie = Some((SINGLE.to_owned(), Some(1 << 60), None));
    let fixture = PullFixture::healthy(repo);
    match fixture.error() {
        HubError::NoSpace { need_bytes, .. } => assert_eq!(need_bytes, (1 << 60) + 2),
        other => panic!("{other}"),
    }
    assert_eq!(fixture.server.requests().len(), 1);
}
