//! Tensors in requests and replies.

use djinn_wire::{TensorError, numbers, tensor, v1};

/// Largest tensor in bytes that the client accepts; a larger size in a reply is an error.
pub(crate) const TENSOR_BYTES_MAX: u64 = 64 << 30;

/// Tensor of `f32` numbers in row-major order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorData {
    /// Length of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// All elements.
    pub data: Vec<f32>,
}

impl TensorData {
    /// Creates a tensor of one dimension.
    pub fn row(data: Vec<f32>) -> Self {
        TensorData {
            shape: vec![data.len()],
            data,
        }
    }
}

impl TryFrom<&v1::Tensor> for TensorData {
    type Error = TensorError;

    fn try_from(wire: &v1::Tensor) -> Result<Self, TensorError> {
        let (shape, data) = numbers(wire)?;
        Ok(TensorData { shape, data })
    }
}

impl From<&TensorData> for v1::Tensor {
    fn from(from: &TensorData) -> Self {
        tensor(&from.shape, &from.data)
    }
}
