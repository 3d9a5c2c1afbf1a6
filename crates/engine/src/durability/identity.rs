//! What tells a model from others of its name.

use std::hash::Hasher;

use djinn_model::{Model, program::TensorId};
use twox_hash::XxHash3_64;

use crate::EngineError;

/// Bytes looked at in two places of every tensor.
const SAMPLE: usize = 256;

/// A number that follows from what a pass does, from the names and shapes of all tensors, and
/// from some bytes of each: reading all of a large model would take longer than loading it.
pub(crate) fn identity(model: &Model) -> Result<String, EngineError> {
    let mut hash = XxHash3_64::new();
    let program = &model.program;
    hash.write(format!("{:?} {:?}", program.dims, program.rope).as_bytes());
    for op in program.ops() {
        hash.write(format!("{op:?}").as_bytes());
    }
    let mut bytes = [0; SAMPLE];
    for (number, tensor) in program.tensors.iter().enumerate() {
        let id = TensorId(number);
        let length = model.weights.extent(id).bytes;
        hash.write(tensor.name.as_bytes());
        hash.write(format!("{:?} {} {length}", tensor.shape, tensor.dtype).as_bytes());
        let count = length.min(SAMPLE as u64);
        for offset in [0, (length - count) / 2] {
            let bytes = &mut bytes[..count as usize];
            let read = model.weights.read_tensor(id, offset, bytes);
            read.map_err(|error| EngineError::NotRead(error.to_string()))?;
            hash.write(bytes);
        }
    }
    Ok(format!("{:016x}", hash.finish()))
}
