//! Tests of the log under truncation, flipped bits, moved records and interrupted compactions.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::format::{HEAD_BYTES, HEADER_BYTES};
use super::tail::{Tail, file_name};
use super::{Log, WalError};

/// Creates a log with these records and closes it. Returns its folder, its file and its bytes.
fn closed_log(records: &[Vec<u8>]) -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, found) = Log::open(folder.path()).unwrap();
    assert!(found.is_empty());
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
    let mut at = HEADER_BYTES;
    let ends = records.iter().map(|record| {
        at += HEAD_BYTES + record.len();
        at
    });
    [HEADER_BYTES].into_iter().chain(ends).collect()
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
    assert_eq!(Log::open(&inner).unwrap().1, [b"kept"]);
}

#[test]
fn a_truncated_log_keeps_its_complete_records() {
    let records = example();
    let (folder, file, bytes) = closed_log(&records);
    let offsets = offsets(&records);
    for length in 0..=bytes.len() {
        let _ = fs::remove_file(folder.path().join(file_name(2)));
        fs::write(&file, &bytes[..length]).unwrap();
        let whole = offsets[1..].iter().filter(|&&end| end <= length).count();
        let kept = if length < HEADER_BYTES {
            0
        } else {
            offsets[whole]
        };
        let (mut log, found) = Log::open(folder.path()).unwrap();
        assert_eq!(found, records[..whole], "cut at {length}");
        assert_eq!(log.torn(), (length - kept) as u64, "cut at {length}");
        log.append(b"after").unwrap();
        drop(log);
        let (log, found) = Log::open(folder.path()).unwrap();
        assert_eq!(found.len(), whole + 1);
        assert_eq!((&found[whole][..], log.torn()), (&b"after"[..], 0));
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_in_the_last_record() {
    let records = example();
    let (folder, file, bytes) = closed_log(&records);
    let offsets = offsets(&records);
    let last = offsets[records.len() - 1];
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            fs::write(&file, &flipped).unwrap();
            let opened = Log::open(folder.path());
            if at >= last {
                let (log, found) = opened.unwrap();
                assert_eq!(found, records[..records.len() - 1]);
                assert_eq!(log.torn(), (bytes.len() - last) as u64);
                continue;
            }
            let error = opened.unwrap_err();
            let begins = offsets.iter().rfind(|&&begin| begin <= at);
            let named = match (&error, begins) {
                (WalError::RecordDamaged { offset, next, .. }, Some(&begin)) => {
                    *offset == begin as u64 && offsets.contains(&(*next as usize))
                }
                (error, begins) => {
                    begins.is_none() && !matches!(error, WalError::RecordDamaged { .. })
                }
            };
            assert!(named, "byte {at}: {error}");
            assert_eq!(fs::read(&file).unwrap(), flipped, "the file is unchanged");
        }
    }
}

#[test]
fn damage_across_records_is_detected() {
    let records: Vec<_> = (0..200u8).map(|i| vec![i; i as usize % 7]).collect();
    let (folder, file, mut bytes) = closed_log(&records);
    let offsets = offsets(&records);
    // The damage starts inside one record and ends inside another.
    bytes[offsets[20] + 5..offsets[190] + 3].fill(0);
    fs::write(&file, &bytes).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    let expect = (offsets[20] as u64, offsets[191] as u64);
    let named =
        matches!(error, WalError::RecordDamaged { offset, next, .. } if (offset, next) == expect);
    assert!(named, "{error}");
}

#[test]
fn moved_records_are_detected() {
    let same = vec![b"aaaa".to_vec(), b"bbbb".to_vec(), b"cccc".to_vec()];
    let (folder, file, bytes) = closed_log(&same);
    let one = HEAD_BYTES + 4;
    // The first two records are exchanged: both are invalid there, and the third is valid.
    let mut moved = bytes.clone();
    moved[HEADER_BYTES..HEADER_BYTES + 2 * one].rotate_left(one);
    fs::write(&file, &moved).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(matches!(error, WalError::RecordDamaged { .. }), "{error}");
    // A repeated record at the end is not valid.
    let again = [&bytes[..], &bytes[HEADER_BYTES..HEADER_BYTES + one]].concat();
    fs::write(&file, again).unwrap();
    let (log, found) = Log::open(folder.path()).unwrap();
    assert_eq!((found, log.torn()), (same.clone(), one as u64));
    drop(log);
    // A record of another generation at the same offset is not valid.
    let (other, ..) = closed_log(&[]);
    let (mut log, _) = Log::open(other.path()).unwrap();
    log.compact(same).unwrap();
    drop(log);
    let path = other.path().join(file_name(2));
    let newer = fs::read(&path).unwrap();
    fs::write(
        &path,
        [&newer[..HEADER_BYTES], &bytes[HEADER_BYTES..]].concat(),
    )
    .unwrap();
    assert_eq!(Log::open(other.path()).unwrap().1.len(), 0);
}

