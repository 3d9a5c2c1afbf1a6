//! Tests of the log: locks, compaction, files that replace each other, and any change of a file.

mod damage;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::format::{HEAD_BYTES, HEADER_BYTES, MARK_BYTES};
use super::tail::{Tail, file_name};
use super::{Log, LogContents, WalError};

/// Number of bytes of a log without records.
const EMPTY_BYTES: usize = HEADER_BYTES + MARK_BYTES;

/// Creates a log with these records and closes it. Returns its folder, its file and its bytes.
fn closed_log(records: &[Vec<u8>]) -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, found) = Log::open(folder.path()).unwrap();
    assert_eq!(found, LogContents::default());
    for record in records {
        log.append(record).unwrap();
    }
    log.sync().unwrap();
    let file = folder.path().join(file_name(1));
    let bytes = fs::read(&file).unwrap();
    assert_eq!(log.bytes(), bytes.len() as u64);
    (folder, file, bytes)
}

fn example() -> Vec<Vec<u8>> {
    let texts = ["one", "", "three is longer", "4"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Offsets of the records, and of the end.
fn offsets(records: &[Vec<u8>]) -> Vec<usize> {
    let mut at = EMPTY_BYTES;
    let ends = records.iter().map(|record| {
        at += HEAD_BYTES + record.len();
        at
    });
    [EMPTY_BYTES].into_iter().chain(ends).collect()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

#[test]
fn a_second_open_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("a/b");
    let (mut log, _) = Log::open(&inner).unwrap();
    log.append(b"kept").unwrap();
    let error = Log::open(&inner).unwrap_err();
    assert!(matches!(error, WalError::InUse { .. }), "{error}");
    drop(log);
    assert_eq!(Log::open(&inner).unwrap().1.records, [b"kept"]);
}

#[test]
fn compaction_replaces_all_records() {
    let (folder, ..) = closed_log(&example());
    let (mut log, _) = Log::open(folder.path()).unwrap();
    log.append(b"five").unwrap();
    log.compact([b"all".to_vec()]).unwrap();
    let expect = EMPTY_BYTES + HEAD_BYTES + 3;
    assert_eq!(log.bytes(), expect as u64);
    log.append(b"more").unwrap();
    log.sync().unwrap();
    assert_eq!(files(folder.path()), ["lock", &file_name(2)]);
    drop(log);
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!(found.records, [b"all".to_vec(), b"more".to_vec()]);
}

#[test]
fn a_failed_compaction_changes_nothing() {
    let (folder, ..) = closed_log(&example());
    let (mut log, _) = Log::open(folder.path()).unwrap();
    let long = vec![0; super::PAYLOAD_BYTES_MAX as usize + 1];
    let error = log.compact([b"fits".to_vec(), long]).unwrap_err();
    assert!(matches!(error, WalError::TooLong { .. }), "{error}");
    // A folder with the name of the new file makes the rename fail.
    let taken = folder.path().join(file_name(2));
    fs::create_dir(&taken).unwrap();
    let error = log.compact([b"fits".to_vec()]).unwrap_err();
    assert!(matches!(error, WalError::System { .. }), "{error}");
    fs::remove_dir(&taken).unwrap();
    assert_eq!(files(folder.path()), ["lock", &file_name(1)]);
    log.append(b"five").unwrap();
    drop(log);
    assert_eq!(Log::open(folder.path()).unwrap().1.records.len(), 5);
}

#[test]
fn a_compaction_repairs_a_log_that_accepts_no_records() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = Log::open(folder.path()).unwrap();
    log.append(b"before").unwrap();
    log.tail.poison();
    let error = log.append(b"lost").unwrap_err();
    assert!(matches!(error, WalError::Poisoned { .. }), "{error}");
    log.compact([b"all".to_vec()]).unwrap();
    log.append(b"after").unwrap();
    log.sync().unwrap();
    drop(log);
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!(found.records, [&b"all"[..], b"after"]);
}

#[test]
fn an_interrupted_compaction_leaves_one_complete_log() {
    let old = example();
    let new = vec![b"new".to_vec(); 3];
    let compacted = {
        let (folder, ..) = closed_log(&old);
        let tail = Tail::create(folder.path(), 2, new.clone()).unwrap();
        fs::read(tail.path()).unwrap()
    };
    let check = |unfinished: Option<usize>, named: bool, removed: bool| {
        let (folder, file, _) = closed_log(&old);
        if let Some(bytes) = unfinished {
            let path = folder.path().join("log-0000000000000002.tmp");
            fs::write(path, &compacted[..bytes]).unwrap();
        }
        if named {
            fs::write(folder.path().join(file_name(2)), &compacted).unwrap();
        }
        if removed {
            fs::remove_file(file).unwrap();
        }
        let (mut log, found) = Log::open(folder.path()).unwrap();
        assert_eq!(&found.records, if named { &new } else { &old });
        let generation = if named { 2 } else { 1 };
        assert_eq!(files(folder.path()), ["lock", &file_name(generation)]);
        log.compact([b"again".to_vec()]).unwrap();
        drop(log);
        assert_eq!(Log::open(folder.path()).unwrap().1.records, [b"again"]);
    };
    for bytes in (0..=compacted.len()).step_by(9) {
        check(Some(bytes), false, false);
    }
    check(None, true, false);
    check(None, true, true);
    check(Some(40), true, true);
}

#[test]
fn a_newest_file_without_its_header_keeps_its_records() {
    let records = example();
    let (folder, file, bytes) = closed_log(&records);
    let mut headless = bytes.clone();
    headless[..HEADER_BYTES].fill(0);
    fs::write(&file, &headless).unwrap();
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!((&found.records, found.damage[0].lost), (&records, Some(0)));
    assert_eq!(fs::read(&found.set_aside[0]).unwrap(), headless);
    // The content of generation 2 has the name of generation 7.
    let two = folder.path().join(file_name(2));
    fs::rename(two, folder.path().join(file_name(7))).unwrap();
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!((&found.records, found.damage.len()), (&records, 1));
    assert!(folder.path().join(file_name(8)).exists());
}

#[test]
fn an_older_file_replaces_an_unreadable_newest_one() {
    let records = example();
    for content in [&b""[..], b"short", &[7; 500]] {
        let (folder, file, bytes) = closed_log(&records);
        fs::write(folder.path().join(file_name(2)), content).unwrap();
        let (log, found) = Log::open(folder.path()).unwrap();
        assert_eq!((&found.records, found.damage.len()), (&records, 1));
        assert_eq!(found.damage[0].path, folder.path().join(file_name(2)));
        drop(log);
        assert!(!file.exists(), "generation 3 has the records");
        let kept: Vec<_> = found
            .set_aside
            .iter()
            .map(|p| fs::read(p).unwrap())
            .collect();
        assert_eq!(kept, [&bytes[..], content]);
        // Files that were set aside stay, also after another damage of a file of that name.
        fs::write(folder.path().join(file_name(4)), content).unwrap();
        let (_, again) = Log::open(folder.path()).unwrap();
        assert_eq!(again.records, records);
        assert!(found.set_aside.iter().all(|path| path.exists()));
    }
}

#[test]
fn a_user_can_set_a_readable_file_aside() {
    let (folder, _, bytes) = closed_log(&example());
    let (mut log, _) = Log::open(folder.path()).unwrap();
    let aside = log.set_aside().unwrap();
    assert_eq!(log.set_aside().unwrap(), aside, "one copy is enough");
    log.compact([b"new".to_vec()]).unwrap();
    drop(log);
    assert_eq!(fs::read(&aside).unwrap(), bytes);
    assert_eq!(Log::open(folder.path()).unwrap().1.records, [b"new"]);
    assert!(aside.exists());
}

#[test]
fn inspecting_changes_nothing() {
    let records = example();
    let (folder, file, bytes) = closed_log(&records);
    fs::write(folder.path().join("log-0000000000000009.tmp"), "unfinished").unwrap();
    let torn = [&bytes[..], b"half a record"].concat();
    fs::write(&file, &torn).unwrap();
    let before = files(folder.path());
    let found = Log::inspect(folder.path()).unwrap();
    assert_eq!((found.records, found.torn), (records.clone(), 13));
    assert_eq!(
        (files(folder.path()), fs::read(&file).unwrap()),
        (before, torn)
    );
    assert!(Log::inspect(&folder.path().join("missing")).is_err());
    // A log in use can be inspected.
    let (mut log, _) = Log::open(folder.path()).unwrap();
    log.append(b"five").unwrap();
    assert_eq!(Log::inspect(folder.path()).unwrap().records.len(), 5);
}

/// Whether `found` has only records of `written`, in order.
fn is_subsequence(found: &[Vec<u8>], written: &[Vec<u8>]) -> bool {
    let mut rest = written.iter();
    found.iter().all(|record| rest.any(|other| other == record))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn reads_back_what_was_appended(
        sessions in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..8),
            1..4,
        ),
        compact in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut expect = Vec::new();
        for records in sessions {
            let (mut log, found) = Log::open(folder.path()).unwrap();
            prop_assert_eq!((&found.records, log.torn()), (&expect, 0));
            if compact {
                expect.reverse();
                log.compact(expect.clone()).unwrap();
            }
            for record in records {
                log.append(&record).unwrap();
                expect.push(record);
            }
        }
        prop_assert_eq!(Log::open(folder.path()).unwrap().1.records, expect);
    }

    /// Checks that after any change of the file, opening returns records that were written, in
    /// their order, and that the changed file stays on disk or only its end was dropped.
    #[test]
    fn a_changed_file_gives_written_records(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        instead in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let (folder, file, mut bytes) = closed_log(&records);
        let (a, b) = (from.index(bytes.len() + 1), to.index(bytes.len() + 1));
        bytes.splice(a.min(b)..a.max(b), instead);
        fs::write(&file, &bytes).unwrap();
        let inspected = Log::inspect(folder.path()).unwrap();
        prop_assert_eq!(&fs::read(&file).unwrap(), &bytes);
        let (_, found) = Log::open(folder.path()).unwrap();
        prop_assert_eq!(&inspected.records, &found.records);
        prop_assert!(is_subsequence(&found.records, &records));
        match found.damage.is_empty() {
            true => prop_assert!(records.starts_with(&found.records)),
            false => prop_assert_eq!(&fs::read(&found.set_aside[0]).unwrap(), &bytes),
        }
    }

    /// Checks that damage of a range costs exactly the records that it touches.
    #[test]
    fn damage_of_a_range_costs_the_records_in_it(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12),
        from in any::<prop::sample::Index>(),
        length in 1..200usize,
        flip in prop::option::of(1..=255u8),
    ) {
        let (folder, file, mut bytes) = closed_log(&records);
        let start = from.index(bytes.len());
        let end = bytes.len().min(start + length);
        let before = bytes.clone();
        match flip {
            Some(flip) => bytes[start..end].iter_mut().for_each(|byte| *byte ^= flip),
            None => bytes[start..end].fill(0),
        }
        fs::write(&file, &bytes).unwrap();
        let ends = offsets(&records);
        let is_whole = |&i: &usize| before[ends[i]..ends[i + 1]] == bytes[ends[i]..ends[i + 1]];
        let whole = (0..records.len()).filter(is_whole).map(|i| records[i].clone());
        let (_, found) = Log::open(folder.path()).unwrap();
        prop_assert_eq!(found.records, whole.collect::<Vec<_>>());
    }
}
