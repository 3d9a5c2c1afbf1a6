//! Tests of the archive under truncation, flipped bits and forged numbers.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::{Archive, ArchiveWriter, PREAMBLE_BYTES, Preamble, VERSION};
use crate::WalError;

/// Writes an archive with these pages into a folder.
fn write(folder: &Path, header: &[u8], page_bytes: usize, pages: &[Vec<u8>]) -> PathBuf {
    let path = folder.join("a.djinn");
    let mut writer = ArchiveWriter::create(&path, header, page_bytes as u64, true).unwrap();
    for page in pages {
        writer.write(page).unwrap();
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    writer.finish().unwrap();
    path
}

/// Reads the header and all pages.
fn read(path: &Path) -> Result<(Vec<u8>, Vec<Vec<u8>>), WalError> {
    let archive = Archive::open(path)?;
    let mut pages = Vec::new();
    for page in 0..archive.pages() {
        let mut to = vec![0; archive.page_bytes() as usize];
        archive.read(page, &mut to)?;
        pages.push(to);
    }
    Ok((archive.header().to_vec(), pages))
}

fn example(folder: &Path) -> (PathBuf, Vec<u8>) {
    let path = write(folder, b"{}", 5, &[b"first".to_vec(), b"other".to_vec()]);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), PREAMBLE_BYTES + 2 + 2 * (5 + 8));
    (path, bytes)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| name(entry.unwrap())).collect()
}

#[test]
fn an_unfinished_archive_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.djinn");
    let mut writer = ArchiveWriter::create(&path, b"{}", 3, false).unwrap();
    writer.write(b"abc").unwrap();
    assert!(!path.exists());
    drop(writer);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn existing_files_are_replaced_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.djinn");
    let create = |replace| ArchiveWriter::create(&path, b"{}", 3, replace);
    let late = create(false).unwrap();
    create(false).unwrap().finish().unwrap();
    let before = fs::read(&path).unwrap();
    let exists = |error| matches!(error, WalError::Exists { .. });
    assert!(exists(create(false).unwrap_err()));
    assert!(
        exists(late.finish().unwrap_err()),
        "the file exists by then"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
    let mut replacing = create(true).unwrap();
    replacing.write(b"abc").unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        before,
        "the old archive stays until the end"
    );
    replacing.finish().unwrap();
    assert_eq!(read(&path).unwrap().1, [b"abc"]);
    assert_eq!(names(folder.path()), ["a.djinn"]);
}

#[test]
fn wrong_page_numbers_and_sizes_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = example(folder.path());
    let archive = Archive::open(&path).unwrap();
    let error = archive.read(2, &mut [0; 5]).unwrap_err();
    assert!(matches!(error, WalError::NoSuchPage { pages: 2, .. }));
    let error = archive.read(0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, WalError::PageSize { given: 4, .. }));
    let mut writer = ArchiveWriter::create(&path, b"", 4, true).unwrap();
    let error = writer.write(b"long page").unwrap_err();
    assert!(matches!(error, WalError::PageSize { given: 9, .. }));
    writer.write(b"page").unwrap();
    writer.finish().unwrap();
    assert_eq!(read(&path).unwrap().1, [b"page"]);
}

#[test]
fn every_truncation_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = example(folder.path());
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = Archive::open(&path).unwrap_err();
        let is_expected = match length {
            0 => matches!(error, WalError::WrongFormat { .. }),
            _ => matches!(error, WalError::CutShort { bytes, .. } if bytes == length as u64),
        };
        assert!(is_expected, "{length}: {error}");
    }
    fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    let error = Archive::open(&path).unwrap_err();
    assert!(matches!(error, WalError::TooLarge { .. }), "{error}");
}

#[test]
fn every_flipped_bit_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = example(folder.path());
    let pages_from = PREAMBLE_BYTES + 2;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            fs::write(&path, &flipped).unwrap();
            let error = read(&path).unwrap_err();
            let is_expected = match at {
                0..8 => matches!(error, WalError::WrongFormat { .. }),
                8..12 => matches!(
                    error,
                    WalError::Newer { .. } | WalError::HeaderDamaged { .. }
                ),
                at if at < pages_from => matches!(error, WalError::HeaderDamaged { .. }),
                at => {
                    let of = (at - pages_from) / 13;
                    matches!(error, WalError::PageDamaged { page, .. } if page == of)
                }
            };
            assert!(is_expected, "byte {at}, bit {bit}: {error}");
        }
    }
}

#[test]
fn exchanged_pages_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut bytes) = example(folder.path());
    bytes[PREAMBLE_BYTES + 2..].rotate_left(13);
    fs::write(&path, bytes).unwrap();
    let error = read(&path).unwrap_err();
    assert!(matches!(error, WalError::PageDamaged { page: 0, .. }));
}

#[test]
fn a_newer_version_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut bytes) = example(folder.path());
    bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = Archive::open(&path).unwrap_err();
    let is_newer = matches!(error, WalError::Newer { found, known, .. } if found == known + 1);
    assert!(is_newer, "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn reads_back_what_was_written(
        header in prop::collection::vec(any::<u8>(), 0..200),
        (page_bytes, pages) in (0usize..5000).prop_flat_map(|bytes| {
            let page = prop::collection::vec(any::<u8>(), bytes);
            (Just(bytes), prop::collection::vec(page, 0..8))
        }),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), &header, page_bytes, &pages);
        let archive = Archive::open(&path).unwrap();
        prop_assert_eq!(archive.page_bytes(), page_bytes as u64);
        prop_assert_eq!(read(&path).unwrap(), (header, pages));
    }

    /// Checks that opening rejects every number that does not match the size of the file. The
    /// preamble has valid checksums and arbitrary numbers.
    #[test]
    fn forged_sizes_are_rejected(
        numbers in prop::array::uniform3(prop_oneof![0u64..64, any::<u64>(), u64::MAX - 64..]),
        rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forged");
        let [header_bytes, page_bytes, pages] = numbers;
        let header = rest.get(..header_bytes as usize).unwrap_or_default();
        let header_checksum = super::checksum(0, header);
        let preamble = Preamble { header_bytes, page_bytes, pages, header_checksum };
        fs::write(&path, [&preamble.to_bytes()[..], &rest].concat()).unwrap();
        if let Ok(archive) = Archive::open(&path) {
            prop_assert_eq!(archive.header(), header);
            let after = rest.len() - header.len();
            prop_assert_eq!(archive.pages() as u64 * (page_bytes + 8), after as u64);
        }
    }

    #[test]
    fn random_bytes_are_rejected(
        magic in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random");
        let start: &[u8] = if magic { b"djinnarc\x01\0\0\0" } else { b"" };
        fs::write(&path, [start, &bytes].concat()).unwrap();
        prop_assert!(Archive::open(&path).is_err());
    }
}
