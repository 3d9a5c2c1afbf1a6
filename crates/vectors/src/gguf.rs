//! Vectors as GGUF, the way llama.cpp has its control vectors.
//!
//! The bytes of the file, all numbers little-endian, `text` a length u64 and its bytes:
//!
//! ```text
//! "GGUF"  version u32  tensors u64  pairs u64
//! for each pair: key text  type u32  value
//! for each tensor: name text  dimensions u32  each of them u64  type u32  offset u64
//! padding, then the numbers of each tensor with padding behind them
//! ```
//!
//! `direction.N` is added to the output of llama.cpp's layer N, counted from 0: it belongs to
//! block N. Yet N is at least 1, for llama.cpp never steers its layer 0. It reads no metadata
//! but the alignment, and wants tensors in the order of their offsets, without gaps and with
//! the padding behind the last: so they cannot overlap, and take no more memory than the file.

mod cursor;

use std::collections::BTreeMap;

use self::cursor::{Cursor, TEXT, U32, Value};
use crate::files::number;
use crate::{Method, Steering, VectorsError};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;

const ARCHITECTURE: &str = "general.architecture";
const CONTROL_VECTOR: &str = "controlvector";
const ALIGNMENT: &str = "general.alignment";
const MODEL: &str = "controlvector.model_hint";
const LAYERS: &str = "controlvector.layer_count";
/// Ours: others pass over it.
const METHOD: &str = "djinn.method";

/// Where numbers begin at multiples of, unless the file says otherwise.
const ALIGNMENT_DEFAULT: u32 = 32;
/// The type of a tensor's numbers.
const F32: u32 = 0;
const DIMENSIONS_MAX: u32 = 4;

pub(crate) fn parse(bytes: &[u8]) -> Result<Steering, VectorsError> {
    let mut cursor = Cursor::new(bytes);
    cursor.take(MAGIC.len() as u64)?;
    let version = cursor.u32()?;
    if version != 2 && version != VERSION {
        return Err(VectorsError::Gguf {
            at: MAGIC.len(),
            reason: format!("version {version:#x}: Djinn reads 2 and 3, little-endian"),
        });
    }
    let (tensors, pairs) = (cursor.u64()?, cursor.u64()?);
    let head = Head::parse(&mut cursor, pairs)?;
    let mut infos = Vec::new();
    let mut end = 0;
    for _ in 0..tensors {
        infos.push(Info::parse(&mut cursor, &mut end, head.alignment)?);
    }
    cursor.pad(head.alignment)?;
    let mut directions = BTreeMap::new();
    for info in infos {
        let (numbers, _) = cursor.take(info.bytes)?.as_chunks();
        let direction = numbers.iter().map(|&bytes| f32::from_le_bytes(bytes));
        if directions.insert(info.block, direction.collect()).is_some() {
            return Err(VectorsError::block(info.block, "has two directions"));
        }
        cursor.pad(head.alignment)?;
    }
    Steering::new(head.model, Method::from(head.method), directions)
}

/// The metadata that matters.
struct Head<'b> {
    alignment: u64,
    model: &'b str,
    method: &'b str,
}

impl<'b> Head<'b> {
    fn parse(cursor: &mut Cursor<'b>, pairs: u64) -> Result<Self, VectorsError> {
        let mut head = Head {
            alignment: ALIGNMENT_DEFAULT.into(),
            model: "",
            method: "",
        };
        for _ in 0..pairs {
            let key = cursor.text()?;
            match (key, cursor.value()?) {
                (MODEL, Value::Text(text)) => head.model = text,
                (METHOD, Value::Text(text)) => head.method = text,
                (ALIGNMENT, Value::U32(n)) if n.is_power_of_two() => head.alignment = n.into(),
                (ARCHITECTURE, Value::Text(CONTROL_VECTOR)) => {}
                (ARCHITECTURE | MODEL | METHOD | ALIGNMENT, value) => {
                    return Err(unfit(key, &value));
                }
                _ => {}
            }
        }
        Ok(head)
    }
}

fn unfit(key: &str, value: &Value<'_>) -> VectorsError {
    let reason = match (key, value) {
        (ARCHITECTURE, Value::Text(text)) => format!("is '{text}', not a control vector's"),
        (ALIGNMENT, _) => "is not a power of two, of type u32".to_owned(),
        _ => "is not text".to_owned(),
    };
    VectorsError::entry("metadata", key, reason)
}

/// A tensor whose numbers come later.
struct Info {
    block: usize,
    bytes: u64,
}

impl Info {
    /// Reads one whose numbers must lie at `end` of those before, and moves that to its own.
    fn parse(cursor: &mut Cursor<'_>, end: &mut u64, alignment: u64) -> Result<Self, VectorsError> {
        let name = cursor.text()?;
        let error = |reason: String| Err(VectorsError::entry("tensor", name, reason));
        let block = name.strip_prefix("direction.").and_then(number);
        let Some(block) = block.filter(|&block| block > 0) else {
            return error("is no direction: they are direction.1, direction.2 and on".to_owned());
        };
        let dimensions = cursor.u32()?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return error(format!("has {dimensions} dimensions, not one"));
        }
        let width = cursor.u64()?;
        for _ in 1..dimensions {
            let rows = cursor.u64()?;
            if rows != 1 {
                return error(format!("has {rows} rows, not one"));
            }
        }
        let (kind, offset) = (cursor.u32()?, cursor.u64()?);
        if kind != F32 {
            return error(format!("is of type {kind}, not of F32, which is {F32}"));
        }
        if offset != *end {
            return error(format!(
                "lies at {offset}, and those before it end at {end}"
            ));
        }
        let bytes = width.saturating_mul(4);
        let next = offset
            .saturating_add(bytes)
            .checked_next_multiple_of(alignment);
        *end = next.unwrap_or(u64::MAX);
        Ok(Info { block, bytes })
    }
}

pub(crate) fn to_bytes(steering: &Steering) -> Result<Vec<u8>, VectorsError> {
    let (directions, width) = (steering.directions(), steering.width());
    if directions.contains_key(&0) {
        let reason = "has no place in GGUF, llama.cpp never steers its layer 0: leave it out, or \
                      write .safetensors";
        return Err(VectorsError::block(0, reason));
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
    for (place, block) in directions.keys().enumerate() {
        put_text(&mut out, &format!("direction.{block}"));
        out.extend(1_u32.to_le_bytes());
        out.extend((width as u64).to_le_bytes());
        out.extend(F32.to_le_bytes());
        out.extend(((place * row_bytes) as u64).to_le_bytes());
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
