//! Steering vectors in GGUF files, in the format of llama.cpp's control vectors.
//!
//! Layout of a file; all numbers are little-endian, and `text` is a u64 length followed by bytes:
//!
//! ```text
//! "GGUF"  version u32  tensors u64  pairs u64
//! for each pair: key text  type u32  value
//! for each tensor: name text  dimensions u32  size of each u64  type u32  offset u64
//! padding, then the values of each tensor, each followed by padding
//! ```
//!
//! llama.cpp adds `direction.N` to the output of its layer N, so the direction belongs to block
//! N. N is at least 1, because llama.cpp never steers its layer 0. llama.cpp reads no metadata
//! except the alignment. Tensors must be in order of their offsets, without gaps and with padding
//! after the last. They therefore cannot overlap or need more memory than the file has.

mod cursor;

use std::collections::BTreeMap;

use self::cursor::{GgufCursor, GgufValue, TEXT, U32};
use crate::block_number::parse_block;
use crate::error::{BlockProblem, EntryProblem, GgufProblem, VectorsError};
use crate::steering::{Method, Steering};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;

const ARCHITECTURE: &str = "general.architecture";
const CONTROL_VECTOR: &str = "controlvector";
const ALIGNMENT: &str = "general.alignment";
const MODEL: &str = "controlvector.model_hint";
const LAYERS: &str = "controlvector.layer_count";
/// Metadata key of the method. Only Djinn uses this key; other programs ignore it.
const METHOD: &str = "djinn.method";

/// Alignment of values in bytes, unless the file gives another.
const ALIGNMENT_DEFAULT: u32 = 32;
/// Number of the element type f32.
const F32: u32 = 0;
const DIMENSIONS_MAX: u32 = 4;

pub(crate) fn parse(bytes: &[u8]) -> Result<Steering, VectorsError> {
    let mut cursor = GgufCursor::new(bytes);
    cursor.take(MAGIC.len() as u64)?;
    let version = cursor.u32()?;
    if version != 2 && version != VERSION {
        return Err(VectorsError::Gguf {
            at: MAGIC.len(),
            problem: GgufProblem::Version { found: version },
        });
    }
    let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
    let head = GgufHeader::parse(&mut cursor, pairs)?;
    let mut infos = Vec::new();
    let mut end = 0;
    for _ in 0..tensors {
        infos.push(GgufTensor::parse(&mut cursor, &mut end, head.alignment)?);
    }
    cursor.pad(head.alignment)?;
    let mut directions = BTreeMap::new();
    for info in infos {
        let (numbers, _) = cursor.take(info.bytes)?.as_chunks();
        let direction = numbers.iter().map(|&bytes| f32::from_le_bytes(bytes));
        if directions.insert(info.block, direction.collect()).is_some() {
            return Err(VectorsError::block(info.block, BlockProblem::Duplicate));
        }
        cursor.pad(head.alignment)?;
    }
    Steering::new(head.model, Method::from(head.method), directions)
}

/// Metadata that the reader uses.
struct GgufHeader<'b> {
    alignment: u64,
    model: &'b str,
    method: &'b str,
}

impl<'b> GgufHeader<'b> {
    fn parse(cursor: &mut GgufCursor<'b>, pairs: u64) -> Result<Self, VectorsError> {
        let mut head = GgufHeader {
            alignment: ALIGNMENT_DEFAULT.into(),
            model: "",
            method: "",
        };
        for _ in 0..pairs {
            let key = cursor.text()?;
            match (key, cursor.value()?) {
                (MODEL, GgufValue::Text(text)) => head.model = text,
                (METHOD, GgufValue::Text(text)) => head.method = text,
                (ALIGNMENT, GgufValue::U32(n)) if n.is_power_of_two() => head.alignment = n.into(),
                (ARCHITECTURE, GgufValue::Text(CONTROL_VECTOR)) => {}
                (ARCHITECTURE | MODEL | METHOD | ALIGNMENT, value) => {
                    return Err(invalid_metadata(key, &value));
                }
                _ => {}
            }
        }
        Ok(head)
    }
}

