//! Reads a log's file back and distinguishes a record cut off by a crash from damage.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::format::{self, HEAD_BYTES, HEADER_BYTES, RecordHead};
use crate::{WalError, disk};

/// Content of a log file.
pub(super) struct Replay {
    /// Payloads in order.
    pub(super) records: Vec<Vec<u8>>,
    /// Offset of the end of the last record.
    pub(super) end: u64,
    /// Number of bytes after the last record: the part of a record that a crash left.
    pub(super) torn: u64,
}

/// Reads all records up to the end of the file, or up to an incomplete record at the end.
///
/// A crash affects only the end, so no valid record follows the first invalid one. If a valid
/// record follows, the file is damaged, and dropping the rest would lose written records.
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
            NextRecord::Complete(payload) => {
                at += (HEAD_BYTES + payload.len()) as u64;
                records.push(payload);
            }
            NextRecord::Torn => break None,
            NextRecord::Invalid { search } => break Some(at + search),
        }
    };
    if let Some(from) = search {
        let invalid = InvalidRecord {
            generation,
            sequence: records.len() as u64,
            at,
        };
        if let Some(next) = invalid.valid_after(file, path, from, size)? {
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

/// Next bytes of a log file.
enum NextRecord {
    /// Complete record.
    Complete(Vec<u8>),
    /// End of the file, or a record that reaches beyond it. No other record can follow.
    Torn,
    /// Invalid bytes. A valid record may follow after this number of bytes.
    Invalid { search: u64 },
}

fn next(
    reader: &mut impl Read,
    generation: u64,
    sequence: u64,
    left: u64,
) -> io::Result<NextRecord> {
    if left < HEAD_BYTES as u64 {
        return Ok(NextRecord::Torn);
    }
    let mut head = [0; HEAD_BYTES];
    reader.read_exact(&mut head)?;
    let head = RecordHead::parse(&head);
    if head.sequence(generation) != sequence {
        // The length itself may be wrong.
        return Ok(NextRecord::Invalid { search: 1 });
    }
    let bytes = (HEAD_BYTES + head.length()) as u64;
    if bytes > left {
        return Ok(NextRecord::Torn);
    }
    let mut payload = vec![0; head.length()];
    reader.read_exact(&mut payload)?;
    if !head.fits(generation, &payload) {
        return Ok(NextRecord::Invalid { search: bytes });
    }
    Ok(NextRecord::Complete(payload))
}

/// First invalid record of a file.
struct InvalidRecord {
    generation: u64,
    sequence: u64,
    at: u64,
}

impl InvalidRecord {
    /// Finds the offset of a valid record with a later sequence number, from `from` on.
    fn valid_after(
        &self,
        file: &File,
        path: &Path,
        from: u64,
        size: u64,
    ) -> Result<Option<u64>, WalError> {
        let mut rest = vec![0; (size - from) as usize];
        disk::read_at(file, path, &mut rest, from)?;
        let mut offsets = from..size;
        let is_valid = |&offset: &u64| {
            let here = &rest[(offset - from) as usize..];
            here.split_first_chunk().is_some_and(|(head, behind)| {
                self.is_later(&RecordHead::parse(head), offset, behind)
            })
        };
        Ok(offsets.find(is_valid))
    }

    fn is_later(&self, head: &RecordHead, offset: u64, behind: &[u8]) -> bool {
        let Some(payload) = behind.get(..head.length()) else {
            return false;
        };
        // The number of bytes in between limits the number of records in between.
        let most = (offset - self.at) / HEAD_BYTES as u64;
        let later = head.sequence(self.generation).wrapping_sub(self.sequence);
        (1..=most).contains(&later) && head.fits(self.generation, payload)
    }
}
