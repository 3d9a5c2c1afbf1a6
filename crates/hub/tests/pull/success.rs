//! Tests of pulls without errors.

use std::fs;

use djinn_hub::{HubError, HubToken, pull};

use crate::fixture::{FileProgress, INDEX, ProgressLog, PullFixture, SINGLE};
use crate::repo::{ID, Repo, SHA, weights};
use crate::server::{Reply, Server};

fn sharded() -> Repo {
    let index = r#"{"metadata":{},"weight_map":{
        "a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors",
        "c":"model-00002-of-00002.safetensors"}}"#;
    Repo::new(&[
        (".gitattributes", b""),
        ("README.md", b"# A model"),
        ("chat_template.jinja", b"{{ messages }}"),
        ("config.json", b"{}"),
        ("generation_config.json", b"{}"),
        ("model-00001-of-00002.safetensors", &weights(300_000)),
        ("model-00002-of-00002.safetensors", &weights(200_000)),
        (INDEX, index.as_bytes()),
        ("original/consolidated.00.pth", b"pickle"),
        ("pytorch_model.bin", b"pickle"),
        ("special_tokens_map.json", b"{}"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.model", b"x"),
        ("tokenizer_config.json", b"{}"),
    ])
}

#[test]
fn only_files_that_djinn_reads_are_downloaded() {
    let repo = sharded();
    let fixture = PullFixture::healthy(repo.clone());
    let log = ProgressLog::default();
    assert_eq!(pull(&fixture.request, &log).unwrap(), fixture.folder());
    let expect = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(fixture.files(), expect.map(str::to_owned).into());
    assert_eq!(fixture.server.requests().len(), expect.len() + 1);
    for name in expect {
        let body = repo.body(name).unwrap();
        assert_eq!(
            fs::read(fixture.folder().join(name)).unwrap(),
            body,
            "{name}"
        );
        let bytes = body.len() as u64;
        assert_eq!(
            log.of(name),
            FileProgress {
                total: Some(bytes),
                already: 0,
                received: bytes,
                finished: true
            }
        );
    }
    let record = fs::read_to_string(fixture.folder().join(".djinn.json")).unwrap();
    assert!(record.contains(SHA), "{record}");
    assert!(fixture.resolves());
}

#[test]
fn a_complete_model_needs_one_request() {
    let fixture = PullFixture::healthy(sharded());
    fixture.pull().unwrap();
    fixture.server.forget();
    assert_eq!(fixture.pull().unwrap(), fixture.folder());
    let paths: Vec<String> = fixture
        .server
        .requests()
        .into_iter()
        .map(|r| r.path)
        .collect();
    assert_eq!(
        paths,
        [format!("/api/models/{ID}/revision/main?blobs=true")]
    );
    assert!(fixture.resolves());
}

#[test]
fn files_without_a_record_are_verified_instead_of_downloaded() {
    let repo = Repo::whole(&weights(10_000));
    let fixture = PullFixture::healthy(repo.clone());
    fixture.pull().unwrap();
    fs::remove_file(fixture.folder().join(".djinn.json")).unwrap();
    fixture.server.forget();
    fixture.pull().unwrap();
    assert_eq!(fixture.server.sent(SINGLE), []);
    // The hub lists no hash of config.json, so it cannot be verified.
    assert_eq!(fixture.server.sent("config.json"), [(0, 2)]);
}

#[test]
fn a_file_of_the_wrong_size_is_downloaded_again() {
    let fixture = PullFixture::healthy(Repo::whole(&weights(10_000)));
    fixture.pull().unwrap();
    let place = fixture.folder().join(SINGLE);
    fs::write(&place, weights(9_999)).unwrap();
    fixture.pull().unwrap();
    assert_eq!(fs::read(place).unwrap(), weights(10_000));
}

