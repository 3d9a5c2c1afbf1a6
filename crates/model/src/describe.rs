//! What there is to say of a model before it runs.

use std::collections::BTreeMap;
use std::fmt;

use djinn_types::DType;

use crate::program::{Program, SegmentKind};

/// How much of a model is stored in one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DTypeShare {
    /// Which.
    pub dtype: DType,
    /// Tensors.
    pub tensors: usize,
    /// Numbers in them.
    pub parameters: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One segment's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShare {
    /// Which.
    pub kind: SegmentKind,
    /// Tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentKind::Embedding => f.write_str("embedding"),
            SegmentKind::Block(block) => write!(f, "block {block}"),
            SegmentKind::Expert { block, expert } => write!(f, "block {block} expert {expert}"),
            SegmentKind::Head => f.write_str("head"),
        }
    }
}

impl Program {
    /// Every dtype in use, the most bytes first.
    pub fn dtypes(&self) -> Vec<DTypeShare> {
        let mut shares: BTreeMap<String, DTypeShare> = BTreeMap::new();
        for tensor in &self.tensors {
            let share = shares
                .entry(tensor.dtype.to_string())
                .or_insert(DTypeShare {
                    dtype: tensor.dtype,
                    tensors: 0,
                    parameters: 0,
                    bytes: 0,
                });
            share.tensors += 1;
            share.parameters += tensor.bytes() / tensor.dtype.bytes() as u64;
            share.bytes += tensor.bytes();
        }
        let mut shares: Vec<DTypeShare> = shares.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }

    /// Every segment with its size, in order of use.
    pub fn segment_shares(&self) -> Vec<SegmentShare> {
        self.segments
            .iter()
            .map(|segment| SegmentShare {
                kind: segment.kind,
                tensors: segment.tensors.len(),
                bytes: self.segment_bytes(segment),
            })
            .collect()
    }
}
