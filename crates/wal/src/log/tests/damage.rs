//! Tests of truncated, flipped, zeroed and moved bytes, and of files of other versions.

use std::fs;

use super::super::format::{FileHeader, HEAD_BYTES, HEADER_BYTES, MARK_BYTES, record};
use super::super::tail::file_name;
use super::super::{DamagedRange, Log, WalError};
use super::{EMPTY_BYTES, closed_log, example, files, offsets};

#[test]
fn a_truncated_log_keeps_its_complete_records() {
    let records = example();
    let (_, _, bytes) = closed_log(&records);
    let offsets = offsets(&records);
    for length in EMPTY_BYTES..=bytes.len() {
        let (folder, file, _) = closed_log(&[]);
        fs::write(&file, &bytes[..length]).unwrap();
        let whole = offsets[1..].iter().filter(|&&end| end <= length).count();
        let kept = match length {
            all if all == bytes.len() => all,
            _ => offsets[whole],
        };
        let (mut log, found) = Log::open(folder.path()).unwrap();
        assert_eq!(found.records, records[..whole], "cut at {length}");
        assert_eq!(found.damage, [], "cut at {length}");
        assert_eq!(log.torn(), (length - kept) as u64, "cut at {length}");
        assert_eq!(log.torn(), found.torn);
        log.append(b"after").unwrap();
        drop(log);
        let (log, found) = Log::open(folder.path()).unwrap();
        assert_eq!(found.records.len(), whole + 1);
        assert_eq!((&found.records[whole][..], log.torn()), (&b"after"[..], 0));
    }
}

#[test]
fn a_log_cut_before_its_first_sync_mark_is_damaged() {
    let (_, _, bytes) = closed_log(&example());
    for length in 0..EMPTY_BYTES {
        let (folder, file, _) = closed_log(&[]);
        fs::write(&file, &bytes[..length]).unwrap();
        let (mut log, found) = Log::open(folder.path()).unwrap();
        assert_eq!((found.records.len(), found.torn), (0, 0), "cut at {length}");
        assert_eq!((found.damage.len(), found.damage[0].lost), (1, None));
        assert_eq!(fs::read(&found.set_aside[0]).unwrap(), bytes[..length]);
        log.append(b"after").unwrap();
        drop(log);
        let (_, found) = Log::open(folder.path()).unwrap();
        assert_eq!(
            (found.records, found.damage),
            (vec![b"after".to_vec()], vec![])
        );
    }
}

#[test]
fn a_flipped_bit_costs_one_record() {
    let records = example();
    let (_, _, bytes) = closed_log(&records);
    let offsets = offsets(&records);
    for at in 0..bytes.len() {
        let (folder, file, _) = closed_log(&[]);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&file, &flipped).unwrap();
        let before = Log::inspect(folder.path()).unwrap();
        assert_eq!(
            fs::read(&file).unwrap(),
            flipped,
            "inspecting changes nothing"
        );
        let (log, found) = Log::open(folder.path()).unwrap();
        assert_eq!(
            (&before.records, &before.damage),
            (&found.records, &found.damage)
        );
        drop(log);
        let ends = offsets.windows(2).position(|w| (w[0]..w[1]).contains(&at));
        let mut expect = records.clone();
        if let Some(lost) = ends {
            expect.remove(lost);
        }
        assert_eq!(found.records, expect, "byte {at}");
        if at >= offsets[records.len()] {
            // The last sync mark has no later record that confirms it.
            assert_eq!((found.torn, found.damage.len()), (MARK_BYTES as u64, 0));
            continue;
        }
        let starts = [0, HEADER_BYTES].into_iter().chain(offsets.iter().copied());
        let start = starts.filter(|&start| start <= at).max().unwrap() as u64;
        let expect = (start, Some(u64::from(start > 0)), ends.unwrap_or(0));
        let range = &found.damage[0];
        assert_eq!(
            (range.offset, range.lost, range.before),
            expect,
            "byte {at}"
        );
        assert_eq!((found.damage.len(), found.torn), (1, 0));
        assert_eq!(fs::read(&found.set_aside[0]).unwrap(), flipped);
        let (_, again) = Log::open(folder.path()).unwrap();
        assert_eq!((again.records, again.damage), (found.records, vec![]));
    }
}

