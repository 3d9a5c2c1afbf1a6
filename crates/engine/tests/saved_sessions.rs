//! Saved sessions in other engines: as files, of other owners and models, and of older releases.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::durable::{alone, engine_of, next_turns, numbered_request, restarted, result_bits};
use common::{How, KV_DTYPES, open, stories, with_kv};
use djinn_engine::{
    Blueprint, Engine, EngineError, Request, RestoreScope, SavedFile, SessionId, Settings,
    StateFolder,
};
use djinn_types::{DType, KvDtype};
use djinn_wal::WalError;
use djinn_weights::MemorySettings;

#[test]
fn a_session_moves_as_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    let file = folder.path().join("session.djinn");
    let expect = result_bits(&alone(0).0);
    let mut engine = restarted(1, &here);
    let old = engine.open(numbered_request(0)).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    drop(engine);
    let state = StateFolder::open(&here).unwrap();
    assert!(state.export(SessionId::from_bits(7)).is_err());
    state.export(old).unwrap().write(&file, false).unwrap();
    assert!(
        state.export(old).unwrap().write(&file, false).is_err(),
        "the file exists"
    );

    let mut state = StateFolder::open(&there).unwrap();
    let id = state.import(SavedFile::read(&file).unwrap()).unwrap();
    drop(state);
    let mut engine = restarted(1, &there);
    while next_turns(&mut engine).is_empty() {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
    }
    // The imported session has an id of its own.
    assert!(id > old);
    assert!(result_bits(&engine.close(id).unwrap()) == expect);
    // An inconsistent file is rejected without effect.
    let good = SavedFile::read(&file).unwrap();
    for given in [
        vec![(0, 999)],
        vec![],
        vec![(1, 3)],
        vec![(0, 5), (4, 6)],
        vec![(3, 0)],
    ] {
        let mut bad = good.clone();
        bad.session.given = given;
        let mut state = StateFolder::open(&folder.path().join("third")).unwrap();
        assert!(matches!(state.import(bad), Err(EngineError::Unreadable(_))));
    }
    fs::write(&file, "not a session").unwrap();
    assert!(SavedFile::read(&file).is_err());
}

#[test]
fn sessions_of_other_owners_models_or_sizes_are_rejected_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = restarted(1, folder.path());
    let id = first.open(numbered_request(0)).unwrap();
    let error = StateFolder::open(folder.path()).err().unwrap();
    let is_in_use = matches!(error, EngineError::Wal(WalError::InUse { .. }));
    assert!(is_in_use, "{error}");
    let access = |engine: &mut Engine, owner: &str| {
        let waits = engine
            .session(owner, id)
            .and_then(|mut session| session.wait(None));
        (engine.list(Some(owner)).len(), waits.is_ok())
    };
    assert_eq!(access(&mut first, "owner 0"), (1, true));
    assert_eq!(access(&mut first, "owner 1"), (0, false));
    drop(first);

    // An engine with another model.
    let model = open(&common::family("llama2"));
    let backend = How::default().backend();
    let settings = Settings::for_sessions(&model.program, 1, 32, 32).unwrap();
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    let mut other = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    let state = StateFolder::open(folder.path()).unwrap();
    let refused = other.attach_state(state, RestoreScope::All);
    assert!(matches!(refused, Err(EngineError::OtherModel { .. })));

    // An engine too small for the session: the session stays in the folder.
    let (model, backend) = (open(&stories()), How::default().backend());
    let settings = Settings::for_sessions(&model.program, 1, 4, 4).unwrap();
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    let mut small = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    let state = StateFolder::open(folder.path()).unwrap();
    let restored = small.attach_state(state, RestoreScope::All).unwrap();
    assert_eq!((restored.sessions.len(), restored.refused.len()), (0, 1));
    drop(small);
    assert_eq!(
        StateFolder::open(folder.path()).unwrap().sessions().count(),
        1
    );
}

#[test]
fn a_session_continues_only_with_its_own_type_of_keys_and_values() {
    let other_dtype = |error: &EngineError| matches!(error, EngineError::OtherKvDtype { .. });
    let mut tokens = Vec::new();
    for kv_dtype in KV_DTYPES {
        let folder = tempfile::tempdir().unwrap();
        let load = |kv_dtype| engine_of(open(&stories()), 1, with_kv(kv_dtype).memory);
        let attach = |engine: &mut Engine| {
            let state = StateFolder::open(folder.path()).unwrap();
            engine.attach_state(state, RestoreScope::All).unwrap()
        };
        let continued = |engine: &mut Engine, id| {
            let mut session = engine.any_session(id).unwrap();
            session.append(&[7], 12, &[]).unwrap();
            while !engine.is_idle() {
                engine.step().unwrap();
            }
            result_bits(&engine.close(id).unwrap())
        };
        let first_turn = |engine: &mut Engine| {
            let id = engine.open(numbered_request(0)).unwrap();
            while !engine.is_idle() {
                engine.step().unwrap();
            }
            id
        };
        let mut plain = load(kv_dtype);
        let id = first_turn(&mut plain);
        let expect = continued(&mut plain, id);

        let mut engine = load(kv_dtype);
        attach(&mut engine);
        let id = first_turn(&mut engine);
        let file = engine.any_session(id).unwrap().export().unwrap();
        drop(engine);
        let others = KV_DTYPES.into_iter().filter(|&other| other != kv_dtype);
        for (count, other) in (1..).zip(others) {
            let mut engine = load(other);
            let restored = attach(&mut engine);
            assert_eq!(
                (restored.sessions.len(), restored.refused.len()),
                (0, count)
            );
            let mut reasons = restored.refused.iter().map(|(_, error)| error);
            assert!(reasons.all(other_dtype), "{kv_dtype} {other}");
            let refused = engine.import(file.clone(), "owner 0").unwrap_err();
            assert!(other_dtype(&refused), "{kv_dtype} {other}: {refused}");
            // A session of the engine's own type may join it in the folder.
            first_turn(&mut engine);
        }
        // The other types left the session as it was.
        let mut engine = load(kv_dtype);
        let restored = attach(&mut engine);
        assert_eq!((restored.sessions, restored.refused.len()), (vec![id], 2));
        let imported = engine.import(file, "owner 0").unwrap();
        let saved = engine.any_session(imported).unwrap().export().unwrap();
        let dtype = kv_dtype.resolve(DType::F32);
        assert_eq!(saved.session.kv_dtype, Some(dtype));
        assert!(continued(&mut engine, id) == expect, "{kv_dtype}");
        assert!(continued(&mut engine, imported) == expect, "{kv_dtype}");
        tokens.push(expect);
    }
    // The types differ in log-probabilities, so continuing with another type would be seen.
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2]);
}

