//! Reads a log's file back, and tells a record cut off by a crash from damage.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::format::{self, FileHeader, HEAD_BYTES, HEADER_BYTES, RecordHead, VERSION};
use super::window::Window;
use crate::WalError;

/// Content of a log file.
#[derive(Debug)]
pub(super) struct Replay {
    /// Header of the file, or the header that the file must have had.
    pub(super) header: FileHeader,
    /// Whether the header is as it was written.
    pub(super) header_intact: bool,
    /// Payloads in order.
    pub(super) records: Vec<Vec<u8>>,
    /// Sequence number of the next record.
    pub(super) sequence: u64,
    /// Offset of the end of the last record.
    pub(super) end: u64,
    /// Number of bytes after the last record: the part of a record that a crash left.
    pub(super) torn: u64,
    /// Offset up to which a sync mark confirms that the bytes were on disk.
    pub(super) synced: Option<u64>,
    /// Whether the last record is a sync mark.
    pub(super) ends_with_mark: bool,
    /// Damaged ranges between valid records.
    pub(super) gaps: Vec<Gap>,
}

/// Damaged bytes between two valid records, or before the end of the file.
#[derive(Debug)]
pub(super) struct Gap {
    /// Offset and end of the damaged bytes.
    pub(super) bytes: Range<u64>,
    /// Sequence number of the first record that was there.
    pub(super) sequence: u64,
    /// Number of records that were there; `None` if no later record tells them.
    pub(super) lost: Option<u64>,
    /// Number of payloads before the damage.
    pub(super) before: usize,
}

/// Reads all valid records.
///
/// If a valid record follows invalid bytes, the invalid bytes are a gap. A gap before the last
/// confirmed sync is damage. A gap after it comes from a power cut, on a filesystem that wrote
/// later bytes before earlier ones; the file then ends at the gap, like a file that a crash cut.
/// Files without sync marks do not tell the two apart, and all gaps count as damage.
pub(super) fn replay(file: &File, path: &Path, generation: u64) -> Result<Replay, WalError> {
    let mut reader = Reader::open(file, path, generation)?;
    while let Some(next) = reader.next()? {
        reader.take(next);
    }
    let mut replay = reader.replay;
    let size = reader.window.size();
    replay.drop_unsynced_gap();
    replay.check_first_mark(size);
    replay.torn = size - replay.end;
    Ok(replay)
}

impl Replay {
    fn new(header: FileHeader, header_intact: bool) -> Replay {
        Replay {
            header,
            header_intact,
            records: Vec::new(),
            sequence: 0,
            end: HEADER_BYTES as u64,
            torn: 0,
            synced: None,
            ends_with_mark: false,
            gaps: Vec::new(),
        }
    }

    /// Ends the log at the first gap behind the last confirmed sync. No sync mark follows such a
    /// gap, because a mark confirms all bytes before it.
    fn drop_unsynced_gap(&mut self) {
        let Some(synced) = self.synced else {
            return;
        };
        let unsynced = |gap: &Gap| gap.bytes.start >= synced;
        if let Some(first) = self.gaps.iter().position(unsynced) {
            let gap = &self.gaps[first];
            self.records.truncate(gap.before);
            self.sequence = gap.sequence;
            self.end = gap.bytes.start;
            self.ends_with_mark = false;
            self.gaps.truncate(first);
        }
    }

    /// Reports the rest of a file without any sync mark as damage. A file gets its name after it
    /// was synced with a mark, so a file without a mark has lost bytes that were on disk.
    fn check_first_mark(&mut self, size: u64) {
        if self.header.has_marks() && self.synced.is_none() {
            self.gaps.push(Gap {
                bytes: self.end..size,
                sequence: self.sequence,
                lost: None,
                before: self.records.len(),
            });
            self.end = size;
        }
    }
}

/// Valid record of a file.
struct FoundRecord {
    offset: u64,
    sequence: u64,
    is_mark: bool,
    payload: Vec<u8>,
}

/// Bytes at an offset of a log file.
enum Found {
    /// Valid record.
    Record(FoundRecord),
    /// End of the file, or a record that reaches beyond it. No other record can follow.
    End,
    /// Invalid bytes. A valid record may follow from this offset on.
    Invalid { search: u64 },
}

/// State of reading one file.
struct Reader<'f> {
    window: Window<'f>,
    replay: Replay,
}

