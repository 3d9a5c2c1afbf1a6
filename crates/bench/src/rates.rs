//! Bandwidth of a device's memory and of the link that weights stream over.

use std::time::Duration;

use djinn_device::{Backend, cuda};
use djinn_engine::Blueprint;
use djinn_model::{Model, Origin};
use djinn_weights::measure_link;

use crate::BenchError;

/// Bandwidth of the device's memory in GB/s. A processor reads `bytes` with its number of threads; a
/// card copies within its memory.
pub fn memory(backend: &dyn Backend, bytes: u64) -> Result<f64, BenchError> {
    Ok(backend.measure_bandwidth(bytes)? / 1e9)
}

/// Bandwidth of the link in GB/s. A processor reads the model's weights as the blueprint does, beginning
/// at the share `start` of all bytes; a card copies from pinned memory.
pub fn link(
    backend: &dyn Backend,
    model: &Model,
    blueprint: &Blueprint,
    time: Duration,
    start: f64,
) -> Result<f64, BenchError> {
    if let Some(card) = backend.card() {
        return Ok(cuda::measure_link(card, blueprint.link().chunk, time)? / 1e9);
    }
    let (chunk, workers) = (blueprint.weights().link_chunk(), blueprint.link().workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s() / 1e9)
}

/// Source of the bytes when the link's rate is measured.
pub fn source(backend: &dyn Backend, model: &Model) -> &'static str {
    match backend.card() {
        None => model.weights.origin().describe(),
        Some(_) => "pinned memory",
    }
}

/// Whether the same threads compute and produce weights, so that both times add up.
pub fn shared(backend: &dyn Backend, model: &Model) -> bool {
    let processor = backend.card().is_none();
    processor && model.weights.origin() == Origin::Generated
}
