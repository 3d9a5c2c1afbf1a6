//! Operations on views of the slab.

use djinn_types::Activation;

use crate::{
    Attention, Edit, KvLayer, NormParams, Phase, Projection, Qkv, Reduction, Result, Rotation,
    Rows, View, Weight,
};

/// Lookups of rows, and copies of columns.
pub trait LookupOps: Send + Sync {
    /// Gathers rows of a table: `out[r] = table[ids[r]]`, or `out[r] += table[ids[r]]` if
    /// `accumulate`. `table` may have any dtype; `ids` is i32 `[rows, 1]`.
    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()>;
    /// Adds weighted rows: `out[ids[r]] += weights[r] * src[r]`, in order of `r`. Ids are distinct.
    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()>;
    /// Copies one column group out of an interleaved projection:
    /// `out[r, g·width + c] = x[r, first + g·stride + c]` for every group `g` of
    /// `out.cols / width` and every `c < width`.
    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()>;
}

/// Norms, activations and sums.
pub trait ElementwiseOps: Send + Sync {
    /// Normalises each row of `x`. `out` may be `x`.
    fn norm(&self, params: NormParams, x: View, out: View) -> Result<()>;
    /// Applies an activation: `out = f(x)`. `out` may be `x`.
    fn activate(&self, f: Activation, x: View, out: View) -> Result<()>;
    /// Applies a gated activation: `out = f(gate) · up`. `out` may be `gate`.
    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()>;
    /// Adds a matrix: `out += x`.
    fn add(&self, x: View, out: View) -> Result<()>;
}

/// Choices among the elements of rows: experts and tokens.
pub trait ChoiceOps: Send + Sync {
    /// Chooses the `k` largest router logits of each row after softmax, renormalised on
    /// request: ids i32 `[rows, k]` in ascending order and weights f32 `[rows, k]`. Of equal
    /// logits the lower id wins.
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()>;
    /// Samples one element of each row as its [`Draw`](crate::Draw) says: i32 `[rows, 1]`,
    /// −1 if the row contains NaN. `draws` is i32 with
    /// [`Draw::WORDS`](crate::Draw::WORDS) columns.
    fn sample(&self, x: View, draws: View, ids: View) -> Result<()>;
}

/// Operations of probes: edits and reductions of activations.
pub trait ProbeOps: Send + Sync {
    /// Changes `x` in place.
    fn edit(&self, x: View, edit: Edit) -> Result<()>;
    /// Reduces the rows of `x` into `out`. The [`Reduction`] defines the shape of `out`.
    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()>;
}

/// Matrix products.
pub trait ProductOps: Send + Sync {
    /// Multiplies with a weight: `out = x · Wᵀ (+ bias)`. `x` is `[rows, in]`, `out` is `[rows,
    /// out]`.
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        phase: Phase,
    ) -> Result<()>;
    /// Prepares products with a weight of this shape and order before the first one runs,
    /// for example by choosing and loading its kernel.
    fn warm_up(&self, _weight: Weight) -> Result<()> {
        Ok(())
    }
}

/// Rotary positions.
pub trait RopeOps: Send + Sync {
    /// Computes cosines and sines: `out[r] = [cos(p·f) · scale, sin(p·f) · scale]` for `p =
    /// positions[r]` and each of the `n` frequencies `f`. `out` is `[rows, 2n]`, cosines first.
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()>;
    /// Rotates the first `2n` elements of every head of `x` (`[rows, heads · d_head]`) in
    /// place by the table's row.
    fn rope(&self, x: View, rotation: Rotation) -> Result<()>;
}

/// Attention over KV pages.
pub trait AttentionOps: Send + Sync {
    /// Writes the key and value of each row into its session's page.
    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()>;
    /// Computes causal attention of each row over its session's pages: the same as
    /// [`AttentionOps::pattern`] and then [`AttentionOps::mix`], without the pattern in memory. A
    /// CPU gives the same bits either way. A card rounds the probabilities at another step.
    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()>;
    /// Computes the attention pattern: `out` is `[rows · heads, keys]`, row `r · heads + h`.
    /// Keys that a row does not see are zero.
    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()>;
    /// Mixes the values by a pattern in the layout of [`AttentionOps::pattern`].
    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()>;
}

/// Sequences of operations that a device may run as one.
///
/// A fused operation gives the bits of its plain operations in order, which is also the default
/// implementation. A device overrides the default where one launch does the work of several. The
/// override decides by dtype, phase and shape.
pub trait FusedOps: ElementwiseOps + ProductOps + RopeOps + AttentionOps {
    /// Products of the same inputs with several matrices, or with pieces of matrices.
    fn linear_group(&self, x: View, parts: &[Projection], phase: Phase) -> Result<()> {
        parts
            .iter()
            .try_for_each(|part| self.linear(x, part.weight, part.bias, part.out, phase))
    }

    /// Two products of the same inputs, then `out = f(gate.out) · up.out`. The contents of
    /// `gate.out` and `up.out` are undefined afterwards.
    fn linear_gated(
        &self,
        x: View,
        gate: Projection,
        up: Projection,
        f: Activation,
        out: View,
        phase: Phase,
    ) -> Result<()> {
        self.linear_group(x, &[gate, up], phase)?;
        self.gate(f, gate.out, up.out, out)
    }

    /// Adds and normalises: `x += addend`, then `out = norm(x)`.
    fn add_norm(&self, addend: View, x: View, params: NormParams, out: View) -> Result<()> {
        self.add(addend, x)?;
        self.norm(params, x, out)
    }

    /// Rotates queries and keys in place, then appends keys and values to their pages.
    fn rope_append(&self, qkv: Qkv, rotation: Rotation, rows: Rows, kv: KvLayer) -> Result<()> {
        self.rope(qkv.q, rotation)?;
        self.rope(qkv.k, rotation)?;
        self.append(qkv.k, qkv.v, rows, kv)
    }

    /// Runs [`FusedOps::rope_append`], then attends from the rotated queries.
    fn rope_append_attend(
        &self,
        qkv: Qkv,
        rotation: Rotation,
        rows: Rows,
        kv: KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        self.rope_append(qkv, rotation, rows, kv)?;
        self.attend(qkv.q, rows, kv, how, out)
    }
}

/// All operations of a device.
pub trait Ops: LookupOps + ChoiceOps + ProbeOps + FusedOps {}

impl<D: LookupOps + ChoiceOps + ProbeOps + FusedOps + ?Sized> Ops for D {}