#[test]
fn a_damaged_record_costs_its_session_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = restarted(3, folder.path());
    let ids = [0, 1, 2].map(|number| engine.open(numbered_request(number)).unwrap());
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let tokens = |engine: &Engine, id| engine.view(id).unwrap().tokens().to_vec();
    let expect = [ids[1], ids[2]].map(|id| tokens(&engine, id));
    drop(engine);
    // Forty bytes of the first record of the first session become zero.
    let file = folder.path().join("log-0000000000000001.djinn");
    let mut bytes = fs::read(&file).unwrap();
    let owner = b"owner 0";
    let at = bytes.windows(owner.len()).position(|part| part == owner);
    let at = at.unwrap();
    bytes[at..at + 40].fill(0);
    fs::write(&file, &bytes).unwrap();

    let state = StateFolder::open(folder.path()).unwrap();
    assert_eq!(fs::read(&state.set_aside()[0]).unwrap(), bytes);
    let mut engine = common::durable::engine(3);
    let restored = engine.attach_state(state, RestoreScope::All).unwrap();
    assert_eq!(restored.sessions, ids[1..]);
    let damaged: Vec<_> = restored.damaged.iter().map(|lost| lost.session).collect();
    assert_eq!(damaged, [Some(ids[0]), None]);
    assert_eq!([ids[1], ids[2]].map(|id| tokens(&engine, id)), expect);
    // The id of the lost session is not given to another one.
    assert!(engine.open(numbered_request(3)).unwrap() > ids[2]);
    drop(engine);
    assert_eq!(StateFolder::open(folder.path()).unwrap().damaged(), []);
}

/// Copies the state folder that release 0.1 wrote for the golden mixtral model: one kept session
/// of three given and six generated tokens.
fn old_folder(to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state-0.1/mixtral");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_state_folder_of_release_0_1_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    old_folder(folder.path());
    let load_with = |name: &str, kv_dtype| {
        let model = open(&common::family(name));
        let settings = Settings::for_sessions(&model.program, 2, 40, 16).unwrap();
        let how = with_kv(kv_dtype);
        let blueprint = Blueprint::draw(&model, &*how.backend(), settings, how.memory).unwrap();
        Engine::load(model, &*how.backend(), blueprint, &mut |_| {}).unwrap()
    };
    // Release 0.1 had keys and values in f32, for these weights on every device.
    let load = |name: &str| load_with(name, KvDtype::F32);
    let state = || StateFolder::open(folder.path()).unwrap();
    let id = SessionId::from_bits(0);
    let saved = state().get(id).unwrap().tokens.clone();
    assert_eq!(saved.len(), 9);
    let refused = load("gpt2").attach_state(state(), RestoreScope::All);
    assert!(matches!(refused, Err(EngineError::OtherModel { .. })));
    // With keys and values of 16 bits the session would continue in another way. It stays in the
    // folder.
    for kv_dtype in [KvDtype::Auto, KvDtype::Bf16] {
        let mut engine = load_with("mixtral", kv_dtype);
        let restored = engine.attach_state(state(), RestoreScope::All).unwrap();
        assert_eq!((restored.sessions.len(), restored.refused.len()), (0, 1));
        let theirs = match &restored.refused[0] {
            (_, EngineError::OtherKvDtype { theirs, .. }) => *theirs,
            (_, other) => panic!("{other}"),
        };
        assert_eq!(theirs, DType::F32);
    }
    let mut engine = load("mixtral");
    let restored = engine.attach_state(state(), RestoreScope::All).unwrap();
    assert_eq!(restored.sessions, [id]);
    engine
        .any_session(id)
        .unwrap()
        .append(&[7], 3, &[])
        .unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let tokens = engine.view(id).unwrap().tokens().to_vec();
    assert_eq!((&tokens[..9], tokens.len()), (&saved[..], 13));
    // A new session with the same tokens continues in the same way.
    let mut fresh = load("mixtral");
    let ask = Request {
        tokens: tokens[..3].to_vec(),
        max_tokens: 6,
        keep: true,
        ..Request::default()
    };
    let again = fresh.open(ask).unwrap();
    while !fresh.is_idle() {
        fresh.step().unwrap();
    }
    fresh
        .any_session(again)
        .unwrap()
        .append(&[7], 3, &[])
        .unwrap();
    while !fresh.is_idle() {
        fresh.step().unwrap();
    }
    assert_eq!(fresh.view(again).unwrap().tokens(), tokens);
}
