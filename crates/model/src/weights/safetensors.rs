//! Parser of safetensors headers.
//!
//! Djinn does not use the `safetensors` crate. The crate silently merges duplicate names, rejects
//! a whole file for one unknown dtype even if no pass reads that tensor, and does not name the
//! invalid tensor.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{HeaderProblem, ModelError, OffsetProblem};

/// Largest size of a header in bytes, as in the reference implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Size of the length field before the header, in bytes.
const LENGTH_BYTES: u64 = 8;

/// Dtype, shape and place of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Dtype as the file spells it, such as `BF16`.
    pub dtype: String,
    /// Size of each dimension, slowest-varying first.
    pub shape: Vec<usize>,
    /// Range of bytes, counted from the start of the file.
    pub range: Range<u64>,
}

/// Tensors of one file, by name.
pub type Header = HashMap<String, TensorEntry>;

/// Returns the number of bytes from the start of a file to the end of its header. `first` holds
/// at least the first 8 bytes of the file, and `len` is the size of the file. Errors name `path`.
pub fn header_bytes(path: &Path, first: &[u8], len: u64) -> Result<u64, ModelError> {
    let header = |problem: HeaderProblem| ModelError::Header {
        path: path.to_owned(),
        problem,
    };
    let Some(first) = first.first_chunk::<8>() else {
        return Err(header(HeaderProblem::NoLength { file_bytes: len }));
    };
    let size = u64::from_le_bytes(*first);
    if size > HEADER_BYTES_MAX {
        return Err(header(HeaderProblem::TooLong {
            bytes: size,
            limit: HEADER_BYTES_MAX,
        }));
    }
    if LENGTH_BYTES + size > len {
        return Err(header(HeaderProblem::Truncated {
            bytes: size,
            file_bytes: len,
        }));
    }
    Ok(LENGTH_BYTES + size)
}

/// Parses the header at the start of a file of `len` bytes. Errors name `path`.
pub fn read_header(path: &Path, start: &[u8], len: u64) -> Result<Header, ModelError> {
    let header = |problem: HeaderProblem| ModelError::Header {
        path: path.to_owned(),
        problem,
    };
    let data = header_bytes(path, start, len)?;
    let text = start
        .get(LENGTH_BYTES as usize..data as usize)
        .ok_or_else(|| header(HeaderProblem::Partial))?;
    let RawHeader(tensors) = serde_json::from_slice(text).map_err(|error| {
        header(if error.is_data() {
            HeaderProblem::Malformed(error.to_string())
        } else {
            HeaderProblem::NotJson(error.to_string())
        })
    })?;
    place(path, tensors, data, len)
}

/// Tensors in the order of the header, not yet checked.
struct RawHeader(Vec<(String, RawEntry)>);

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                let entry = map
                    .next_value()
                    .map_err(|error| A::Error::custom(format!("tensor '{name}': {error}")))?;
                tensors.push((name, entry));
            }
        }
        Ok(RawHeader(tensors))
    }
}

/// Checks that the tensors fill the file from `start` to `len` without holes or overlaps, and
/// that offsets match shapes and dtypes.
fn place(
    path: &Path,
    mut tensors: Vec<(String, RawEntry)>,
    start: u64,
    len: u64,
) -> Result<Header, ModelError> {
    // An empty tensor sorts before others at the same offset, so it leaves no hole.
    tensors.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut header = Header::with_capacity(tensors.len());
    let mut end = 0;
    for (name, raw) in tensors {
        let fault = |problem: OffsetProblem| ModelError::Offsets {
            path: path.to_owned(),
            tensor: name.clone(),
            problem,
        };
        check(&raw, end, len - start).map_err(fault)?;
        end = raw.data_offsets.1;
        let entry = TensorEntry {
            dtype: raw.dtype,
            shape: raw.shape,
            range: start + raw.data_offsets.0..start + raw.data_offsets.1,
        };
        if header.contains_key(&name) {
            return Err(fault(OffsetProblem::Duplicate));
        }
        header.insert(name, entry);
    }
    if end != len - start {
        return Err(ModelError::Header {
            path: path.to_owned(),
            problem: HeaderProblem::TrailingBytes {
                bytes: len - start - end,
            },
        });
    }
    Ok(header)
}

/// Checks one tensor, which must start at offset `previous_end` of `data_bytes` bytes.
fn check(raw: &RawEntry, previous_end: u64, data_bytes: u64) -> Result<(), OffsetProblem> {
    let (start, end) = raw.data_offsets;
    if end < start {
        return Err(OffsetProblem::Reversed { start, end });
    }
    if end > data_bytes {
        return Err(OffsetProblem::BeyondFile { end, data_bytes });
    }
    if start < previous_end {
        return Err(OffsetProblem::Overlap {
            start,
            previous_end,
        });
    }
    if start > previous_end {
        return Err(OffsetProblem::Hole {
            start,
            previous_end,
        });
    }
    let Some(bits) = bits_of(&raw.dtype) else {
        // The size of an unknown dtype cannot be checked. Resolving the checkpoint rejects a
        // model that needs this tensor.
        return Ok(());
    };
    let expected = raw
        .shape
        .iter()
        .try_fold(1u64, |n, &size| n.checked_mul(size as u64))
        .and_then(|elements| elements.checked_mul(bits))
        .map(|bits| bits.div_ceil(8));
    match expected {
        Some(bytes) if bytes == end - start => Ok(()),
        Some(expected) => Err(OffsetProblem::Size {
            shape: raw.shape.clone(),
            dtype: raw.dtype.clone(),
            expected,
            found: end - start,
        }),
        None => Err(OffsetProblem::Overflow {
            shape: raw.shape.clone(),
        }),
    }
}

/// Returns the number of bits in an element of a known dtype.
fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}
