//! Reader of GGUF data that never moves past the end.

use crate::error::{GgufProblem, VectorsError};

/// Numbers of metadata types.
pub(super) const U32: u32 = 4;
pub(super) const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Largest depth of nested arrays. Real files have no nested arrays.
const DEPTH_MAX: u32 = 4;

/// Position in the bytes of a GGUF file.
pub(super) struct GgufCursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// Metadata value. Values of unused types are skipped.
pub(super) enum GgufValue<'b> {
    Text(&'b str),
    U32(u32),
    Other,
}

impl<'b> GgufCursor<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        GgufCursor { bytes, at: 0 }
    }

    fn error<T>(&self, problem: GgufProblem) -> Result<T, VectorsError> {
        let at = self.at;
        Err(VectorsError::Gguf { at, problem })
    }

    /// Reads the next bytes; fails if fewer are left.
    pub(super) fn take(&mut self, length: u64) -> Result<&'b [u8], VectorsError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = usize::try_from(length).ok().and_then(|n| rest.get(..n)) else {
            let left = rest.len();
            return self.error(GgufProblem::Truncated {
                needed: length,
                left,
            });
        };
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], VectorsError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, VectorsError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, VectorsError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'b str, VectorsError> {
        let length = self.u64()?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).or_else(|_| self.error(GgufProblem::NotUtf8))
    }

    /// Skips to the next multiple of an alignment.
    pub(super) fn pad(&mut self, alignment: u64) -> Result<(), VectorsError> {
        let at = self.at as u64;
        // No overflow: files are shorter than 2^63 bytes, alignments smaller than 2^32.
        self.take(at.next_multiple_of(alignment) - at).map(drop)
    }

    /// Reads a metadata value and its type.
    pub(super) fn value(&mut self) -> Result<GgufValue<'b>, VectorsError> {
        match self.u32()? {
            TEXT => self.text().map(GgufValue::Text),
            U32 => self.u32().map(GgufValue::U32),
            kind => self.skip(kind, 1, DEPTH_MAX).map(|()| GgufValue::Other),
        }
    }

    /// Skips values. Every value takes at least one byte, so an excessive count fails at the end of
    /// the file.
    fn skip(&mut self, kind: u32, count: u64, depth: u32) -> Result<(), VectorsError> {
        if let Some(bytes) = fixed_bytes(kind) {
            return self.take(count.saturating_mul(bytes)).map(drop);
        }
        for _ in 0..count {
            match kind {
                TEXT => self.text().map(drop)?,
                ARRAY if depth > 0 => {
                    let (kind, count) = (self.u32()?, self.u64()?);
                    self.skip(kind, count, depth - 1)?;
                }
                ARRAY => return self.error(GgufProblem::TooDeep),
                _ => return self.error(GgufProblem::UnknownType { found: kind }),
            }
        }
        Ok(())
    }
}

/// Returns the size of a metadata value in bytes, if all values of the type have the same size.
fn fixed_bytes(kind: u32) -> Option<u64> {
    match kind {
        // u8, i8, bool
        0 | 1 | 7 => Some(1),
        // u16, i16
        2 | 3 => Some(2),
        // u32, i32, f32
        4..=6 => Some(4),
        // u64, i64, f64
        10..=12 => Some(8),
        _ => None,
    }
}
