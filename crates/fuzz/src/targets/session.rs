//! Saved sessions, read from bytes and continued by an engine.

use std::{cell::RefCell, sync::OnceLock};

use djinn_engine::{Engine, Request, SavedFile};

use crate::{fixtures, scratch};

/// Passes that an imported session may take.
const PASSES_MAX: usize = 3 * fixtures::CONTEXT;

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
}

/// Name and identity of the model, as its engine exports them.
pub fn identity() -> &'static (String, String) {
    static IDENTITY: OnceLock<(String, String)> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let mut engine = fixtures::engine();
        let request = Request {
            tokens: vec![1],
            keep: true,
            ..Request::default()
        };
        let id = engine.open(request).expect("a valid request");
        let session = engine.any_session(id).expect("the session is open");
        let file = session.export().expect("the model has an identity");
        (file.model, file.identity)
    })
}

/// Reads a saved session, imports it into an engine and a state folder, and runs it.
pub fn run(data: &[u8]) {
    let Ok(mut file) = SavedFile::from_bytes(data) else {
        return;
    };
    let _ = (file.session.generated(), file.session.state.status());
    let (model, identity) = identity();
    (file.model, file.identity) = (model.clone(), identity.clone());
    file.legacy_identity = None;
    import_into_folder(file.clone());
    ENGINE.with_borrow_mut(|engine| {
        let engine = engine.get_or_insert_with(fixtures::engine);
        let Ok(id) = engine.import(file, "owner") else {
            return;
        };
        run_passes(engine);
        if let Ok(session) = engine.any_session(id) {
            let saved = session.export().expect("an open session can be exported");
            let again = SavedFile::from_bytes(&saved.to_bytes());
            assert_eq!(again.expect("a written session is valid"), saved);
        }
        engine.close(id);
        engine.check_integrity();
    });
}

/// Runs the engine until no session can run.
pub fn run_passes(engine: &mut Engine) {
    for _ in 0..PASSES_MAX {
        if engine.is_idle() {
            return;
        }
        engine.step().expect("the device does not fail");
        engine.check_integrity();
    }
}

fn import_into_folder(file: SavedFile) {
    let folder = scratch::folder();
    let state = djinn_engine::StateFolder::open(folder.path());
    let mut state = state.expect("the temporary folder is writable");
    let Ok(id) = state.import(file) else {
        return;
    };
    let exported = state.export(id).expect("the session was imported");
    drop(state);
    let state = djinn_engine::StateFolder::open(folder.path()).expect("the log is valid");
    assert_eq!(state.export(id).expect("the session was written"), exported);
}
