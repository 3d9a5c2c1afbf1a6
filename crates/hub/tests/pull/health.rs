//! What a pull does when all is well.

use std::fs;

use djinn_hub::{HubError, Token, pull};

use crate::bench::{Bench, INDEX, SINGLE, Seen, Watcher};
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
fn takes_what_djinn_needs_and_nothing_else() {
    let repo = sharded();
    let bench = Bench::healthy(repo.clone());
    let watcher = Watcher::default();
    assert_eq!(pull(&bench.request, &watcher).unwrap(), bench.folder());
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
    assert_eq!(bench.files(), expect.map(str::to_owned).into());
    assert_eq!(bench.server.requests().len(), expect.len() + 1);
    for name in expect {
        let body = repo.body(name).unwrap();
        assert_eq!(fs::read(bench.folder().join(name)).unwrap(), body, "{name}");
        let bytes = body.len() as u64;
        assert_eq!(
            watcher.saw(name),
            Seen {
                total: Some(bytes),
                already: 0,
                came: bytes,
                finished: true
            }
        );
    }
    let record = fs::read_to_string(bench.folder().join(".djinn.json")).unwrap();
    assert!(record.contains(SHA), "{record}");
    assert!(bench.resolves());
}

#[test]
fn a_complete_model_costs_one_request() {
    let bench = Bench::healthy(sharded());
    bench.pull().unwrap();
    bench.server.forget();
    assert_eq!(bench.pull().unwrap(), bench.folder());
    let paths: Vec<String> = bench
        .server
        .requests()
        .into_iter()
        .map(|r| r.path)
        .collect();
    assert_eq!(
        paths,
        [format!("/api/models/{ID}/revision/main?blobs=true")]
    );
    assert!(bench.resolves());
}

#[test]
fn files_without_a_record_are_verified_rather_than_fetched() {
    let repo = Repo::whole(&weights(10_000));
    let bench = Bench::healthy(repo.clone());
    bench.pull().unwrap();
    fs::remove_file(bench.folder().join(".djinn.json")).unwrap();
    bench.server.forget();
    bench.pull().unwrap();
    assert_eq!(bench.server.sent(SINGLE), []);
    // The hub lists no hash of it, so there is nothing to verify it by.
    assert_eq!(bench.server.sent("config.json"), [(0, 2)]);
}

#[test]
fn a_damaged_length_is_repaired() {
    let bench = Bench::healthy(Repo::whole(&weights(10_000)));
    bench.pull().unwrap();
    let place = bench.folder().join(SINGLE);
    fs::write(&place, weights(9_999)).unwrap();
    bench.pull().unwrap();
    assert_eq!(fs::read(place).unwrap(), weights(10_000));
}

#[test]
fn the_token_stays_with_the_hub() {
    let repo = Repo::whole(&weights(50_000));
    let files = repo.clone();
    let cdn =
        Server::start(move |request| Reply::ranged(files.body(SINGLE).unwrap(), request.from()));
    let target = format!("{}/blob?signature=s", cdn.url);
    let mut bench = Bench::new(move |request| {
        if request.is_for(SINGLE) {
            Reply::redirect("/moved?x=1")
        } else if request.path == "/moved?x=1" {
            Reply::redirect(&target)
        } else {
            repo.answer(request)
        }
    });
    bench.request.token = Some(Token::new("hf_secret").unwrap());
    bench.pull().unwrap();
    for request in bench.server.requests() {
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
fn two_pulls_do_not_write_one_folder() {
    let bench = Bench::healthy(Repo::whole(b"weights"));
    bench.pull().unwrap();
    let lock = fs::File::open(bench.folder().join(".lock")).unwrap();
    lock.lock().unwrap();
    assert!(bench.refused().contains("another djinn is pulling"));
    drop(lock);
    bench.pull().unwrap();
}

/// A hub that holds `old`, and `new` as revision v2.
fn with_update(old: Repo, mut new: Repo) -> Bench {
    new.sha = "f".repeat(40);
    Bench::new(move |request| {
        let is_new = request.path.contains("/v2") || request.path.contains(&new.sha);
        if is_new { &new } else { &old }.answer(request)
    })
}

#[test]
fn a_new_revision_fetches_what_changed_and_drops_what_went() {
    let old = sharded();
    let mut new = old.clone();
    new.put("config.json", b"[]");
    let index = br#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#;
    new.put(INDEX, index);
    let mut bench = with_update(old, new);
    bench.pull().unwrap();
    assert!(bench.files().contains("model-00002-of-00002.safetensors"));
    bench.server.forget();
    bench.request.revision = "v2".to_owned();
    bench.pull().unwrap();
    assert!(!bench.files().contains("model-00002-of-00002.safetensors"));
    let config = fs::read(bench.folder().join("config.json")).unwrap();
    assert_eq!(config, b"[]", "of the same size as the old one");
    let asked = bench.server.requests().len();
    assert_eq!(asked, 3, "the listing, config.json and the index");
    assert!(bench.resolves());
}

#[test]
fn half_an_update_is_not_a_model() {
    let old = Repo::whole(b"weights");
    let mut new = Repo::whole(b"WEIGHTS");
    new.lie = Some((SINGLE.to_owned(), None, Some("0".repeat(64))));
    let mut bench = with_update(old, new);
    bench.pull().unwrap();
    assert!(bench.resolves());
    bench.request.revision = "v2".to_owned();
    assert!(bench.refused().contains("arrived damaged"));
    assert!(!bench.resolves());
    // As a crash would leave it, right after the new file took its place.
    fs::write(bench.folder().join(SINGLE), b"WEIGHTS").unwrap();
    bench.request.revision = "main".to_owned();
    bench.pull().unwrap();
    let weights = fs::read(bench.folder().join(SINGLE)).unwrap();
    assert_eq!(weights, b"weights");
    assert!(bench.resolves());
}

#[test]
fn a_revision_is_one_segment_of_the_address() {
    let mut bench = Bench::healthy(Repo::whole(b"weights"));
    bench.request.revision = "refs/pr/1 ?".to_owned();
    bench.pull().unwrap();
    let path = &bench.server.requests()[0].path;
    assert_eq!(
        path,
        &format!("/api/models/{ID}/revision/refs%2Fpr%2F1%20%3F?blobs=true")
    );
    bench.request.revision = " ".to_owned();
    assert!(matches!(bench.pull(), Err(HubError::BadRevision { .. })));
}
