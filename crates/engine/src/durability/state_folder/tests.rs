//! Tests of damaged state folders: every session that was not touched is complete, and the others
//! stay at a point that they had.

use std::{collections::BTreeMap, fs, path::PathBuf};

use djinn_types::{DType, SessionId};
use djinn_wal::{Log, LogContents};
use proptest::prelude::*;
use tempfile::TempDir;

use super::{FolderContents, StateFolder, model_record};
use crate::{
    durability::{
        identity::ModelIdentity,
        records::Record,
        saved_session::{SavedSession, SavedState},
    },
    error::EngineError,
    sampling::sampler::Sampling,
    scheduler::fair_share::Class,
};

/// Identifier of a session in these tests.
fn named(number: u64) -> SessionId {
    SessionId::from_bits(number.into())
}

fn model() -> Record {
    let identity = ModelIdentity {
        name: "model".to_owned(),
        identity: "digest".to_owned(),
        legacy: None,
    };
    model_record(&identity)
}

fn opened(id: u64) -> Record {
    Record::Session(Box::new(SavedSession {
        id: named(id),
        owner: format!("owner {id}"),
        class: Class::Interactive,
        tokens: vec![id as u32; 3],
        given: vec![(0, 3)],
        max_tokens: 4,
        keep: true,
        sampling: Sampling::default(),
        eos: Vec::new(),
        stop: Vec::new(),
        logprobs: Vec::new(),
        probe: None,
        deadline: None,
        lease: None,
        state: SavedState::Ready,
        past: None,
        kv_dtype: Some(DType::F16),
    }))
}

fn generated(id: u64, after: usize, state: Option<SavedState>) -> Record {
    Record::Tokens {
        id: named(id),
        after,
        tokens: vec![100 + after as u32, 101 + after as u32],
        logprobs: Vec::new(),
        state,
    }
}

fn said(id: u64, after: usize, max_tokens: usize) -> Record {
    Record::Said {
        id: named(id),
        after: Some(after),
        tokens: vec![7; 2],
        max_tokens,
        probe: None,
    }
}

/// Records of one session: two turns, and the end for every fourth session.
fn history(id: u64) -> Vec<Record> {
    let mut records = vec![
        opened(id),
        generated(id, 3, None),
        generated(id, 5, Some(SavedState::TurnOver)),
        said(id, 7, 8),
        generated(id, 9, None),
        Record::State {
            id: named(id),
            after: Some(11),
            state: SavedState::Waiting,
        },
    ];
    if id % 4 == 3 {
        records.push(Record::Closed { id: named(id) });
    }
    records
}

/// Interleaved records of several sessions, behind the record of the model.
fn interleaved(sessions: u64) -> Vec<Record> {
    let mut queues: Vec<_> = (0..sessions).map(|id| history(id).into_iter()).collect();
    let mut records = vec![model()];
    for round in 0..40 {
        let many = queues.len();
        records.extend(queues[(round * 7 + round / 3) % many].next());
    }
    records.extend(queues.into_iter().flatten());
    records
}

fn session_of(record: &Record) -> Option<SessionId> {
    match record {
        Record::Model { .. } => None,
        Record::Session(session) => Some(session.id),
        Record::Said { id, .. }
        | Record::Tokens { id, .. }
        | Record::State { id, .. }
        | Record::Closed { id } => Some(*id),
    }
}

/// Writes records to a folder. Returns the folder, the file and the end of each record.
fn written(records: &[Vec<u8>]) -> (TempDir, PathBuf, Vec<usize>) {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = Log::open(folder.path()).unwrap();
    let mut ends = vec![log.bytes() as usize];
    for record in records {
        log.append(record).unwrap();
        ends.push(log.bytes() as usize);
    }
    log.sync().unwrap();
    let file = folder.path().join("log-0000000000000001.djinn");
    (folder, file, ends)
}

fn encode(records: &[Record]) -> Vec<Vec<u8>> {
    records.iter().map(Record::to_bytes).collect()
}

/// Content of a folder with the record of a model and these records.
fn content_of(records: &[Vec<u8>]) -> FolderContents {
    FolderContents::read(&LogContents {
        records: [&[model().to_bytes()], records].concat(),
        ..LogContents::default()
    })
}

/// All states that each session had: none, then one after each of its records.
fn states(records: &[Record]) -> BTreeMap<SessionId, Vec<Option<SavedSession>>> {
    let mut states: BTreeMap<SessionId, Vec<Option<SavedSession>>> = BTreeMap::new();
    let mut contents = FolderContents::default();
    for record in records {
        contents.apply(record.clone());
        if let Some(id) = session_of(record) {
            let state = contents.sessions.get(&id).cloned();
            states.entry(id).or_insert(vec![None]).push(state);
        }
    }
    states
}