#[test]
fn damage_across_records_costs_these_records() {
    let records: Vec<_> = (0..200u8).map(|i| vec![i; i as usize % 7]).collect();
    let (folder, file, mut bytes) = closed_log(&records);
    let offsets = offsets(&records);
    // One range starts inside one record and ends inside another; the other range lies in one.
    bytes[offsets[20] + 5..offsets[190] + 3].fill(0);
    bytes[offsets[195]] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (_, found) = Log::open(folder.path()).unwrap();
    let expect = [&records[..20], &records[191..195], &records[196..]].concat();
    assert_eq!(found.records, expect);
    let range = |first: usize, end: usize, before: usize| DamagedRange {
        path: file.clone(),
        offset: offsets[first] as u64,
        bytes: (offsets[end] - offsets[first]) as u64,
        first: first as u64 + 1,
        lost: Some((end - first) as u64),
        before,
    };
    assert_eq!(found.damage, [range(20, 191, 20), range(195, 196, 24)]);
}

#[test]
fn an_unsynced_tail_with_a_hole_is_dropped_quietly() {
    let records = example();
    let (folder, file, bytes) = closed_log(&records);
    let (mut log, _) = Log::open(folder.path()).unwrap();
    for unsynced in ["lost", "written before the lost one", "and this"] {
        log.append(unsynced.as_bytes()).unwrap();
    }
    drop(log);
    let mut cut = fs::read(&file).unwrap();
    cut[bytes.len() + 3..bytes.len() + 20].fill(0);
    fs::write(&file, &cut).unwrap();
    let (mut log, found) = Log::open(folder.path()).unwrap();
    let torn = (cut.len() - bytes.len()) as u64;
    assert_eq!(
        (found.records, found.damage, found.torn),
        (records.clone(), vec![], torn)
    );
    assert_eq!(files(folder.path()), ["lock", &file_name(1)]);
    // A sync confirms the records before it, so the hole is then damage.
    let start = log.bytes() as usize;
    log.append(b"lost").unwrap();
    log.append(b"kept").unwrap();
    log.sync().unwrap();
    drop(log);
    let mut damaged = fs::read(&file).unwrap();
    damaged[start + 3] ^= 1;
    fs::write(&file, &damaged).unwrap();
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!(found.records.last().unwrap(), b"kept");
    assert_eq!((found.damage.len(), found.damage[0].lost), (1, Some(1)));
}

#[test]
fn moved_records_are_not_returned() {
    let same = vec![b"aaaa".to_vec(), b"bbbb".to_vec(), b"cccc".to_vec()];
    let (folder, file, bytes) = closed_log(&same);
    let one = HEAD_BYTES + 4;
    // The first two records are exchanged: both are invalid there, and the third is valid.
    let mut moved = bytes.clone();
    moved[EMPTY_BYTES..EMPTY_BYTES + 2 * one].rotate_left(one);
    fs::write(&file, &moved).unwrap();
    let found = Log::inspect(folder.path()).unwrap();
    assert_eq!(
        (found.records, found.damage.len()),
        (vec![b"cccc".to_vec()], 1)
    );
    // A repeated record at the end is not valid.
    let again = [&bytes[..], &bytes[EMPTY_BYTES..EMPTY_BYTES + one]].concat();
    fs::write(&file, again).unwrap();
    let (log, found) = Log::open(folder.path()).unwrap();
    assert_eq!((found.records, log.torn()), (same.clone(), one as u64));
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
    assert_eq!(Log::open(other.path()).unwrap().1.records.len(), 0);
}

