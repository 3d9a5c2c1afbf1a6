//! Tests of the spill file under concurrent threads, full disks and writes by other processes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use proptest::prelude::*;

use super::{SpillFile, checksum, create_and_unlink};
use crate::error::SpillError;

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn holds_what_was_written_in_a_file_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("a/b");
    let spill = SpillFile::create(&inner, 5000, 1000).unwrap();
    assert_eq!((spill.slots(), spill.slot_bytes()), (1000, 5000));
    spill.write(999, &[7; 5000]).unwrap();
    let mut to = vec![0; 5000];
    spill.read(999, &mut to).unwrap();
    assert_eq!(to, [7; 5000]);
    assert_eq!((files(&inner), spill.folder()), (0, &*inner));
    let metadata = spill.file.metadata().unwrap();
    assert_eq!((metadata.nlink(), metadata.mode() & 0o7777), (0, 0o600));
    for new in [&inner, inner.parent().unwrap()] {
        assert_eq!(fs::metadata(new).unwrap().mode() & 0o7777, 0o700);
    }
    assert_eq!(metadata.len(), 999 * 8192 + 5000);
    assert!(metadata.blocks() * 512 < 100_000, "holes take no space");
    // A filesystem without files that have no name gives the same.
    let file = create_and_unlink(&inner).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.nlink(), metadata.mode() & 0o7777), (0, 0o600));
    assert_eq!(files(&inner), 0);
}

#[test]
fn removes_files_of_ended_processes_only() {
    let folder = tempfile::tempdir().unwrap();
    let in_use = folder.path().join("spill-1-0.djinn");
    let lock = File::create(&in_use).unwrap();
    lock.lock().unwrap();
    let stale = folder.path().join("spill-1-1.djinn");
    let other = folder.path().join("notes.txt");
    fs::write(&stale, "left").unwrap();
    fs::write(&other, "mine").unwrap();
    SpillFile::create(folder.path(), 10, 1).unwrap();
    assert!(!stale.exists() && other.exists() && in_use.exists());
}

#[test]
fn damaged_slots_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let spill = SpillFile::create(folder.path(), 100, 3).unwrap();
    let to = &mut [0; 100];
    let read = spill.read(1, to);
    assert!(matches!(read, Err(SpillError::SlotEmpty { slot: 1, .. })));

    spill.write(0, &[1; 100]).unwrap();
    spill.write(1, &[2; 100]).unwrap();
    let other = spill.file.try_clone().unwrap();
    other.write_all_at(&[9], 4096 + 50).unwrap();
    let error = spill.read(1, to).unwrap_err();
    assert!(matches!(error, SpillError::SlotCorrupt { slot: 1, .. }));
    spill.read(0, to).unwrap();

    // The content of slot 0 is not valid in slot 1.
    other.write_all_at(&[1; 100], 4096).unwrap();
    let read = spill.read(1, to);
    assert!(matches!(read, Err(SpillError::SlotCorrupt { .. })));

    other.set_len(4096 + 99).unwrap();
    let error = spill.read(1, to).unwrap_err();
    let is_truncated = matches!(error, SpillError::Truncated { bytes, expected, .. } if (bytes, expected) == (4195, 4196));
    assert!(is_truncated, "{error}");
}

#[test]
fn a_full_disk_leaves_the_slot_empty() {
    let path = Path::new("/dev/full");
    let full = File::options().read(true).write(true).open(path).unwrap();
    let spill = SpillFile::from_file(full, path, 4096, 2);
    let error = spill.write(1, &[1; 4096]).unwrap_err();
    assert!(matches!(error, SpillError::NoSpace { .. }), "{error}");
    let read = spill.read(1, &mut [0; 4096]);
    assert!(matches!(read, Err(SpillError::SlotEmpty { .. })));
    drop(spill);
    assert!(path.exists());
}

#[test]
fn a_failed_write_leaves_the_slot_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, [0; 100]).unwrap();
    // The file is read-only, so that a write fails for a reason other than space.
    let spill = SpillFile::from_file(File::open(&path).unwrap(), &path, 100, 1);
    *spill.checksums[0].lock().unwrap() = Some(checksum(0, &[0; 100]));
    spill.read(0, &mut [0; 100]).unwrap();
    let error = spill.write(0, &[0; 100]).unwrap_err();
    assert!(matches!(error, SpillError::Write { .. }), "{error}");
    let read = spill.read(0, &mut [0; 100]);
    assert!(matches!(read, Err(SpillError::SlotEmpty { .. })));
}

#[test]
#[should_panic(expected = "exceed the largest file size")]
fn sizes_that_overflow_panic() {
    let path = Path::new("/dev/null");
    SpillFile::from_file(File::open(path).unwrap(), path, u64::MAX / 8, 100);
}

#[test]
fn threads_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let spill = &SpillFile::create(folder.path(), 3000, 64).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            scope.spawn(move || {
                for round in 0..8u8 {
                    for slot in (thread..64).step_by(4) {
                        let bytes = [round ^ slot as u8; 3000];
                        spill.write(slot, &bytes).unwrap();
                        let to = &mut [0; 3000];
                        spill.read(slot, to).unwrap();
                        assert_eq!(*to, bytes);
                    }
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn reads_what_was_last_written(
        slot_bytes in 0usize..9000,
        writes in prop::collection::vec((0u32..6, any::<u8>()), 0..30),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFile::create(folder.path(), slot_bytes as u64, 6).unwrap();
        let mut last = [None; 6];
        for (slot, byte) in writes {
            spill.write(slot, &vec![byte; slot_bytes]).unwrap();
            last[slot as usize] = Some(byte);
        }
        for (slot, byte) in (0..).zip(last) {
            let mut to = vec![0; slot_bytes];
            let read = spill.read(slot, &mut to);
            prop_assert_eq!(read.is_ok(), byte.is_some());
            prop_assert_eq!(to, vec![byte.unwrap_or(0); slot_bytes]);
        }
    }
}
