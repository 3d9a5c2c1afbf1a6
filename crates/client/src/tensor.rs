//! Numbers as they come from a server and go to one.

use djinn_wire::{TensorError, numbers, tensor, v1};

/// Bytes of a tensor at most: one that claims more is a mistake, and no memory is taken for it.
pub(crate) const LARGEST: u64 = 64 << 30;

/// Numbers in some shape, the last dimension first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    /// How many along each dimension.
    pub shape: Vec<usize>,
    /// All of them.
    pub data: Vec<f32>,
}

impl Tensor {
    /// One row.
    pub fn row(data: Vec<f32>) -> Self {
        Tensor {
            shape: vec![data.len()],
            data,
        }
    }
}

impl TryFrom<&v1::Tensor> for Tensor {
    type Error = TensorError;

    fn try_from(wire: &v1::Tensor) -> Result<Self, TensorError> {
        let (shape, data) = numbers(wire)?;
        Ok(Tensor { shape, data })
    }
}

impl From<&Tensor> for v1::Tensor {
    fn from(from: &Tensor) -> Self {
        tensor(&from.shape, &from.data)
    }
}
