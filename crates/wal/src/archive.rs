//! Archive: a header and pages of equal size in one file, for other machines to read.
//!
//! The bytes of the file, all numbers little-endian:
//!
//! ```text
//! "djinnarc"  version u32  header length u64  page length u64  pages u64
//! header's checksum u64  checksum u64 of all before it
//! header
//! for each page: its bytes, and their checksum u64, seeded with the page's number
//! ```

mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};

pub use self::writer::ArchiveWriter;
use crate::checksum::checksum;
use crate::{WalError, disk};

const MAGIC: [u8; 8] = *b"djinnarc";
const VERSION: u32 = 1;
/// Bytes before the header.
const FRONT_BYTES: usize = 52;
/// Bytes behind every page.
const CHECKSUM_BYTES: u64 = 8;

/// What a file says of itself, before the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Front {
    header_bytes: u64,
    page_bytes: u64,
    pages: u64,
    header_checksum: u64,
}

impl Front {
    fn to_bytes(self) -> [u8; FRONT_BYTES] {
        let mut bytes = [0; FRONT_BYTES];
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

    fn parse(bytes: &[u8; FRONT_BYTES]) -> Option<Front> {
        let number = |at: usize| {
            let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let front = Front {
            header_bytes: number(12),
            page_bytes: number(20),
            pages: number(28),
            header_checksum: number(36),
        };
        (front.to_bytes() == *bytes).then_some(front)
    }

    /// Where a page begins; the file's end for the one after the last. None where no file
    /// reaches.
    fn offset(&self, page: u64) -> Option<u64> {
        let first = self.header_bytes.checked_add(FRONT_BYTES as u64)?;
        let stride = self.page_bytes.checked_add(CHECKSUM_BYTES)?;
        first.checked_add(page.checked_mul(stride)?)
    }
}

/// An archive that is being read. Several threads may read pages at once.
#[derive(Debug)]
pub struct Archive {
    file: File,
    path: PathBuf,
    front: Front,
    header: Vec<u8>,
}

impl Archive {
    /// Opens an archive and checks all of it but the pages, which are checked as they are
    /// read.
    pub fn open(path: &Path) -> Result<Archive, WalError> {
        let file = File::open(path).map_err(WalError::system("open", path))?;
        let bytes = disk::size(&file, path)?;
        let front = read_front(&file, path, bytes)?;
        check_size(&front, path, bytes)?;
        let mut header = vec![0; front.header_bytes as usize];
        disk::read_at(&file, path, &mut header, FRONT_BYTES as u64)?;
        let path = path.to_owned();
        if checksum(0, &header) != front.header_checksum {
            return Err(WalError::HeaderDamaged { path });
        }
        Ok(Archive {
            file,
            path,
            front,
            header,
        })
    }

    /// What the writer put before the pages.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// How many bytes each page has. Where there are no pages this is only what the file says.
    pub fn page_bytes(&self) -> u64 {
        self.front.page_bytes
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        // Each takes at least eight bytes of a file that is there.
        self.front.pages as usize
    }

    /// Reads a page, into as many bytes as it has. If that fails, `to` holds nothing of use.
    pub fn read(&self, page: usize, to: &mut [u8]) -> Result<(), WalError> {
        let path = || self.path.clone();
        let pages = self.pages();
        if page >= pages {
            let path = path();
            return Err(WalError::NoSuchPage { path, page, pages });
        }
        let (page_bytes, given) = (self.front.page_bytes, to.len() as u64);
        if given != page_bytes {
            return Err(WalError::PageSize {
                path: path(),
                page_bytes,
                given,
            });
        }
        let offset = self.front.offset(page as u64).expect("within the file");
        let mut expected = [0; CHECKSUM_BYTES as usize];
        disk::read_at(&self.file, &self.path, to, offset)?;
        disk::read_at(&self.file, &self.path, &mut expected, offset + page_bytes)?;
        if checksum(page as u64, to) != u64::from_le_bytes(expected) {
            return Err(WalError::PageDamaged { path: path(), page });
        }
        Ok(())
    }
}

/// What a file of so many bytes says of itself, if it is an archive.
fn read_front(file: &File, path: &Path, bytes: u64) -> Result<Front, WalError> {
    let mut front = [0; FRONT_BYTES];
    let there = bytes.min(FRONT_BYTES as u64) as usize;
    disk::read_at(file, path, &mut front[..there], 0)?;
    let magic = there.min(MAGIC.len());
    // An empty file may have been anything.
    if magic == 0 || front[..magic] != MAGIC[..magic] {
        let (path, what) = (path.to_owned(), "an archive of djinn");
        return Err(WalError::NotOne { path, what });
    }
    if there < FRONT_BYTES {
        return Err(cut_short(path, bytes, FRONT_BYTES as u64));
    }
    let found = u32::from_le_bytes(front[8..12].try_into().expect("four bytes"));
    if found > VERSION {
        let (path, known) = (path.to_owned(), VERSION);
        return Err(WalError::Newer { path, found, known });
    }
    let damaged = || WalError::HeaderDamaged {
        path: path.to_owned(),
    };
    Front::parse(&front).ok_or_else(damaged)
}

/// Whether the file is as long as it says. So the header's memory is at most the file's size.
fn check_size(front: &Front, path: &Path, bytes: u64) -> Result<(), WalError> {
    let owned = path.to_owned();
    match front.offset(front.pages) {
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
