//! Numbers as they come from a server and go to one.

use djinn_wire::{TensorError, numbers, tensor, v1};

/// Bytes of a tensor at most: one that claims more is a mistake, and no memory is taken for it.
pub(crate) const LARGEST: u64 = 64 << 30;

/// Numbers in some shape, the last dimension first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorData {
    /// How many along each dimension.
    pub shape: Vec<usize>,
    /// All of them.
    pub data: Vec<f32>,
}

impl TensorData {
    /// One row.
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
