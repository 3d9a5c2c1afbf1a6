//! Archive: a header and pages of equal size in one portable file.
//!
//! File format, all numbers little-endian:
//!
//! ```text
//! "djinnarc"  version u32  header length u64  page length u64  pages u64
//! checksum u64 of the header  checksum u64 of all bytes before
//! header
//! for each page: its bytes, and their checksum u64 with the page number as seed
//! ```

mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};

pub use self::writer::ArchiveWriter;
use crate::checksum::checksum;
use crate::{WalError, disk};

const MAGIC: [u8; 8] = *b"djinnarc";
const VERSION: u32 = 1;
/// Number of bytes before the header.
const PREAMBLE_BYTES: usize = 52;
/// Number of bytes after every page.
const CHECKSUM_BYTES: u64 = 8;

/// Sizes and header checksum, stored before the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Preamble {
    header_bytes: u64,
    page_bytes: u64,
    pages: u64,
    header_checksum: u64,
}

impl Preamble {
    fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.header_bytes.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.pages.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.header_checksum.to_le_bytes());
        let sum = checksum(0, &bytes[..44]);
        bytes[44..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Preamble> {
        let number = |at: usize| {
            let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let preamble = Preamble {
            header_bytes: number(12),
            page_bytes: number(20),
            pages: number(28),
            header_checksum: number(36),
        };
        (preamble.to_bytes() == *bytes).then_some(preamble)
    }

    /// Offset of a page, or of the end of the file for the page after the last. `None` if the offset
    /// overflows.
    fn offset(&self, page: u64) -> Option<u64> {
        let first = self.header_bytes.checked_add(PREAMBLE_BYTES as u64)?;
        let stride = self.page_bytes.checked_add(CHECKSUM_BYTES)?;
        first.checked_add(page.checked_mul(stride)?)
    }
}

/// Archive opened for reading. Several threads may read pages at once.
#[derive(Debug)]
pub struct Archive {
    file: File,
    path: PathBuf,
    preamble: Preamble,
    header: Vec<u8>,
}

impl Archive {
    /// Opens an archive and checks everything except the pages. [`Archive::read`] checks a page.
    pub fn open(path: &Path) -> Result<Archive, WalError> {
        let file = File::open(path).map_err(WalError::system("open", path))?;
        let bytes = disk::size(&file, path)?;
        let preamble = read_preamble(&file, path, bytes)?;
        check_size(&preamble, path, bytes)?;
        let mut header = vec![0; preamble.header_bytes as usize];
        disk::read_at(&file, path, &mut header, PREAMBLE_BYTES as u64)?;
        let path = path.to_owned();
        if checksum(0, &header) != preamble.header_checksum {
            return Err(WalError::HeaderDamaged { path });
        }
        Ok(Archive {
            file,
            path,
            preamble,
            header,
        })
    }

    /// Header bytes that the writer chose.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Number of bytes of a page. For an archive without pages this value is not verified.
    pub fn page_bytes(&self) -> u64 {
        self.preamble.page_bytes
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        // The file has at least eight bytes for each page, so the number fits.
        self.preamble.pages as usize
    }

    /// Reads a page into a buffer of the page's size. After a failure the content of `to` is
    /// undefined.
    pub fn read(&self, page: usize, to: &mut [u8]) -> Result<(), WalError> {
        let path = || self.path.clone();
        let pages = self.pages();
        if page >= pages {
            let path = path();
            return Err(WalError::NoSuchPage { path, page, pages });
        }
        let (page_bytes, given) = (self.preamble.page_bytes, to.len() as u64);
        if given != page_bytes {
            return Err(WalError::PageSize {
                path: path(),
                page_bytes,
                given,
            });
        }
        let offset = self
            .preamble
            .offset(page as u64)
            .expect("checked when opened");
        let mut expected = [0; CHECKSUM_BYTES as usize];
        disk::read_at(&self.file, &self.path, to, offset)?;
        disk::read_at(&self.file, &self.path, &mut expected, offset + page_bytes)?;
        if checksum(page as u64, to) != u64::from_le_bytes(expected) {
            return Err(WalError::PageDamaged { path: path(), page });
        }
        Ok(())
    }
}

/// Reads and checks the preamble of a file of `bytes` bytes.
fn read_preamble(file: &File, path: &Path, bytes: u64) -> Result<Preamble, WalError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    let there = bytes.min(PREAMBLE_BYTES as u64) as usize;
    disk::read_at(file, path, &mut preamble[..there], 0)?;
    let magic = there.min(MAGIC.len());
    // An empty file has no recognizable format.
    if magic == 0 || preamble[..magic] != MAGIC[..magic] {
        let (path, format) = (path.to_owned(), "djinn archive");
        return Err(WalError::WrongFormat { path, format });
    }
    if there < PREAMBLE_BYTES {
        return Err(cut_short(path, bytes, PREAMBLE_BYTES as u64));
    }
    let found = u32::from_le_bytes(preamble[8..12].try_into().expect("four bytes"));
    if found > VERSION {
        let (path, known) = (path.to_owned(), VERSION);
        return Err(WalError::Newer { path, found, known });
    }
    let damaged = || WalError::HeaderDamaged {
        path: path.to_owned(),
    };
    Preamble::parse(&preamble).ok_or_else(damaged)
}

/// Fails unless the file has the size that its preamble gives. Memory allocated for the header is
/// then at most the size of the file.
fn check_size(preamble: &Preamble, path: &Path, bytes: u64) -> Result<(), WalError> {
    let owned = path.to_owned();
    match preamble.offset(preamble.pages) {
        None => Err(WalError::HeaderDamaged { path: owned }),
        Some(expected) if bytes < expected => Err(cut_short(path, bytes, expected)),
        Some(expected) if bytes > expected => Err(WalError::TooLarge {
            path: owned,
            bytes,
            expected,
        }),
        Some(_) => Ok(()),
    }
}

fn cut_short(path: &Path, bytes: u64, expected: u64) -> WalError {
    WalError::CutShort {
        path: path.to_owned(),
        bytes,
        expected,
    }
}

#[cfg(test)]
mod tests;
