//! The header of a safetensors file, checked.
//!
//! Own code rather than the `safetensors` crate: that one collapses duplicate names
//! silently, refuses a whole file for one dtype it does not know even where no pass
//! reads that tensor, and does not say which tensor is at fault.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::ModelError;

/// The limit of the reference implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// The header's own length, before it.
const LENGTH_BYTES: u64 = 8;

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As the file spells it: `BF16`.
    pub dtype: String,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
    /// Bytes from the start of the file.
    pub range: Range<u64>,
}

/// The tensors of one file by name.
pub type Header = HashMap<String, Entry>;

/// Bytes from the start of a file to the end of its header, from the file's first
/// bytes and its length; `path` is for errors.
pub fn header_bytes(path: &Path, first: &[u8], len: u64) -> Result<u64, ModelError> {
    let header = |problem: String| ModelError::Header {
        path: path.to_owned(),
        problem,
    };
    let Some(first) = first.first_chunk::<8>() else {
        return Err(header(format!(
            "the file has {len} bytes, too few for a header"
        )));
    };
    let size = u64::from_le_bytes(*first);
    if size > HEADER_BYTES_MAX {
        return Err(header(format!(
            "a header of {size} bytes is beyond the limit of {HEADER_BYTES_MAX}"
        )));
    }
    if LENGTH_BYTES + size > len {
        return Err(header(format!(
            "the header's {size} bytes lie beyond the end of the file, which has {len} bytes \
             (truncated?)"
        )));
    }
    Ok(LENGTH_BYTES + size)
}

/// Reads the header at the start of a file of `len` bytes; `path` is for errors.
pub fn read_header(path: &Path, start: &[u8], len: u64) -> Result<Header, ModelError> {
    let header = |problem: String| ModelError::Header {
        path: path.to_owned(),
        problem,
    };
    let data = header_bytes(path, start, len)?;
    let text = start
        .get(LENGTH_BYTES as usize..data as usize)
        .ok_or_else(|| header("not all of it was read".to_owned()))?;
    let RawHeader(tensors) = serde_json::from_slice(text).map_err(|error| {
        header(if error.is_data() {
            error.to_string()
        } else {
            format!("not JSON: {error}")
        })
    })?;
    place(path, tensors, data, len)
}

/// Tensors in the order of the header.
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

/// Checks that the tensors fill the file from `start` to `len` without holes or
/// overlaps, each as long as its shape and dtype say.
fn place(
    path: &Path,
    mut tensors: Vec<(String, RawEntry)>,
    start: u64,
    len: u64,
) -> Result<Header, ModelError> {
    // Empty tensors first among those at one offset, so that they leave no hole.
    tensors.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut header = Header::with_capacity(tensors.len());
    let mut end = 0;
    for (name, raw) in tensors {
        let fault = |problem: String| ModelError::Place {
            path: path.to_owned(),
            tensor: name.clone(),
            problem,
        };
        check(&raw, end, len - start).map_err(fault)?;
        end = raw.data_offsets.1;
        let entry = Entry {
            dtype: raw.dtype,
            shape: raw.shape,
            range: start + raw.data_offsets.0..start + raw.data_offsets.1,
        };
        if header.contains_key(&name) {
            return Err(fault("is in the header twice".to_owned()));
        }
        header.insert(name, entry);
    }
    if end != len - start {
        return Err(ModelError::Header {
            path: path.to_owned(),
            problem: format!("{} bytes after the last tensor", len - start - end),
        });
    }
    Ok(header)
}

/// What is wrong with one tensor that should start at `start` of `len` bytes.
fn check(raw: &RawEntry, start: u64, len: u64) -> Result<(), String> {
    let (from, to) = raw.data_offsets;
    if to < from {
        return Err(format!("ends at offset {to}, before it starts at {from}"));
    }
    if to > len {
        return Err(format!(
            "ends at offset {to}, beyond the end of the file, which has {len} bytes of data \
             (truncated?)"
        ));
    }
    if from < start {
        return Err(format!(
            "starts at offset {from}, in a tensor that ends at {start}"
        ));
    }
    if from > start {
        return Err(format!(
            "starts at offset {from}, leaving a hole from {start}"
        ));
    }
    let Some(bits) = bits_of(&raw.dtype) else {
        // Nothing can be checked; whoever wants this tensor will be told.
        return Ok(());
    };
    let expected = raw
        .shape
        .iter()
        .try_fold(1u64, |n, &size| n.checked_mul(size as u64))
        .and_then(|elements| elements.checked_mul(bits))
        .map(|bits| bits.div_ceil(8));
    match expected {
        Some(bytes) if bytes == to - from => Ok(()),
        Some(bytes) => Err(format!(
            "shape {:?} of {} takes {bytes} bytes, but its offsets span {}",
            raw.shape,
            raw.dtype,
            to - from
        )),
        None => Err(format!("shape {:?} is too large", raw.shape)),
    }
}

/// Bits of an element of a known dtype.
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
