//! The parameters of operations.

use djinn_types::Order;

use crate::View;

/// What rows are: a device may have kernels of its own for each kind, so sums may be in
/// an order of its own for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Tokens of a prompt, as many at once as there are.
    Prompt,
    /// Tokens that were generated, one of each session.
    Generated,
}

/// A weight matrix as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// The numbers.
    pub view: View,
    /// Which way round.
    pub order: Order,
}

/// A change to an activation. Operands are f32 with one row, which then applies to
/// every row, or as many rows as the activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// `x · factor`
    Scale(f32),
    /// `x + factor · operand`
    Add {
        /// What is added.
        operand: View,
        /// How much of it.
        factor: f32,
    },
    /// `x = operand`
    Replace(View),
    /// `x = 0`
    Zero,
    /// `x - (x · u) u` with `u` the operand scaled to length 1; a zero operand
    /// changes nothing.
    ProjectOut(View),
    /// `x + factor · |x| · u` with `u` the operand scaled to length 1: as much of it as the
    /// row is long. A zero operand changes nothing.
    AddMatched {
        /// What is added.
        operand: View,
        /// How much of it.
        factor: f32,
    },
    /// What is less than `low` becomes that, what is more than `high` becomes that.
    Clamp {
        /// The least there is afterwards.
        low: f32,
        /// The most.
        high: f32,
    },
}

/// What is made of the rows of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The length of each: `[rows, 1]`.
    Norm,
    /// Adds them, in order, to a sum: `[2, cols]`, the sum and what it has lost to rounding.
    /// The same bits on any device.
    Sum,
    /// The largest elements of each, first the largest, of equals that of the lower place:
    /// `[rows, 2k]`, their `k` places and then their values.
    Largest,
    /// The same with their shares of the row's softmax in place of values.
    Likeliest,
}
