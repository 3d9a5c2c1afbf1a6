//! Stored tensors, and the segments they are grouped into.

use std::fmt;

use djinn_types::DType;

/// Index of a tensor in [`Program::tensors`](super::Program::tensors).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Name, shape and dtype of a stored tensor: a matrix, or a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape in the checkpoint: `[n]` or `[rows, cols]`.
    pub shape: Vec<usize>,
    /// Element type in the checkpoint.
    pub dtype: DType,
    /// Purpose; selects the distribution of synthetic weights.
    pub role: Role,
}

impl TensorSpec {
    /// Returns the number of rows and columns. A vector is one row.
    pub fn matrix(&self) -> (usize, usize) {
        match self.shape[..] {
            [n] => (1, n),
            [rows, cols] => (rows, cols),
            ref other => unreachable!("families declare vectors and matrices, not {other:?}"),
        }
    }

    /// Size in bytes, as stored.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bytes() as u64
    }
}

/// Purpose of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Table from which a pass gathers rows by id.
    Table,
    /// Matrix that multiplies activations.
    Matrix,
    /// Scale of a normalisation; values are near one.
    Scale,
    /// Bias; values are near zero.
    Bias,
}

/// Part of the model that a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Token table, and position table where the family has one.
    Embedding,
    /// One block without its experts.
    Block(usize),
    /// One expert of one block.
    Expert {
        /// Block number.
        block: usize,
        /// Number of the expert within the block.
        expert: usize,
    },
    /// Final norm, and the output matrix unless it is tied to the embedding.
    Head,
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

/// Group of tensors that a pass always needs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Part of the model.
    pub kind: SegmentKind,
    /// Tensors in order of use.
    pub tensors: Vec<TensorId>,
}
