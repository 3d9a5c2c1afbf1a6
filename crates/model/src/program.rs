//! A model as data: its tensors, grouped into segments, and the operations of a
//! pass in order.
//!
//! A family builds a [`Program`] from a checkpoint's configuration; the engine
//! walks it. Neither knows the other: adding a family adds one file here, and
//! nothing in the engine.

use djinn_types::{Activation, DType, NormKind, Order, RopeStyle};

use crate::hook::Site;

/// An index into [`Program::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// A stored tensor: a matrix, or a vector as a matrix of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its shape there: `[n]` or `[rows, cols]`.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub dtype: DType,
    /// What it is for; synthetic weights are drawn accordingly.
    pub role: Role,
}

impl TensorSpec {
    /// Rows and columns; a vector is one row.
    pub fn matrix(&self) -> (usize, usize) {
        match self.shape[..] {
            [n] => (1, n),
            [rows, cols] => (rows, cols),
            ref other => unreachable!("families declare vectors and matrices, not {other:?}"),
        }
    }

    /// Bytes as stored.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bytes() as u64
    }
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A table of rows, gathered by id.
    Table,
    /// A matrix that multiplies activations.
    Matrix,
    /// The scale of a normalisation: about one.
    Scale,
    /// Something added: about zero.
    Bias,
}

/// Which piece of the model a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Token (and position) tables.
    Embedding,
    /// One block, without its experts.
    Block(usize),
    /// One expert of one block.
    Expert {
        /// Of which block.
        block: usize,
        /// Which one.
        expert: usize,
    },
    /// Final norm and, unless tied, the output matrix.
    Head,
}

/// A piece of the weights that is always needed together, in order of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which piece.
    pub kind: SegmentKind,
    /// Its tensors, in order of use.
    pub tensors: Vec<TensorId>,
}

/// An activation buffer: `[rows of the pass, width]`, f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buf {
    /// The residual stream.
    Resid,
    /// What attention reads: the normed residual.
    Norm,
    /// What the MLP reads where it has a norm of its own beside attention's.
    NormMlp,
    /// A projection of queries, keys and values in one matrix.
    Fused,
    /// Queries, `[heads · d_head]`.
    Q,
    /// Keys, `[kv_heads · d_head]`.
    K,
    /// Values, `[kv_heads · d_head]`.
    V,
    /// Mixed values, `[heads · d_head]`.
    Z,
    /// What attention adds to the residual.
    AttnOut,
    /// The MLP before its activation; of a gated MLP, the gate.
    Pre,
    /// The other half of a gated MLP.
    Up,
    /// The MLP after its activation.
    Post,
    /// What the MLP adds to the residual.
    MlpOut,
    /// Router logits, `[experts]`.
    Router,
    /// The final norm's output.
    Final,
    /// `[vocabulary]`; only for rows whose logits are wanted.
    Logits,
}

/// One expert's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expert {
    /// `[d_mlp, d_model]`, through the activation.
    pub gate: TensorId,
    /// `[d_mlp, d_model]`.
    pub up: TensorId,
    /// `[d_model, d_mlp]`.
    pub down: TensorId,
}

