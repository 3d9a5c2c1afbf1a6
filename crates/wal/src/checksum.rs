//! The one checksum all files use: xxh3, 64 bits.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// Of these bytes. The seed says where they belong.
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Of these bytes one after another, as if they lay in one run.
pub(crate) fn checksum_parts(seed: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(seed);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}