/// Whether two sessions have the same tokens and limits, or neither exists.
fn same_tokens(a: Option<&SavedSession>, b: Option<&SavedSession>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            a.tokens == b.tokens && a.given == b.given && a.max_tokens == b.max_tokens
        }
        (a, b) => a.is_none() && b.is_none(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn damage_of_any_range_leaves_untouched_sessions_complete(
        sessions in 1..7u64,
        from in any::<prop::sample::Index>(),
        length in prop_oneof![1..60usize, 1..3000usize],
        flip in prop::option::of(1..=255u8),
    ) {
        let records = interleaved(sessions);
        let (folder, file, ends) = written(&encode(&records));
        let mut bytes = fs::read(&file).unwrap();
        let before = bytes.clone();
        let start = from.index(bytes.len());
        let end = bytes.len().min(start + length);
        match flip {
            Some(flip) => bytes[start..end].iter_mut().for_each(|byte| *byte ^= flip),
            None => bytes[start..end].fill(0),
        }
        fs::write(&file, &bytes).unwrap();
        let touched: Vec<SessionId> = (0..records.len())
            .filter(|&i| before[ends[i]..ends[i + 1]] != bytes[ends[i]..ends[i + 1]])
            .filter_map(|i| session_of(&records[i]))
            .collect();

        let inspected = StateFolder::inspect(folder.path()).unwrap();
        prop_assert_eq!(&fs::read(&file).unwrap(), &bytes);
        let state = StateFolder::open(folder.path()).unwrap();
        prop_assert_eq!(&inspected.sessions, &state.contents.sessions);
        prop_assert_eq!(inspected.damaged(), state.damaged());
        for (id, states) in states(&records) {
            let found = state.get(id).ok();
            match touched.contains(&id) {
                false => prop_assert_eq!(found, states.last().unwrap().as_ref()),
                true => {
                    let has_had = |state: &Option<SavedSession>| same_tokens(state.as_ref(), found);
                    prop_assert!(states.iter().any(has_had), "session {} is invented", id);
                }
            }
        }
        // Damage that reaches the end of the file looks like a torn write.
        if !touched.is_empty() && state.torn() == 0 {
            prop_assert!(!state.damaged().is_empty());
            prop_assert_eq!(&fs::read(&state.set_aside()[0]).unwrap(), &bytes);
        }
        // A repaired folder is whole.
        let repaired = state.contents.sessions.clone();
        drop(state);
        let report = StateFolder::repair(folder.path()).unwrap();
        prop_assert_eq!(report.set_aside, Vec::<PathBuf>::new());
        let inspected = StateFolder::inspect(folder.path()).unwrap();
        prop_assert_eq!(&inspected.sessions, &repaired);
        // A lost record of the model is reported until a model claims the folder.
        prop_assert!(inspected.damaged().is_empty() || inspected.model.is_none());
    }
}

#[test]
fn a_session_stays_at_its_last_consistent_point() {
    let whole = history(1);
    let at = |lost: usize| {
        let mut records = whole.clone();
        records.remove(lost);
        let contents = content_of(&encode(&records));
        let length = contents.get(named(1)).map(|s| s.tokens.len()).ok();
        (length, contents.damaged().len(), contents.last_id)
    };
    // The first record, tokens, and input each make the later records unusable.
    let expect = [
        (None, 1),
        (Some(3), 1),
        (Some(5), 1),
        (Some(7), 1),
        (Some(9), 1),
    ];
    for (lost, (length, damaged)) in expect.into_iter().enumerate() {
        assert_eq!(at(lost), (length, damaged, named(1)), "record {lost}");
    }
    // A complete record of the session makes the loss good, and so does its end.
    for last in [opened(1), Record::Closed { id: named(1) }] {
        let records = [whole[0].clone(), whole[2].clone(), last];
        assert_eq!(content_of(&encode(&records)).damaged(), []);
    }
}

#[test]
fn an_unreadable_record_costs_one_session() {
    let mut records = encode(&interleaved(3));
    records.insert(8, br#"{"from-the-future":{"id":1,"x":2}}"#.to_vec());
    records.insert(8, b"{not json".to_vec());
    let (folder, file, _) = written(&records);
    let before = fs::read(&file).unwrap();
    let report = StateFolder::repair(folder.path()).unwrap();
    let lost: Vec<_> = report.damaged.iter().map(|damage| damage.session).collect();
    assert_eq!(lost, [Some(named(1)), None]);
    assert_eq!(report.sessions, 3);
    assert_eq!(fs::read(&report.set_aside[0]).unwrap(), before);
    let state = StateFolder::open(folder.path()).unwrap();
    assert_eq!(state.damaged(), [], "the new log has no such records");
    let whole = states(&interleaved(3));
    for id in [0, 2] {
        let expect = whole[&named(id)].last().unwrap().as_ref();
        assert_eq!(state.get(named(id)).ok(), expect);
    }
}

#[test]
fn records_of_release_0_1_are_not_trusted_behind_a_loss() {
    let old = |record: Record| match record {
        Record::Said {
            id,
            tokens,
            max_tokens,
            probe,
            ..
        } => Record::Said {
            id,
            after: None,
            tokens,
            max_tokens,
            probe,
        },
        other => other,
    };
    let records: Vec<Record> = history(1).into_iter().map(old).collect();
    assert_eq!(content_of(&encode(&records)).damaged(), []);
    // Without the tokens of the first turn, the input would follow the wrong token.
    let mut bytes = encode(&records);
    bytes[2] = b"damaged".to_vec();
    let contents = content_of(&bytes);
    assert_eq!(contents.get(named(1)).unwrap().tokens.len(), 5);
    assert_eq!(contents.damaged()[0].session, Some(named(1)));
}

#[test]
fn sessions_without_the_record_of_their_model_are_kept() {
    let records = interleaved(2);
    let (folder, ..) = written(&encode(&records[1..]));
    let mut state = StateFolder::open(folder.path()).unwrap();
    assert_eq!((state.sessions().count(), state.damaged().len()), (2, 1));
    let error = state.export(named(0)).unwrap_err();
    assert!(matches!(error, EngineError::Unreadable(_)), "{error}");
    let identity = ModelIdentity {
        name: "model".to_owned(),
        identity: "digest".to_owned(),
        legacy: None,
    };
    state.claim(&identity).unwrap();
    drop(state);
    let state = StateFolder::open(folder.path()).unwrap();
    assert_eq!((state.model(), state.damaged().len()), (Some("model"), 0));
    state.export(named(0)).unwrap();
}
