//! Layout of a layer's keys and values, and the rows that attend to them.

use crate::{Phase, View};
use djinn_types::DType;

/// One layer's slice of the KV pages.
///
/// A page holds all layers of `page_tokens` tokens of one session; within a page a
/// layer holds its keys `[kv_head, token, d_head]` and then its values, laid out
/// alike. Page `p` of this layer starts at `offset + p · page_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Byte offset in the slab of this layer's keys in page 0.
    pub offset: u64,
    /// Bytes from one page to the next.
    pub page_bytes: u64,
    /// Number of pages.
    pub pages: usize,
    /// Number of tokens of a page.
    pub page_tokens: usize,
    /// Number of key-value heads.
    pub kv_heads: usize,
    /// Number of elements of a head.
    pub d_head: usize,
    /// Element type of keys and values.
    pub dtype: DType,
}

impl KvLayer {
    /// Bytes of one layer's keys and values in one page.
    pub fn layer_bytes(&self) -> u64 {
        self.half_bytes().saturating_mul(2)
    }

    /// Bytes of one layer's keys in one page.
    pub fn half_bytes(&self) -> u64 {
        let sizes = [self.page_tokens, self.d_head, self.dtype.bytes()];
        let heads = self.kv_heads as u64;
        sizes
            .iter()
            .fold(heads, |n, &size| n.saturating_mul(size as u64))
    }
}

/// Positions and sessions of the rows of an attention. All views are i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// `[rows, 1]`: position of each row in its session.
    pub positions: View,
    /// `[rows, 1]`: row of `tables` that belongs to each row's session.
    pub sequences: View,
    /// `[sessions, pages_max]`: pages of each session in order of position (block table).
    pub tables: View,
    /// Phase of all rows. Rows of prompts are sorted by session and then by position.
    pub phase: Phase,
}

impl Rows {
    /// Returns a range of the rows.
    pub fn rows(self, first: usize, count: usize) -> Self {
        Rows {
            positions: self.positions.rows(first, count),
            sequences: self.sequences.rows(first, count),
            ..self
        }
    }
}

/// Parameters of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Number of query heads, a multiple of the key-value heads.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Largest number of keys that a row sees, including its own; `None` for no limit.
    pub window: Option<usize>,
}
