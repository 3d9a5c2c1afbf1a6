//! Reading a log's file back, and telling what a crash left from what was damaged.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::format::{self, HEAD_BYTES, HEADER_BYTES, Head};
use crate::{WalError, disk};

/// What a file holds.
pub(super) struct Replay {
    /// Its records, in order.
    pub(super) records: Vec<Vec<u8>>,
    /// Where the last of them ends.
    pub(super) end: u64,
    /// Bytes behind that: what a crash left of a record.
    pub(super) torn: u64,
}

/// Reads all records, up to the file's end or to what a crash left there.
///
/// A crash tears only the end, so after the first record that is not whole there must be no
/// whole one. If there is, somebody or something damaged the file, and dropping what follows
/// would lose records that were written.
pub(super) fn replay(file: &File, path: &Path, generation: u64) -> Result<Replay, WalError> {
    let size = disk::size(file, path)?;
    let mut reader = BufReader::new(file);
    let mut header = [0; HEADER_BYTES];
    let read = WalError::read;
    reader.read_exact(&mut header).map_err(read(path))?;
    format::check_header(&header, path, generation)?;

    let mut records = Vec::new();
    let mut at = HEADER_BYTES as u64;
    let search = loop {
        let sequence = records.len() as u64;
        match next(&mut reader, generation, sequence, size - at).map_err(read(path))? {
            Next::Whole(payload) => {
                at += (HEAD_BYTES + payload.len()) as u64;
                records.push(payload);
            }
            Next::Torn => break None,
            Next::Bad { search } => break Some(at + search),
        }
    };
    if let Some(from) = search {
        let bad = Bad {
            generation,
            sequence: records.len() as u64,
            at,
        };
        if let Some(next) = bad.whole_after(file, path, from, size)? {
            let (path, offset) = (path.to_owned(), at);
            return Err(WalError::RecordDamaged { path, offset, next });
        }
    }
    Ok(Replay {
        records,
        end: at,
        torn: size - at,
    })
}

/// What comes next in a file.
enum Next {
    /// A whole record.
    Whole(Vec<u8>),
    /// The file's end, or a record that reaches beyond it, so that none can follow.
    Torn,
    /// Something else. Whole records may follow from so many bytes on.
    Bad { search: u64 },
}

fn next(reader: &mut impl Read, generation: u64, sequence: u64, left: u64) -> io::Result<Next> {
    if left < HEAD_BYTES as u64 {
        return Ok(Next::Torn);
    }
    let mut head = [0; HEAD_BYTES];
    reader.read_exact(&mut head)?;
    let head = Head::parse(&head);
    if head.sequence(generation) != sequence {
        // Its length may be as wrong as the rest.
        return Ok(Next::Bad { search: 1 });
    }
    let bytes = (HEAD_BYTES + head.length()) as u64;
    if bytes > left {
        return Ok(Next::Torn);
    }
    let mut payload = vec![0; head.length()];
    reader.read_exact(&mut payload)?;
    if !head.fits(generation, &payload) {
        return Ok(Next::Bad { search: bytes });
    }
    Ok(Next::Whole(payload))
}

/// The first record that is not whole.
struct Bad {
    generation: u64,
    sequence: u64,
    at: u64,
}

impl Bad {
    /// Where between two offsets a whole record of a later sequence number begins.
    fn whole_after(
        &self,
        file: &File,
        path: &Path,
        from: u64,
        size: u64,
    ) -> Result<Option<u64>, WalError> {
        let mut rest = vec![0; (size - from) as usize];
        disk::read_at(file, path, &mut rest, from)?;
        let mut offsets = from..size;
        let is_whole = |&offset: &u64| {
            let here = &rest[(offset - from) as usize..];
            here.split_first_chunk()
                .is_some_and(|(head, behind)| self.is_later(&Head::parse(head), offset, behind))
        };
        Ok(offsets.find(is_whole))
    }

    fn is_later(&self, head: &Head, offset: u64, behind: &[u8]) -> bool {
        let Some(payload) = behind.get(..head.length()) else {
            return false;
        };
        // In between there is room for so many records and no more.
        let most = (offset - self.at) / HEAD_BYTES as u64;
        let later = head.sequence(self.generation).wrapping_sub(self.sequence);
        (1..=most).contains(&later) && head.fits(self.generation, payload)
    }
}