#[test]
fn records_inside_a_torn_record_are_ignored() {
    let (_, _, inner) = closed_log(&example());
    let inner = &inner[EMPTY_BYTES..inner.len() - MARK_BYTES];
    let (folder, file, bytes) = closed_log(&[inner.to_vec()]);
    let cut = bytes[..bytes.len() - MARK_BYTES - 1].to_vec();
    // This file has the full length, but its last byte was not written.
    let zeros = [&cut[..], &[0]].concat();
    let flipped = [&cut[..], &[!bytes[cut.len()]]].concat();
    for torn in [cut, zeros, flipped] {
        fs::write(&file, &torn).unwrap();
        let (log, found) = Log::open(folder.path()).unwrap();
        assert_eq!((found.records.len(), found.damage.len()), (0, 0));
        assert_eq!(log.torn(), (torn.len() - EMPTY_BYTES) as u64);
    }
}

/// Writes a file as version 1 wrote it: without sync marks.
fn old_file(records: &[Vec<u8>]) -> Vec<u8> {
    let (version, generation) = (1, 1);
    let header = FileHeader {
        version,
        generation,
    };
    let mut bytes = header.to_bytes().to_vec();
    for (sequence, payload) in (0..).zip(records) {
        bytes.extend(record(generation, sequence, payload));
    }
    bytes
}

#[test]
fn a_log_of_version_1_opens() {
    let records = example();
    let (folder, file, _) = closed_log(&[]);
    let old = old_file(&records);
    fs::write(&file, &old).unwrap();
    let (mut log, found) = Log::open(folder.path()).unwrap();
    assert_eq!((found.records, found.damage), (records.clone(), vec![]));
    log.append(b"five").unwrap();
    log.sync().unwrap();
    drop(log);
    let five = [&records[..], &[b"five".to_vec()]].concat();
    assert_eq!(
        fs::read(&file).unwrap(),
        old_file(&five),
        "the file stays in version 1"
    );
    // Compaction writes the newest version, and any gap of an old file is damage.
    let mut damaged = old_file(&five);
    damaged[HEADER_BYTES + 2] ^= 1;
    fs::write(&file, damaged).unwrap();
    let (_, found) = Log::open(folder.path()).unwrap();
    assert_eq!((&found.records[..], found.damage.len()), (&five[1..], 1));
    let new = fs::read(folder.path().join(file_name(2))).unwrap();
    assert_eq!(new[8..12], 2u32.to_le_bytes());
}

#[test]
fn a_log_of_a_newer_version_is_an_error() {
    let (folder, file, mut bytes) = closed_log(&example());
    let (version, generation) = (3, 1);
    let header = FileHeader {
        version,
        generation,
    };
    bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    fs::write(&file, &bytes).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(matches!(error, WalError::Newer { found: 3, .. }), "{error}");
    assert_eq!(fs::read(&file).unwrap(), bytes);
}

#[test]
fn a_search_in_a_hostile_file_is_linear() {
    // Every 20 bytes start a plausible record that reaches over most of the file. A search that
    // checks each of them against its whole payload would take hours.
    let (folder, file, mut bytes) = closed_log(&[b"first".to_vec()]);
    bytes[EMPTY_BYTES] ^= 1;
    let heads = 1_000_000u64;
    for sequence in 2..heads {
        let length = ((heads - sequence) / 2) as usize * HEAD_BYTES;
        let head = record(1, sequence, &[])[..HEAD_BYTES].to_vec();
        let valid = record_head(1, sequence, length);
        bytes.extend(if sequence % 2 == 0 { valid } else { head });
    }
    fs::write(&file, &bytes).unwrap();
    let (_, found) = Log::open(folder.path()).unwrap();
    assert!(!found.damage.is_empty());
}

/// Head whose position is valid for a length, with the checksum of an empty payload.
fn record_head(generation: u64, sequence: u64, length: usize) -> Vec<u8> {
    let position = crate::checksum::checksum(generation, &(length as u32).to_le_bytes());
    let position = position.wrapping_add(sequence);
    let sum = 7u64;
    [
        &(length as u32).to_le_bytes()[..],
        &position.to_le_bytes(),
        &sum.to_le_bytes(),
    ]
    .concat()
}