#[test]
fn records_inside_a_torn_record_are_ignored() {
    let (_, _, inner) = closed_log(&example());
    let (folder, file, bytes) = closed_log(&[inner[HEADER_BYTES..].to_vec()]);
    let cut = bytes[..bytes.len() - 1].to_vec();
    // This file has the full length, but its last byte was not written.
    let zeros = [&cut[..], &[0]].concat();
    let flipped = [&cut[..], &[!bytes[cut.len()]]].concat();
    for torn in [cut, zeros, flipped] {
        fs::write(&file, &torn).unwrap();
        let (log, found) = Log::open(folder.path()).unwrap();
        assert!(found.is_empty());
        assert_eq!(log.torn(), (torn.len() - HEADER_BYTES) as u64);
    }
}

#[test]
fn compaction_replaces_all_records() {
    let (folder, ..) = closed_log(&example());
    let (mut log, _) = Log::open(folder.path()).unwrap();
    log.append(b"five").unwrap();
    log.compact([b"all".to_vec()]).unwrap();
    let expect = HEADER_BYTES + HEAD_BYTES + 3;
    assert_eq!(log.bytes(), expect as u64);
    log.append(b"more").unwrap();
    log.sync().unwrap();
    assert_eq!(files(folder.path()), ["lock", &file_name(2)]);
    drop(log);
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!(found, [b"all".to_vec(), b"more".to_vec()]);
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
    assert_eq!(Log::open(folder.path()).unwrap().1.len(), 5);
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
    assert_eq!(found, [&b"all"[..], b"after"]);
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
        assert_eq!(&found, if named { &new } else { &old });
        let generation = if named { 2 } else { 1 };
        assert_eq!(files(folder.path()), ["lock", &file_name(generation)]);
        log.compact([b"again".to_vec()]).unwrap();
        drop(log);
        assert_eq!(Log::open(folder.path()).unwrap().1, [b"again"]);
    };
    for bytes in (0..=compacted.len()).step_by(9) {
        check(Some(bytes), false, false);
    }
    check(None, true, false);
    check(None, true, true);
    check(Some(40), true, true);
}

#[test]
fn a_damaged_newest_file_is_an_error() {
    let (folder, _, bytes) = closed_log(&example());
    // The content of generation 1 has the name of generation 2.
    fs::write(folder.path().join(file_name(2)), &bytes).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(matches!(error, WalError::HeaderDamaged { .. }), "{error}");
    assert_eq!(files(folder.path()).len(), 3, "nothing is removed");
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
            prop_assert_eq!((&found, log.torn()), (&expect, 0));
            if compact {
                expect.reverse();
                log.compact(expect.clone()).unwrap();
            }
            for record in records {
                log.append(&record).unwrap();
                expect.push(record);
            }
        }
        prop_assert_eq!(Log::open(folder.path()).unwrap().1, expect);
    }

    /// Checks that after any change of the file, opening returns the first records that were
    /// written, or fails and leaves the file unchanged.
    #[test]
    fn a_changed_file_gives_written_records_or_an_error(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        instead in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let (folder, file, mut bytes) = closed_log(&records);
        let (a, b) = (from.index(bytes.len() + 1), to.index(bytes.len() + 1));
        bytes.splice(a.min(b)..a.max(b), instead);
        fs::write(&file, &bytes).unwrap();
        match Log::open(folder.path()) {
            Ok((_, found)) => prop_assert!(records.starts_with(&found)),
            Err(_) => prop_assert_eq!(fs::read(&file).unwrap(), bytes),
        }
    }
}
