//! Samples of tensor bytes, from which the identity of a model is computed.

use djinn_model::{Model, program::TensorId};

use crate::error::EngineError;

/// Number of bytes that are sampled in two places of every tensor.
pub(super) const SAMPLE: usize = 256;

/// Returns the offset and length of the two samples of a tensor.
pub(super) fn sample_places(length: u64) -> [(u64, usize); 2] {
    let count = length.min(SAMPLE as u64);
    [0, (length - count) / 2].map(|offset| (offset, count as usize))
}

/// Reads one sample of a tensor.
pub(super) fn read_sample(
    model: &Model,
    id: TensorId,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), EngineError> {
    let read = model.weights.read_tensor(id, offset, bytes);
    read.map_err(|error| EngineError::Unreadable(error.to_string()))
}
