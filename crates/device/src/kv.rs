//! Where the keys and values of a layer lie, and which rows look at them.

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
    /// Pages there are.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Heads of keys and of values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub d_head: usize,
    /// How they are stored.
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

/// Whose rows these are. All views are i32 and lie in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// `[rows, 1]`: position of each row in its session.
    pub positions: View,
    /// `[rows, 1]`: which row of `tables` is this session's.
    pub sequences: View,
    /// `[sessions, pages_max]`: a session's pages in order of position.
    pub tables: View,
    /// What they are, all of them. Those of a prompt are in order: session by session,
    /// and within one position by position.
    pub phase: Phase,
}

impl Rows {
    /// The same for some of the rows.
    pub fn rows(self, first: usize, count: usize) -> Self {
        Rows {
            positions: self.positions.rows(first, count),
            sequences: self.sequences.rows(first, count),
            ..self
        }
    }
}

/// How a row attends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads; a multiple of the key-value heads.
    pub heads: usize,
    /// Applied to the scores.
    pub scale: f32,
    /// A row sees at most this many keys, itself included.
    pub window: Option<usize>,
}
