//! Sizes of a model, and its rotary embedding.

use djinn_types::RopeStyle;

/// Sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Number of blocks.
    pub blocks: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads.
    pub kv_heads: usize,
    /// Number of elements in a head.
    pub d_head: usize,
    /// Width of the MLP.
    pub d_mlp: usize,
    /// Number of tokens in the vocabulary.
    pub vocab: usize,
    /// Longest context, in tokens.
    pub context: usize,
    /// Number of experts in a block; 0 for a dense model.
    pub experts: usize,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pairing of the elements that are rotated together.
    pub style: RopeStyle,
    /// Frequency of each rotated pair. A head rotates twice as many elements.
    pub frequencies: Vec<f32>,
    /// Factor on cosines and sines: YaRN's attention factor, 1 elsewhere.
    pub scale: f32,
}
