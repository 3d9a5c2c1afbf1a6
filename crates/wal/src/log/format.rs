//! The bytes of a log's file, all numbers little-endian:
//!
//! ```text
//! file    "djinnlog"  version u32  generation u64  checksum u64 of all before it
//! record  length u32  place u64  checksum u64 of (length, sequence number, payload)  payload
//! ```
//!
//! A record's sequence number is how many are before it in the file; it is not written but
//! goes into both `place` and `checksum`, as the generation does, so a record that is left
//! over or has moved is not valid where it lies.
//!
//! `place` is the length's checksum *plus* the sequence number. So a length is known to be
//! right before the payload is looked at, and from any 20 bytes of a damaged file follows, by
//! one subtraction, which record of the log they begin, if any.

use std::path::Path;

use crate::WalError;
use crate::checksum::{checksum, checksum_parts};

/// The most bytes one record holds.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// A file's bytes before its first record.
pub(super) const HEADER_BYTES: usize = 28;
/// A record's bytes before its payload.
pub(super) const HEAD_BYTES: usize = 20;

const MAGIC: [u8; 8] = *b"djinnlog";
const VERSION: u32 = 1;

/// What a file of this generation begins with.
pub(super) fn header(generation: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&generation.to_le_bytes());
    let sum = checksum(0, &bytes[..20]);
    bytes[20..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Whether a file that begins with these bytes is a log of this generation.
pub(super) fn check_header(
    bytes: &[u8; HEADER_BYTES],
    path: &Path,
    generation: u64,
) -> Result<(), WalError> {
    let path = || path.to_owned();
    if bytes[..8] != MAGIC {
        let what = "a log of djinn";
        return Err(WalError::NotOne { path: path(), what });
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

/// A record, whole.
pub(super) fn record(generation: u64, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("payloads are limited");
    let head = Head::new(generation, sequence, length, payload);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.extend_from_slice(&head.length.to_le_bytes());
    bytes.extend_from_slice(&head.place.to_le_bytes());
    bytes.extend_from_slice(&head.checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// What a record begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    length: u32,
    place: u64,
    checksum: u64,
}

impl Head {
    fn new(generation: u64, sequence: u64, length: u32, payload: &[u8]) -> Head {
        let (length_le, sequence_le) = (length.to_le_bytes(), sequence.to_le_bytes());
        let parts: [&[u8]; 3] = [&length_le, &sequence_le, payload];
        Head {
            length,
            place: checksum(generation, &length_le).wrapping_add(sequence),
            checksum: checksum_parts(generation, &parts),
        }
    }

    /// As it was read.
    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> Head {
        Head {
            length: u32::from_le_bytes(four(bytes, 0)),
            place: u64::from_le_bytes(eight(bytes, 4)),
            checksum: u64::from_le_bytes(eight(bytes, 12)),
        }
    }

    /// How long its payload is, if it is a record at all.
    pub(super) fn length(&self) -> usize {
        self.length as usize
    }

    /// Which record it is, if it is one at all.
    pub(super) fn sequence(&self, generation: u64) -> u64 {
        let length = checksum(generation, &self.length.to_le_bytes());
        self.place.wrapping_sub(length)
    }

    /// Whether this is its payload.
    pub(super) fn fits(&self, generation: u64, payload: &[u8]) -> bool {
        let sequence = self.sequence(generation);
        self.checksum == Head::new(generation, sequence, self.length, payload).checksum
    }
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes[at..at + 4].try_into().expect("four bytes")
}

fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes[at..at + 8].try_into().expect("eight bytes")
}
