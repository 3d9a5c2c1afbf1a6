//! Kinds of operations that a model names and a device computes.

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Root-mean-square norm: `x / sqrt(mean(x²) + eps) · weight`.
    Rms,
    /// Layer norm: `(x - mean) / sqrt(var + eps) · weight + bias`.
    Layer,
}

/// Storage order of a weight matrix in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `[out, in]`, the order of `torch.nn.Linear`.
    OutIn,
    /// `[in, out]`, the order of GPT-2's `Conv1D`.
    InOut,
}

/// Elementwise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
    /// GELU through the error function.
    Gelu,
    /// GELU through tanh (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// `max(x, 0)`
    Relu,
}

/// Pairing of the elements of a head that a rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `i` with element `i + n`, as in Llama.
    Halves,
    /// Element `2i` with element `2i + 1`, as in GPT-J.
    Interleaved,
}
