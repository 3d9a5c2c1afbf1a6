//! File format of a log. All numbers are little-endian:
//!
//! ```text
//! file    "djinnlog"  version u32  generation u64  checksum u64 of all before it
//! record  kind and length u32  position u64  checksum u64 of (kind and length, sequence number,
//!         payload)  payload
//! ```
//!
//! The sequence number of a record is the number of records before it in the file. It is not
//! stored, but `position` and `checksum` depend on it and on the generation, so a stale or moved
//! record is not valid at its offset.
//!
//! `position` is the checksum of kind and length *plus* the sequence number. Therefore the length
//! can be verified before the payload is read, and for any 20 bytes of a damaged file one
//! subtraction gives the sequence number of the record that could start there.
//!
//! The highest bit of the length tells the kind. Without the bit, the payload belongs to the
//! user. With the bit, the record is a *sync mark*: its payload is an offset (u64), and all bytes
//! before that offset were on disk when the mark was written. Version 1 has no sync marks. Every
//! later version must keep the layout of the file header.

use crate::checksum::{checksum, checksum_parts};

/// Largest number of bytes of one record.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Number of bytes before the first record.
pub(super) const HEADER_BYTES: usize = 28;
/// Number of bytes of a record before its payload.
pub(super) const HEAD_BYTES: usize = 20;
/// Number of bytes of a sync mark.
#[cfg(test)]
pub(super) const MARK_BYTES: usize = HEAD_BYTES + MARK_PAYLOAD_BYTES as usize;

/// Newest version of the format, which new files have.
pub(super) const VERSION: u32 = 2;
/// First version that has sync marks.
const VERSION_WITH_MARKS: u32 = 2;
const MAGIC: [u8; 8] = *b"djinnlog";
/// Bit of the length that distinguishes a sync mark.
const MARK_BIT: u32 = 1 << 31;
const MARK_PAYLOAD_BYTES: u32 = 8;

/// Facts in the header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// Version of the format.
    pub(super) version: u32,
    /// Number that seeds the checksums of the records.
    pub(super) generation: u64,
}

impl FileHeader {
    /// Returns the header of a new file.
    pub(super) fn new(generation: u64) -> FileHeader {
        let version = VERSION;
        FileHeader {
            version,
            generation,
        }
    }

    /// Encodes the header.
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.generation.to_le_bytes());
        let sum = checksum(0, &bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns `None` if the bytes are not a header as it was written.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<FileHeader> {
        let header = FileHeader {
            version: u32::from_le_bytes(four(bytes, 8)),
            generation: u64::from_le_bytes(eight(bytes, 12)),
        };
        (header.version > 0 && header.to_bytes() == *bytes).then_some(header)
    }

    /// Whether files of this version contain sync marks.
    pub(super) fn has_marks(self) -> bool {
        self.version >= VERSION_WITH_MARKS
    }
}

/// Encodes a record of the user.
pub(super) fn record(generation: u64, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("payloads are limited");
    encode(generation, sequence, length, payload)
}

/// Encodes a sync mark: all bytes before `synced` are on disk.
pub(super) fn sync_mark(generation: u64, sequence: u64, synced: u64) -> Vec<u8> {
    let kind_and_length = MARK_BIT | MARK_PAYLOAD_BYTES;
    encode(generation, sequence, kind_and_length, &synced.to_le_bytes())
}

fn encode(generation: u64, sequence: u64, kind_and_length: u32, payload: &[u8]) -> Vec<u8> {
    let head = RecordHead::new(generation, sequence, kind_and_length, payload);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.extend_from_slice(&head.kind_and_length.to_le_bytes());
    bytes.extend_from_slice(&head.position.to_le_bytes());
    bytes.extend_from_slice(&head.checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Bytes of a record before its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordHead {
    kind_and_length: u32,
    position: u64,
    checksum: u64,
}

impl RecordHead {
    fn new(generation: u64, sequence: u64, kind_and_length: u32, payload: &[u8]) -> RecordHead {
        let (length_le, sequence_le) = (kind_and_length.to_le_bytes(), sequence.to_le_bytes());
        let parts: [&[u8]; 3] = [&length_le, &sequence_le, payload];
        RecordHead {
            kind_and_length,
            position: checksum(generation, &length_le).wrapping_add(sequence),
            checksum: checksum_parts(generation, &parts),
        }
    }

    /// Decodes the head of a record without checking it.
    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> RecordHead {
        RecordHead {
            kind_and_length: u32::from_le_bytes(four(bytes, 0)),
            position: u64::from_le_bytes(eight(bytes, 4)),
            checksum: u64::from_le_bytes(eight(bytes, 12)),
        }
    }

    /// Length of the payload, if the bytes are a record. `None` if no record has this length.
    pub(super) fn length(&self) -> Option<usize> {
        let length = self.kind_and_length & !MARK_BIT;
        let possible = match self.is_mark() {
            true => length == MARK_PAYLOAD_BYTES,
            false => u64::from(length) <= PAYLOAD_BYTES_MAX,
        };
        possible.then_some(length as usize)
    }

    /// Whether the record is a sync mark, if the bytes are a record.
    pub(super) fn is_mark(&self) -> bool {
        self.kind_and_length & MARK_BIT != 0
    }

    /// Sequence number, if the bytes are a record.
    pub(super) fn sequence(&self, generation: u64) -> u64 {
        let length = checksum(generation, &self.kind_and_length.to_le_bytes());
        self.position.wrapping_sub(length)
    }

    /// Whether the payload belongs to this head.
    pub(super) fn fits(&self, generation: u64, payload: &[u8]) -> bool {
        let sequence = self.sequence(generation);
        let whole = RecordHead::new(generation, sequence, self.kind_and_length, payload);
        self.checksum == whole.checksum
    }
}

/// Decodes the payload of a sync mark.
pub(super) fn marked_offset(payload: &[u8]) -> u64 {
    u64::from_le_bytes(eight(payload, 0))
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes[at..at + 4].try_into().expect("four bytes")
}

fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes[at..at + 8].try_into().expect("eight bytes")
}
