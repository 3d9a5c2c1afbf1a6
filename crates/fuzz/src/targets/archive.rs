//! Archives: an input is read as a file, and as the header of an archive.

use djinn_engine::SavedFile;
use djinn_wal::{Archive, ArchiveWriter};

use crate::scratch;

/// Largest page that is read, in bytes.
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// Opens the input as an archive, and writes an archive around it.
pub fn run(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "a", data);
    let path = folder.path().join("a");
    if let Ok(archive) = Archive::open(&path) {
        read_pages(&archive);
    }
    let _ = SavedFile::read(&path);

    let written = folder.path().join("b");
    let page_bytes = (data.len() as u64 % 7).max(1);
    let mut writer = ArchiveWriter::create(&written, data, page_bytes, false)
        .expect("the temporary folder is writable");
    let (pages, _) = data.split_at(data.len() / 2);
    let pages: Vec<&[u8]> = pages.chunks_exact(page_bytes as usize).collect();
    for page in &pages {
        writer.write(page).expect("the page has the right size");
    }
    writer.finish().expect("the temporary folder is writable");
    let archive = Archive::open(&written).expect("a written archive is valid");
    assert_eq!((archive.header(), archive.pages()), (data, pages.len()));
    for (number, page) in pages.iter().enumerate() {
        let mut read = vec![0; page_bytes as usize];
        archive.read(number, &mut read).expect("the page is intact");
        assert_eq!(read, *page);
    }
    let _ = SavedFile::read(&written);
}

fn read_pages(archive: &Archive) {
    let bytes = archive.page_bytes();
    if bytes > PAGE_BYTES_MAX {
        return;
    }
    let mut page = vec![0; bytes as usize];
    for number in 0..archive.pages() {
        let _ = archive.read(number, &mut page);
    }
    let past = archive.read(archive.pages(), &mut page);
    assert!(past.is_err(), "a page past the last");
}
