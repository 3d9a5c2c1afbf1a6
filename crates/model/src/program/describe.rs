//! Summaries of a program for users: bytes by dtype and by segment.

use std::collections::BTreeMap;

use djinn_types::DType;

use super::Program;
use super::tensor::SegmentKind;

/// Share of a model that is stored in one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DTypeShare {
    /// Element type.
    pub dtype: DType,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of parameters in these tensors.
    pub parameters: u64,
    /// Size of these tensors in bytes.
    pub bytes: u64,
}

/// Size of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShare {
    /// Part of the model.
    pub kind: SegmentKind,
    /// Number of tensors.
    pub tensors: usize,
    /// Size of these tensors in bytes.
    pub bytes: u64,
}

impl Program {
    /// Returns the share of every dtype in use, largest first.
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

    /// Returns the size of every segment, in order of use.
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