/// Returns the error for a metadata value that cannot be used.
fn invalid_metadata(key: &str, value: &GgufValue<'_>) -> VectorsError {
    let problem = match (key, value) {
        (ARCHITECTURE, GgufValue::Text(text)) => EntryProblem::Architecture {
            found: (*text).to_owned(),
            expected: CONTROL_VECTOR,
        },
        (ALIGNMENT, _) => EntryProblem::Alignment,
        _ => EntryProblem::NotText,
    };
    VectorsError::entry("metadata", key, problem)
}

/// Description of a tensor. The values follow later in the file.
struct GgufTensor {
    block: usize,
    bytes: u64,
}

impl GgufTensor {
    /// Reads the description of a tensor. The values must start at `end`, the end of the previous
    /// tensors. Advances `end` to the end of this tensor.
    fn parse(
        cursor: &mut GgufCursor<'_>,
        end: &mut u64,
        alignment: u64,
    ) -> Result<Self, VectorsError> {
        let name = cursor.text()?;
        let error = |problem| Err(VectorsError::entry("tensor", name, problem));
        let block = name.strip_prefix("direction.").and_then(parse_block);
        let Some(block) = block.filter(|&block| block > 0) else {
            return error(EntryProblem::NotADirection {
                example: "direction.1",
            });
        };
        let dimensions = cursor.u32()?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return error(EntryProblem::Dimensions {
                found: dimensions,
                limit: DIMENSIONS_MAX,
            });
        }
        let width = cursor.u64()?;
        for _ in 1..dimensions {
            let rows = cursor.u64()?;
            if rows != 1 {
                return error(EntryProblem::Shape {
                    found: vec![width, rows],
                });
            }
        }
        let (kind, offset) = (cursor.u32()?, cursor.u64()?);
        if kind != F32 {
            return error(EntryProblem::ElementType {
                found: kind.to_string(),
                expected: "0 (F32)",
            });
        }
        if offset != *end {
            return error(EntryProblem::Offset {
                found: offset,
                expected: *end,
            });
        }
        let bytes = width.saturating_mul(4);
        let next = offset
            .saturating_add(bytes)
            .checked_next_multiple_of(alignment);
        *end = next.unwrap_or(u64::MAX);
        Ok(GgufTensor { block, bytes })
    }
}

pub(crate) fn to_bytes(steering: &Steering) -> Result<Vec<u8>, VectorsError> {
    let (directions, width) = (steering.directions(), steering.width());
    if directions.contains_key(&0) {
        return Err(VectorsError::block(0, BlockProblem::NotInGguf));
    }
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((directions.len() as u64).to_le_bytes());
    out.extend(4_u64.to_le_bytes());
    put_pair(&mut out, ARCHITECTURE, CONTROL_VECTOR);
    put_pair(&mut out, MODEL, steering.model());
    put_text(&mut out, LAYERS);
    out.extend(U32.to_le_bytes());
    out.extend((directions.len() as u32).to_le_bytes());
    put_pair(&mut out, METHOD, &steering.method().to_string());
    let row_bytes = (width * 4).next_multiple_of(ALIGNMENT_DEFAULT as usize);
    for (index, block) in directions.keys().enumerate() {
        put_text(&mut out, &format!("direction.{block}"));
        out.extend(1_u32.to_le_bytes());
        out.extend((width as u64).to_le_bytes());
        out.extend(F32.to_le_bytes());
        out.extend(((index * row_bytes) as u64).to_le_bytes());
    }
    put_padding(&mut out);
    for direction in directions.values() {
        out.extend(direction.iter().flat_map(|x| x.to_le_bytes()));
        put_padding(&mut out);
    }
    Ok(out)
}

fn put_pair(out: &mut Vec<u8>, key: &str, value: &str) {
    put_text(out, key);
    out.extend(TEXT.to_le_bytes());
    put_text(out, value);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_padding(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGNMENT_DEFAULT as usize), 0);
}

#[cfg(test)]
mod tests;
