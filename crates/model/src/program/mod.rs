//! A model as data: its tensors, grouped into segments, and the operations of a pass in order.
//!
//! A family builds a [`Program`] from a checkpoint's configuration, and the engine interprets it.
//! Family and engine do not depend on each other: a new family is one new file in `families/` and
//! no change to the engine. [`fuse()`] finds runs of operations that a device can do in one call.

pub(crate) mod builder;
mod describe;
mod dims;
mod fuse;
pub mod hook;
mod liveness;
mod op;
mod site;
mod tensor;

use djinn_types::DType;

pub use describe::{DTypeShare, SegmentShare};
pub use dims::{Dims, Rope};
pub use fuse::{FusedOp, FusedProjection, Fusion, Fusions, WeightResidency, fuse};
pub use liveness::StopPoint;
pub use op::{Buf, Expert, Op};
pub use site::{Site, SiteLayout};
pub use tensor::{Role, Segment, SegmentKind, TensorId, TensorSpec};

/// A complete model: the stored tensors, and the operations of a pass over them.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Name of the family, such as `llama` or `gpt2`.
    pub family: &'static str,
    /// Sizes of the model.
    pub dims: Dims,
    /// Rotary embedding, in families that have one.
    pub rope: Option<Rope>,
    /// Every tensor that a pass reads.
    pub tensors: Vec<TensorSpec>,
    /// Segments in order of use. Every tensor belongs to exactly one segment.
    pub segments: Vec<Segment>,
    /// Operations from token ids to the first residual.
    pub embed: Vec<Op>,
    /// Operations of each block.
    pub blocks: Vec<Vec<Op>>,
    /// Operations from the last residual to logits.
    pub head: Vec<Op>,
}

impl Program {
    /// Returns the description of a tensor.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }

    /// Returns all operations in order.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.steps().map(|(_, op)| op)
    }

    /// Returns all operations in order, each with the segment it belongs to.
    pub fn steps(&self) -> impl Iterator<Item = (SegmentKind, &Op)> {
        fn of(kind: SegmentKind, ops: &[Op]) -> impl Iterator<Item = (SegmentKind, &Op)> {
            ops.iter().map(move |op| (kind, op))
        }
        let blocks = self.blocks.iter().enumerate();
        of(SegmentKind::Embedding, &self.embed)
            .chain(blocks.flat_map(|(block, ops)| of(SegmentKind::Block(block), ops)))
            .chain(of(SegmentKind::Head, &self.head))
    }

    /// Returns the index of the head's first operation in [`Program::steps`].
    pub fn first_of_head(&self) -> usize {
        self.embed.len() + self.blocks.iter().map(Vec::len).sum::<usize>()
    }

    /// Returns the size of a segment in bytes, as stored.
    pub fn segment_bytes(&self, segment: &Segment) -> u64 {
        segment
            .tensors
            .iter()
            .map(|&t| self.tensor(t).bytes())
            .sum()
    }

    /// Returns the size of all weights in bytes, as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorSpec::bytes).sum()
    }

    /// Returns the number of stored parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors
            .iter()
            .map(|t| t.shape.iter().product::<usize>() as u64)
            .sum()
    }

    /// Returns the size of one token's keys and values in bytes, over all blocks.
    pub fn kv_bytes_per_token(&self, dtype: DType) -> u64 {
        let d = &self.dims;
        2 * (d.blocks * d.kv_heads * d.d_head * dtype.bytes()) as u64
    }

    /// Returns the number of columns of a buffer; 0 if the program does not use the buffer.
    pub fn width(&self, buf: Buf) -> usize {
        let d = &self.dims;
        match buf {
            Buf::Resid | Buf::Norm | Buf::AttnOut | Buf::MlpOut | Buf::Final => d.d_model,
            Buf::NormMlp if self.writes(buf) => d.d_model,
            Buf::Q | Buf::Z => d.heads * d.d_head,
            Buf::K | Buf::V => d.kv_heads * d.d_head,
            Buf::Fused if self.writes(buf) => (d.heads + 2 * d.kv_heads) * d.d_head,
            Buf::Pre | Buf::Post => d.d_mlp,
            Buf::Up if self.writes(buf) || d.experts > 0 => d.d_mlp,
            Buf::Router => d.experts,
            Buf::Logits => d.vocab,
            Buf::NormMlp | Buf::Fused | Buf::Up => 0,
        }
    }

    /// Returns whether a block writes `buf`. All blocks of a model have the same operations.
    fn writes(&self, buf: Buf) -> bool {
        self.blocks
            .first()
            .into_iter()
            .flatten()
            .any(|op| matches!(op, Op::Norm { to, .. } | Op::Linear { to, .. } if *to == buf))
    }

    /// Returns every hook of this model, in order of the pass.
    pub fn hooks(&self) -> Vec<Site> {
        self.ops()
            .filter_map(|op| match *op {
                Op::Hook { site, .. } => Some(site),
                Op::Attend { block, .. } => Some(Site::Pattern(block)),
                _ => None,
            })
            .collect()
    }
}