impl<'f> Reader<'f> {
    /// Reads the header. If the header is damaged, the name of the file tells the generation, and
    /// the records show whether the guess is right.
    fn open(file: &'f File, path: &'f Path, generation: u64) -> Result<Reader<'f>, WalError> {
        let mut window = Window::new(file, path)?;
        let mut header = [0; HEADER_BYTES];
        let has_header = window.size() >= HEADER_BYTES as u64;
        if has_header {
            window.read(0, &mut header)?;
        }
        let found = FileHeader::parse(&header).filter(|_| has_header);
        if let Some(FileHeader { version: found, .. }) = found
            && found > VERSION
        {
            let (path, known) = (path.to_owned(), VERSION);
            return Err(WalError::Newer { path, found, known });
        }
        let intact = found.is_some_and(|header| header.generation == generation);
        let header = found.unwrap_or(FileHeader::new(generation));
        let mut replay = Replay::new(header, intact);
        replay.end = replay.end.min(window.size());
        Ok(Reader { window, replay })
    }

    /// Finds the next valid record.
    fn next(&mut self) -> Result<Option<FoundRecord>, WalError> {
        let (end, sequence) = (self.replay.end, self.replay.sequence);
        match self.look(end, |found| found == sequence)? {
            Found::Record(record) => Ok(Some(record)),
            Found::End => Ok(None),
            Found::Invalid { search } => self.search(search),
        }
    }

    /// Searches from an offset on for a valid record with a later sequence number. The search
    /// looks at every byte once: behind a head with a plausible sequence number, which no accident
    /// makes, the search skips the length that the head gives.
    fn search(&mut self, from: u64) -> Result<Option<FoundRecord>, WalError> {
        let (end, sequence) = (self.replay.end, self.replay.sequence);
        let mut offset = from;
        loop {
            // The number of bytes in between limits the number of records in between.
            let most = (offset - end) / HEAD_BYTES as u64;
            let later = |found: u64| (1..=most).contains(&found.wrapping_sub(sequence));
            match self.look(offset, later)? {
                Found::Record(record) => return Ok(Some(record)),
                Found::End => return Ok(None),
                Found::Invalid { search } => offset = search,
            }
        }
    }

    /// Looks for a record with an expected sequence number at an offset. A length is compared
    /// with the size of the file before memory is allocated for the payload.
    fn look(&mut self, offset: u64, is_expected: impl Fn(u64) -> bool) -> Result<Found, WalError> {
        let generation = self.replay.header.generation;
        let left = self.window.size() - offset;
        if left < HEAD_BYTES as u64 {
            return Ok(Found::End);
        }
        let mut head = [0; HEAD_BYTES];
        self.window.read(offset, &mut head)?;
        let head = RecordHead::parse(&head);
        let sequence = head.sequence(generation);
        let possible = !head.is_mark() || self.replay.header.has_marks();
        let Some(length) = head.length().filter(|_| possible && is_expected(sequence)) else {
            // The length itself may be wrong.
            let search = offset + 1;
            return Ok(Found::Invalid { search });
        };
        let bytes = (HEAD_BYTES + length) as u64;
        if bytes > left {
            return Ok(Found::End);
        }
        let mut payload = vec![0; length];
        self.window.read(offset + HEAD_BYTES as u64, &mut payload)?;
        if !head.fits(generation, &payload) {
            let search = offset + bytes;
            return Ok(Found::Invalid { search });
        }
        Ok(Found::Record(FoundRecord {
            offset,
            sequence,
            is_mark: head.is_mark(),
            payload,
        }))
    }

    /// Adds a record to the content, with the gap before it.
    fn take(&mut self, record: FoundRecord) {
        let replay = &mut self.replay;
        if record.offset > replay.end {
            replay.gaps.push(Gap {
                bytes: replay.end..record.offset,
                sequence: replay.sequence,
                lost: Some(record.sequence - replay.sequence),
                before: replay.records.len(),
            });
        }
        replay.end = record.offset + (HEAD_BYTES + record.payload.len()) as u64;
        replay.sequence = record.sequence + 1;
        replay.ends_with_mark = record.is_mark;
        if record.is_mark {
            let marked = format::marked_offset(&record.payload).min(record.offset);
            replay.synced = replay.synced.max(Some(marked));
        } else {
            replay.records.push(record.payload);
        }
    }
}
