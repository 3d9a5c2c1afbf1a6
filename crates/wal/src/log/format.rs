//! File format of a log. All numbers are little-endian:
//!
//! ```text
//! file    "djinnlog"  version u32  generation u64  checksum u64 of all before it
//! record  length u32  position u64  checksum u64 of (length, sequence number, payload)  payload
//! ```
//!
//! The sequence number of a record is the number of records before it in the file. It is not
//! stored, but `position` and `checksum` depend on it and on the generation, so a stale or moved
//! record is not valid at its offset.
//!
//! `position` is the checksum of the length *plus* the sequence number. Therefore the length can
//! be verified before the payload is read, and for any 20 bytes of a damaged file one subtraction
//! gives the sequence number of the record that could start there.

use std::path::Path;

use crate::WalError;
use crate::checksum::{checksum, checksum_parts};

/// Largest number of bytes of one record.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Number of bytes before the first record.
pub(super) const HEADER_BYTES: usize = 28;
/// Number of bytes of a record before its payload.
pub(super) const HEAD_BYTES: usize = 20;

const MAGIC: [u8; 8] = *b"djinnlog";
const VERSION: u32 = 1;

/// Encodes the file header of a generation.
pub(super) fn header(generation: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&generation.to_le_bytes());
    let sum = checksum(0, &bytes[..20]);
    bytes[20..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Fails unless the bytes are the header of a log of this generation.
pub(super) fn check_header(
    bytes: &[u8; HEADER_BYTES],
    path: &Path,
    generation: u64,
) -> Result<(), WalError> {
    let path = || path.to_owned();
    if bytes[..8] != MAGIC {
        let (path, format) = (path(), "djinn log");
        return Err(WalError::WrongFormat { path, format });
    }
    let found = u32::from_le_bytes(four(bytes, 8));
    if found > VERSION {
        let (path, known) = (path(), VERSION);
        return Err(WalError::Newer { path, found, known });
    }
    if *bytes != header(generation) {
        return Err(WalError::HeaderDamaged { path: path() });
    }
    Ok(())
}

/// Encodes a record.
pub(super) fn record(generation: u64, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("payloads are limited");
    let head = RecordHead::new(generation, sequence, length, payload);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.extend_from_slice(&head.length.to_le_bytes());
    bytes.extend_from_slice(&head.position.to_le_bytes());
    bytes.extend_from_slice(&head.checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Bytes of a record before its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordHead {
    length: u32,
    position: u64,
    checksum: u64,
}

impl RecordHead {
    fn new(generation: u64, sequence: u64, length: u32, payload: &[u8]) -> RecordHead {
        let (length_le, sequence_le) = (length.to_le_bytes(), sequence.to_le_bytes());
        let parts: [&[u8]; 3] = [&length_le, &sequence_le, payload];
        RecordHead {
            length,
            position: checksum(generation, &length_le).wrapping_add(sequence),
            checksum: checksum_parts(generation, &parts),
        }
    }

    /// Decodes the head of a record without checking it.
    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> RecordHead {
        RecordHead {
            length: u32::from_le_bytes(four(bytes, 0)),
            position: u64::from_le_bytes(eight(bytes, 4)),
            checksum: u64::from_le_bytes(eight(bytes, 12)),
        }
    }

    /// Length of the payload, if the bytes are a record.
    pub(super) fn length(&self) -> usize {
        self.length as usize
    }

    /// Sequence number, if the bytes are a record.
    pub(super) fn sequence(&self, generation: u64) -> u64 {
        let length = checksum(generation, &self.length.to_le_bytes());
        self.position.wrapping_sub(length)
    }

    /// Whether the payload belongs to this head.
    pub(super) fn fits(&self, generation: u64, payload: &[u8]) -> bool {
        let sequence = self.sequence(generation);
        self.checksum == RecordHead::new(generation, sequence, self.length, payload).checksum
    }
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes[at..at + 4].try_into().expect("four bytes")
}

fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes[at..at + 8].try_into().expect("eight bytes")
}
