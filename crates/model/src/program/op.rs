//! Operations of a pass, and the activation buffers they read and write.

use djinn_types::{Activation, NormKind, Order};

use super::site::Site;
use super::tensor::TensorId;

/// Activation buffer: a matrix `[rows of the pass, width]` of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buf {
    /// Residual stream.
    Resid,
    /// Normed residual: the input of attention, and of the MLP in most families.
    Norm,
    /// Input of the MLP in families that give the MLP a norm of its own.
    NormMlp,
    /// Queries, keys and values, projected by one matrix.
    Fused,
    /// Queries, `[heads · d_head]`.
    Q,
    /// Keys, `[kv_heads · d_head]`.
    K,
    /// Values, `[kv_heads · d_head]`.
    V,
    /// Output of attention before its projection, `[heads · d_head]`.
    Z,
    /// Output of attention, added to the residual.
    AttnOut,
    /// Hidden layer of the MLP before its activation; the gate of a gated MLP.
    Pre,
    /// Second factor of a gated MLP.
    Up,
    /// Hidden layer of the MLP after its activation.
    Post,
    /// Output of the MLP, added to the residual.
    MlpOut,
    /// Router logits, `[experts]`.
    Router,
    /// Output of the final norm.
    Final,
    /// Logits, `[vocabulary]`; computed only for rows that need them.
    Logits,
}

/// Weight matrices of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expert {
    /// Gate matrix, `[d_mlp, d_model]`. Its product is the input of the activation.
    pub gate: TensorId,
    /// Up matrix, `[d_mlp, d_model]`. Its product multiplies the activated gate.
    pub up: TensorId,
    /// Down matrix, `[d_model, d_mlp]`. It projects back to the residual's width.
    pub down: TensorId,
}

/// One operation of a pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Token embedding: `to = table[token]`.
    Embed {
        /// Token table, `[vocabulary, d_model]`.
        table: TensorId,
        /// Output buffer.
        to: Buf,
    },
    /// Position embedding: `to += table[position]`.
    EmbedPositions {
        /// Position table, `[context, d_model]`.
        table: TensorId,
        /// Buffer that holds the sum.
        to: Buf,
    },
    /// Normalisation of groups of `width` elements: of whole rows, or of each head.
    Norm {
        /// Kind of normalisation.
        kind: NormKind,
        /// Constant added to the variance under the root.
        eps: f32,
        /// Number of elements normalised together.
        width: usize,
        /// Scale vector.
        weight: TensorId,
        /// Bias vector.
        bias: Option<TensorId>,
        /// Input buffer.
        from: Buf,
        /// Output buffer; may be the input buffer.
        to: Buf,
    },
    /// Matrix product: `to = from · Wᵀ + bias`.
    Linear {
        /// Weight matrix.
        weight: TensorId,
        /// Storage order of the matrix.
        order: Order,
        /// Bias vector, added to every row.
        bias: Option<TensorId>,
        /// Input buffer.
        from: Buf,
        /// Output buffer.
        to: Buf,
    },
    /// Copy of one column group out of a fused projection:
    /// `to[g·width + c] = from[first + g·stride + c]` for every group `g` and `c < width`.
    Split {
        /// Input buffer.
        from: Buf,
        /// First column of group 0.
        first: usize,
        /// Distance between groups, in columns.
        stride: usize,
        /// Number of columns in a group.
        width: usize,
        /// Output buffer.
        to: Buf,
    },
    /// Rotary embedding of every head of a buffer, in place.
    Rope {
        /// Buffer to rotate: `Q` or `K`.
        buf: Buf,
    },
    /// Attention: appends `K` and `V` to the session's KV cache, attends from `Q`, writes `Z`.
    Attend {
        /// Number of the block that owns the KV cache.
        block: usize,
        /// Factor on the scores.
        scale: f32,
        /// Sliding window: largest number of keys a row sees, its own included.
        window: Option<usize>,
    },
    /// Activation: `to = f(from)`.
    Activate {
        /// Activation function.
        f: Activation,
        /// Input buffer.
        from: Buf,
        /// Output buffer.
        to: Buf,
    },
    /// Gated activation: `to = f(gate) · up`.
    Gate {
        /// Activation function.
        f: Activation,
        /// Buffer that goes through the activation.
        gate: Buf,
        /// Buffer that multiplies the activated gate.
        up: Buf,
        /// Output buffer.
        to: Buf,
    },
    /// Sum: `to += from`.
    Add {
        /// Input buffer.
        from: Buf,
        /// Buffer that holds the sum.
        to: Buf,
    },
    /// Mixture of experts: `to = Σ weight · expert(from)` over the experts that the router
    /// selects for a row.
    Experts {
        /// Block number.
        block: usize,
        /// Input buffer of the experts.
        from: Buf,
        /// Buffer with the router's logits.
        router: Buf,
        /// Output buffer.
        to: Buf,
        /// Number of experts selected for a row.
        chosen: usize,
        /// Whether the weights of the selected experts are scaled to sum to one.
        renormalise: bool,
        /// Activation function of the gate.
        f: Activation,
        /// All experts of the block, in order.
        experts: Vec<Expert>,
    },
    /// Hook: a named point at which captures read `buf` and edits change it.
    Hook {
        /// Name of the hook.
        site: Site,
        /// Buffer at this point.
        buf: Buf,
    },
}

impl Op {
    /// Returns the buffers that the operation reads, and the buffer that it overwrites
    /// completely. A buffer that the operation changes in place counts as read.
    pub(crate) fn buffers(&self) -> (Vec<Buf>, Option<Buf>) {
        match *self {
            Op::Embed { to, .. } => (vec![], Some(to)),
            Op::EmbedPositions { to, .. } => (vec![to], None),
            Op::Norm { from, to, .. }
            | Op::Linear { from, to, .. }
            | Op::Split { from, to, .. }
            | Op::Activate { from, to, .. } => (vec![from], Some(to)),
            Op::Rope { buf } => (vec![buf], None),
            Op::Attend { .. } => (vec![Buf::Q, Buf::K, Buf::V], Some(Buf::Z)),
            Op::Gate { gate, up, to, .. } => (vec![gate, up], Some(to)),
            Op::Add { from, to } => (vec![from, to], None),
            Op::Experts {
                from, router, to, ..
            } => (vec![from, router], Some(to)),
            Op::Hook { .. } => (vec![], None),
        }
    }
}
