//! Saved prefixes: an input is the list of pages of an archive, which an engine reads.

use std::{
    path::Path,
    sync::OnceLock,
    time::{Duration, Instant},
};

use djinn_engine::{Engine, Request, RestoreScope, StateFolder};
use djinn_wal::{Archive, ArchiveWriter};
use serde_json::Value;

use super::session::run_passes;
use crate::{fixtures, scratch};

/// Name of the archive in a state folder.
const FILE: &str = "prefixes.djinn";
/// Largest number of pages of an archive.
const PAGES_MAX: usize = 40;

/// Reads the pages with an engine, which then runs a request that begins with tokens of the list.
pub fn run(data: &[u8]) {
    let Ok(Value::Object(mut header)) = serde_json::from_slice(data) else {
        return;
    };
    let pages = header.get("pages").and_then(Value::as_array);
    let count = pages.map_or(0, Vec::len);
    if count > PAGES_MAX {
        return;
    }
    header.insert("origin".to_owned(), origin().clone());
    let folder = scratch::folder();
    let mut engine = fixtures::engine();
    let header = Value::Object(header).to_string();
    write(
        folder.path(),
        &header,
        count,
        engine.blueprint().page_bytes(),
    );
    attach(&mut engine, folder.path());
    engine.check_integrity();
    let request = Request {
        tokens: vec![1; fixtures::CONTEXT / 2],
        max_tokens: 2,
        ..Request::default()
    };
    let id = engine.open(request).expect("a valid request");
    run_passes(&mut engine);
    engine.close(id);
    let saved = engine.save_prefixes(soon());
    saved.expect("the temporary folder is writable");
}

/// Time until which pages are saved.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Origin of pages that an engine of the fixtures accepts.
fn origin() -> &'static Value {
    static ORIGIN: OnceLock<Value> = OnceLock::new();
    ORIGIN.get_or_init(|| {
        let folder = scratch::folder();
        let mut engine = fixtures::engine();
        attach(&mut engine, folder.path());
        let request = Request {
            tokens: vec![1; fixtures::CONTEXT / 2],
            ..Request::default()
        };
        engine.open(request).expect("a valid request");
        run_passes(&mut engine);
        let saved = engine.save_prefixes(soon());
        assert!(saved.expect("the temporary folder is writable").pages > 0);
        let archive = Archive::open(&folder.path().join(FILE)).expect("the archive is valid");
        let header: Value = serde_json::from_slice(archive.header()).expect("the header is JSON");
        header["origin"].clone()
    })
}

fn attach(engine: &mut Engine, folder: &Path) {
    let state = StateFolder::open(folder).expect("the temporary folder is writable");
    let restored = engine.attach_state(state, RestoreScope::All);
    restored.expect("the folder has no sessions");
}

fn write(folder: &Path, header: &str, pages: usize, page_bytes: u64) {
    let (path, page) = (folder.join(FILE), vec![0; page_bytes as usize]);
    let mut writer = ArchiveWriter::create(&path, header.as_bytes(), page_bytes, false)
        .expect("the temporary folder is writable");
    for _ in 0..pages {
        writer.write(&page).expect("the page has the right size");
    }
    writer.finish().expect("the temporary folder is writable");
}
