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
    /// Order `[out, in]`, as in `torch.nn.Linear`.
    OutIn,
    /// Order `[in, out]`, as in GPT-2's `Conv1D`.
    InOut,
}

/// Elementwise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// SiLU: `x · sigmoid(x)`.
    Silu,
    /// GELU through the error function.
    Gelu,
    /// GELU through tanh (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// ReLU: `max(x, 0)`.
    Relu,
}

/// Pairing of the elements of a head that a rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Pairs element `i` with element `i + n`, as in Llama.
    Halves,
    /// Pairs element `2i` with element `2i + 1`, as in GPT-J.
    Interleaved,
}