#[test]
fn the_token_is_sent_to_the_hub_only() {
    let repo = Repo::whole(&weights(50_000));
    let files = repo.clone();
    let cdn =
        Server::start(move |request| Reply::ranged(files.body(SINGLE).unwrap(), request.from()));
    let target = format!("{}/blob?signature=s", cdn.url);
    let mut fixture = PullFixture::new(move |request| {
        if request.is_for(SINGLE) {
            Reply::redirect("/moved?x=1")
        } else if request.path == "/moved?x=1" {
            Reply::redirect(&target)
        } else {
            repo.answer(request)
        }
    });
    fixture.request.token = Some(HubToken::new("hf_secret").unwrap());
    fixture.pull().unwrap();
    for request in fixture.server.requests() {
        assert_eq!(
            request.header("authorization"),
            Some("Bearer hf_secret"),
            "{}",
            request.path
        );
    }
    let from_cdn = cdn.requests();
    assert_eq!(from_cdn.len(), 1);
    assert_eq!(from_cdn[0].header("authorization"), None);
}

#[test]
fn a_locked_folder_is_not_written() {
    let fixture = PullFixture::healthy(Repo::whole(b"weights"));
    fixture.pull().unwrap();
    let lock = fs::File::open(fixture.folder().join(".lock")).unwrap();
    lock.lock().unwrap();
    let error = fixture.error();
    assert!(matches!(error, HubError::Busy { .. }), "{error}");
    drop(lock);
    fixture.pull().unwrap();
}

/// Serves `old` as revision main and `new` as revision v2.
fn with_update(old: Repo, mut new: Repo) -> PullFixture {
    new.sha = "f".repeat(40);
    PullFixture::new(move |request| {
        let is_new = request.path.contains("/v2") || request.path.contains(&new.sha);
        if is_new { &new } else { &old }.answer(request)
    })
}

#[test]
fn a_new_revision_replaces_changed_files_and_removes_old_ones() {
    let old = sharded();
    let mut new = old.clone();
    new.put("config.json", b"[]");
    let index = br#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#;
    new.put(INDEX, index);
    let mut fixture = with_update(old, new);
    fixture.pull().unwrap();
    assert!(fixture.files().contains("model-00002-of-00002.safetensors"));
    fixture.server.forget();
    fixture.request.revision = "v2".to_owned();
    fixture.pull().unwrap();
    assert!(!fixture.files().contains("model-00002-of-00002.safetensors"));
    let config = fs::read(fixture.folder().join("config.json")).unwrap();
    assert_eq!(config, b"[]", "of the same size as the old one");
    let asked = fixture.server.requests().len();
    assert_eq!(asked, 3, "the listing, config.json and the index");
    assert!(fixture.resolves());
}

#[test]
fn an_incomplete_update_is_not_a_model() {
    let old = Repo::whole(b"weights");
    let mut new = Repo::whole(b"WEIGHTS");
    new.lie = Some((SINGLE.to_owned(), None, Some("0".repeat(64))));
    let mut fixture = with_update(old, new);
    fixture.pull().unwrap();
    assert!(fixture.resolves());
    fixture.request.revision = "v2".to_owned();
    let error = fixture.error();
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    assert!(!fixture.resolves());
    // This is the state after a crash just after the new file replaced the old one.
    fs::write(fixture.folder().join(SINGLE), b"WEIGHTS").unwrap();
    fixture.request.revision = "main".to_owned();
    fixture.pull().unwrap();
    let weights = fs::read(fixture.folder().join(SINGLE)).unwrap();
    assert_eq!(weights, b"weights");
    assert!(fixture.resolves());
}

#[test]
fn a_revision_is_one_segment_of_the_url() {
    let mut fixture = PullFixture::healthy(Repo::whole(b"weights"));
    fixture.request.revision = "refs/pr/1 ?".to_owned();
    fixture.pull().unwrap();
    let path = &fixture.server.requests()[0].path;
    assert_eq!(
        path,
        &format!("/api/models/{ID}/revision/refs%2Fpr%2F1%20%3F?blobs=true")
    );
    fixture.request.revision = " ".to_owned();
    assert!(matches!(fixture.pull(), Err(HubError::BadRevision { .. })));
}
