//! Checksum of all files: xxh3 with 64 bits.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// Computes the checksum of bytes. The seed identifies the position that the bytes belong to.
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Computes the checksum of several parts, as if they were concatenated.
pub(crate) fn checksum_parts(seed: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(seed);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}