/// One step of a pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `to = table[token]`
    Embed {
        /// `[vocabulary, d_model]`
        table: TensorId,
        /// Usually the residual.
        to: Buf,
    },
    /// `to += table[position]`
    EmbedPositions {
        /// `[context, d_model]`
        table: TensorId,
        /// Usually the residual.
        to: Buf,
    },
    /// Normalises rows of `width`; narrower than the buffer, each head by itself.
    Norm {
        /// Which.
        kind: NormKind,
        /// Added under the root.
        eps: f32,
        /// Elements normalised together.
        width: usize,
        /// Scale.
        weight: TensorId,
        /// Shift.
        bias: Option<TensorId>,
        /// Read.
        from: Buf,
        /// Written; may be `from`.
        to: Buf,
    },
    /// `to = from · Wᵀ + bias`
    Linear {
        /// The matrix.
        weight: TensorId,
        /// Which way round it is stored.
        order: Order,
        /// Added to every row.
        bias: Option<TensorId>,
        /// Read.
        from: Buf,
        /// Written.
        to: Buf,
    },
    /// Takes one column group out of a fused projection, as `Device::split` does.
    Split {
        /// Read.
        from: Buf,
        /// First column of group 0.
        first: usize,
        /// Columns from group to group.
        stride: usize,
        /// Columns of a group.
        width: usize,
        /// Written.
        to: Buf,
    },
    /// Rotates the heads of a buffer in place by the pass's table.
    Rope {
        /// `Q` or `K`.
        buf: Buf,
    },
    /// Stores `K` and `V` in the session's pages, attends from `Q`, writes `Z`.
    Attend {
        /// Which block's pages.
        block: usize,
        /// Applied to scores.
        scale: f32,
        /// At most this many keys, the row itself included.
        window: Option<usize>,
    },
    /// `to = f(from)`
    Activate {
        /// Which function.
        f: Activation,
        /// Read.
        from: Buf,
        /// Written.
        to: Buf,
    },
    /// `to = f(gate) · up`
    Gate {
        /// Which function.
        f: Activation,
        /// Through the function.
        gate: Buf,
        /// Times this.
        up: Buf,
        /// Written.
        to: Buf,
    },
    /// `to += from`
    Add {
        /// Read.
        from: Buf,
        /// Changed.
        to: Buf,
    },
    /// `to = Σ weight · expert(from)` over the experts the router chose for a row.
    Experts {
        /// Which block's.
        block: usize,
        /// Read by the experts.
        from: Buf,
        /// Router logits.
        router: Buf,
        /// Written.
        to: Buf,
        /// Experts a row goes through.
        chosen: usize,
        /// Whether their weights are made to sum to one.
        renormalise: bool,
        /// Activation of the gate.
        f: Activation,
        /// All of them, in order.
        experts: Vec<Expert>,
    },
    /// A named point: here captures read `buf`, and edits change it.
    Hook {
        /// Its name.
        site: Site,
        /// What is there.
        buf: Buf,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which elements go together.
    pub style: RopeStyle,
    /// One frequency for every rotated pair; twice as many elements are rotated.
    pub frequencies: Vec<f32>,
    /// Applied to cosines and sines (YaRN); 1 elsewhere.
    pub scale: f32,
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Blocks.
    pub blocks: usize,
    /// Width of the residual.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub d_head: usize,
    /// Width of the MLP.
    pub d_mlp: usize,
    /// Tokens.
    pub vocab: usize,
    /// Positions.
    pub context: usize,
    /// Experts of a block; 0 without.
    pub experts: usize,
}

/// A whole model: what is stored, and what a pass does with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The family's name: `llama`, `gpt2`.
    pub family: &'static str,
    /// Sizes.
    pub dims: Dims,
    /// Rotary embedding, where the family has one.
    pub rope: Option<Rope>,
    /// Every tensor a pass reads.
    pub tensors: Vec<TensorSpec>,
    /// The same, in pieces, in order of use. Each tensor lies in one segment.
    pub segments: Vec<Segment>,
    /// From token ids to the first residual.
    pub embed: Vec<Op>,
    /// Each block.
    pub blocks: Vec<Vec<Op>>,
    /// From the last residual to logits.
    pub head: Vec<Op>,
}

impl Program {
    /// A tensor.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }

    /// All operations in order.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.steps().map(|(_, op)| op)
    }

    /// The same, each with the segment it is of.
    pub fn steps(&self) -> impl Iterator<Item = (SegmentKind, &Op)> {
        fn of(kind: SegmentKind, ops: &[Op]) -> impl Iterator<Item = (SegmentKind, &Op)> {
            ops.iter().map(move |op| (kind, op))
        }
        let blocks = self.blocks.iter().enumerate();
        of(SegmentKind::Embedding, &self.embed)
            .chain(blocks.flat_map(|(block, ops)| of(SegmentKind::Block(block), ops)))
            .chain(of(SegmentKind::Head, &self.head))
    }

    /// The first operation of the head, by its place in [`Program::steps`].
    pub fn first_of_head(&self) -> usize {
        self.embed.len() + self.blocks.iter().map(Vec::len).sum::<usize>()
    }

    /// Bytes of a segment as stored.
    pub fn segment_bytes(&self, segment: &Segment) -> u64 {
        segment
            .tensors
            .iter()
            .map(|&t| self.tensor(t).bytes())
            .sum()
    }

    /// Bytes of all weights as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorSpec::bytes).sum()
    }

    /// Number of stored parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors
            .iter()
            .map(|t| t.shape.iter().product::<usize>() as u64)
            .sum()
    }

    /// Bytes of keys and values one token takes.
    pub fn kv_bytes_per_token(&self, dtype: DType) -> u64 {
        let d = &self.dims;
        2 * (d.blocks * d.kv_heads * d.d_head * dtype.bytes()) as u64
    }

    /// Columns of a buffer; 0 where the program does not use it.
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

    /// Whether a block writes `buf`; all blocks are alike.
    fn writes(&self, buf: Buf) -> bool {
        self.blocks
            .first()
            .into_iter()
            .flatten()
            .any(|op| matches!(op, Op::Norm { to, .. } | Op::Linear { to, .. } if *to == buf))
    }

    /// Every hook of this model, in order of the pass.
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
