//! Parameters of operations.

use djinn_types::{NormKind, Order, RopeStyle};

use crate::View;

/// Alignment, in bytes, of the start of a weight that a device reads at full speed.
pub const ALIGN: u64 = 256;

/// Kind of the rows of an operation. A device may have its own kernels for each kind, with
/// their own order of summation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prefill: tokens of prompts, many rows of a session at once.
    Prompt,
    /// Decode: generated tokens, one row of each session.
    Generated,
}

/// A weight matrix as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// Elements of the matrix in their stored shape.
    pub view: View,
    /// Storage order of the matrix.
    pub order: Order,
}

/// One product of a group: a matrix, its bias, and its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Projection {
    /// Matrix to multiply with.
    pub weight: Weight,
    /// Row that is added to every row of the output.
    pub bias: Option<View>,
    /// Output, `[rows, out]`.
    pub out: View,
}

/// Parameters of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormParams {
    /// Kind of norm.
    pub kind: NormKind,
    /// Constant that is added under the root.
    pub eps: f32,
    /// Scale, one row as wide as the input.
    pub weight: View,
    /// Shift, one row as wide as the input.
    pub bias: Option<View>,
}

/// Rotary rotation of the heads of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rotation {
    /// Cosines and sines of each row, as
    /// [`RopeOps::rope_table`](crate::RopeOps::rope_table) writes them.
    pub table: View,
    /// Elements of a head.
    pub d_head: usize,
    /// Pairing of the rotated elements.
    pub style: RopeStyle,
}

/// Queries, keys and values of the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qkv {
    /// Queries, `[rows, heads · d_head]`.
    pub q: View,
    /// Keys, `[rows, kv_heads · d_head]`.
    pub k: View,
    /// Values, `[rows, kv_heads · d_head]`.
    pub v: View,
}

/// A change to an activation. Operands are f32 with one row, which applies to every row, or
/// with as many rows as the activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// Scales the activation: `x · factor`.
    Scale(f32),
    /// Adds a scaled operand: `x + factor · operand`.
    Add {
        /// Row or rows to add.
        operand: View,
        /// Multiplier of the operand.
        factor: f32,
    },
    /// Replaces the activation: `x = operand`.
    Replace(View),
    /// Sets the activation to zero: `x = 0`.
    Zero,
    /// Removes the component along a direction: `x - (x · u) u` with `u` the operand scaled to
    /// length 1. A zero operand changes nothing.
    ProjectOut(View),
    /// Adds a direction scaled to the length of each row: `x + factor · |x| · u` with `u` the
    /// operand scaled to length 1. A zero operand changes nothing.
    AddMatched {
        /// Row or rows to add.
        operand: View,
        /// Multiplier of the operand.
        factor: f32,
    },
    /// Clamps every element to `low..=high`.
    Clamp {
        /// Least value of an element.
        low: f32,
        /// Largest value of an element.
        high: f32,
    },
}

/// A reduction of the rows of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Euclidean length of each row: `[rows, 1]`.
    Norm,
    /// Adds the rows, in order, to a running sum: `[2, cols]`, the sum and its rounding
    /// error. Every device gives the same bits.
    Sum,
    /// Largest elements of each row in descending order, and equal elements in order of column:
    /// `[rows, 2k]`, `k` columns and then `k` values.
    Largest,
    /// Largest elements of each row as [`Reduction::Largest`], with their softmax
    /// probabilities in place of values.
    Likeliest,
}
