//! The log under cuts, flips, moved records and compactions that did not end.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::format::{HEAD_BYTES, HEADER_BYTES};
use super::tail::{Tail, file_name};
use super::{Log, WalError};

/// A log in a folder of its own, closed again, with its only file's path and bytes.
fn closed(records: &[Vec<u8>]) -> (TempDir, PathBuf, Vec<u8>) {
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

/// Where each record begins, and the end.
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
fn a_second_open_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("a/b");
    let (mut log, _) = Log::open(&inner).unwrap();
    log.append(b"kept").unwrap();
    let error = Log::open(&inner).unwrap_err();
    assert!(matches!(error, WalError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("another process uses"));
    drop(log);
    assert_eq!(Log::open(&inner).unwrap().1, [b"kept"]);
}

#[test]
fn every_cut_gives_the_records_before_it() {
    let records = example();
    let (folder, file, bytes) = closed(&records);
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
fn every_flip_is_an_error_or_the_last_record() {
    let records = example();
    let (folder, file, bytes) = closed(&records);
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
            assert_eq!(fs::read(&file).unwrap(), flipped, "left as it is");
        }
    }
}

#[test]
fn damage_over_many_records_is_noticed() {
    let records: Vec<_> = (0..200u8).map(|i| vec![i; i as usize % 7]).collect();
    let (folder, file, mut bytes) = closed(&records);
    let offsets = offsets(&records);
    // In the middle of a record, to the middle of another.
    bytes[offsets[20] + 5..offsets[190] + 3].fill(0);
    fs::write(&file, &bytes).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    let expect = (offsets[20] as u64, offsets[191] as u64);
    let named =
        matches!(error, WalError::RecordDamaged { offset, next, .. } if (offset, next) == expect);
    assert!(named, "{error}");
}

#[test]
fn records_do_not_change_places() {
    let same = vec![b"aaaa".to_vec(), b"bbbb".to_vec(), b"cccc".to_vec()];
    let (folder, file, bytes) = closed(&same);
    let one = HEAD_BYTES + 4;
    // The first two exchanged: neither is valid there, and the third is.
    let mut moved = bytes.clone();
    moved[HEADER_BYTES..HEADER_BYTES + 2 * one].rotate_left(one);
    fs::write(&file, &moved).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(matches!(error, WalError::RecordDamaged { .. }), "{error}");
    // An old one again at the end is no record.
    let again = [&bytes[..], &bytes[HEADER_BYTES..HEADER_BYTES + one]].concat();
    fs::write(&file, again).unwrap();
    let (log, found) = Log::open(folder.path()).unwrap();
    assert_eq!((found, log.torn()), (same.clone(), one as u64));
    drop(log);
    // Nor is one of another generation in the same place.
    let (other, ..) = closed(&[]);
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
fn a_log_inside_a_torn_record_is_not_taken_for_one() {
    let (_, _, inner) = closed(&example());
    let (folder, file, bytes) = closed(&[inner[HEADER_BYTES..].to_vec()]);
    let cut = bytes[..bytes.len() - 1].to_vec();
    // As long as it was to be, with the end not written.
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
fn compaction_puts_other_records_in_place() {
    let (folder, ..) = closed(&example());
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
    let (folder, ..) = closed(&example());
    let (mut log, _) = Log::open(folder.path()).unwrap();
    let long = vec![0; super::PAYLOAD_BYTES_MAX as usize + 1];
    let error = log.compact([b"fits".to_vec(), long]).unwrap_err();
    assert!(matches!(error, WalError::TooLong { .. }), "{error}");
    // A folder in its place, so that the new file cannot get its name.
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
fn a_compaction_cut_off_anywhere_leaves_one_of_both() {
    let old = example();
    let new = vec![b"new".to_vec(); 3];
    let compacted = {
        let (folder, ..) = closed(&old);
        let tail = Tail::create(folder.path(), 2, new.clone()).unwrap();
        fs::read(tail.path()).unwrap()
    };
    let check = |unfinished: Option<usize>, named: bool, removed: bool| {
        let (folder, file, _) = closed(&old);
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
fn a_damaged_newest_file_is_not_passed_over() {
    let (folder, _, bytes) = closed(&example());
    // The bytes of generation 1 under the name of 2.
    fs::write(folder.path().join(file_name(2)), &bytes).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(matches!(error, WalError::HeaderDamaged { .. }), "{error}");
    assert_eq!(files(folder.path()).len(), 3, "nothing is removed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn comes_back_as_it_was(
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

    // Whatever happens to the file: records that come back are ones that were written, from
    // the first on, and nothing is touched that was not understood.
    #[test]
    fn nothing_comes_back_that_was_not_written(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        instead in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let (folder, file, mut bytes) = closed(&records);
        let (a, b) = (from.index(bytes.len() + 1), to.index(bytes.len() + 1));
        bytes.splice(a.min(b)..a.max(b), instead);
        fs::write(&file, &bytes).unwrap();
        match Log::open(folder.path()) {
            Ok((_, found)) => prop_assert!(records.starts_with(&found)),
            Err(_) => prop_assert_eq!(fs::read(&file).unwrap(), bytes),
        }
    }
}
