//! Bandwidths of a device's memory and of the link that weights stream over, for predictions.

use std::time::Duration;

use djinn_device::{Backend, DeviceError, cuda};
use djinn_model::{Model, Origin};
use djinn_weights::measure_link;

use crate::Blueprint;

/// Error of a bandwidth measurement.
#[derive(Debug, thiserror::Error)]
pub enum RateError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The files of the model cannot be read.
    #[error("reading the model's files to measure the link failed: {0}")]
    Files(#[from] std::io::Error),
}

/// Measures the bandwidth of the device's memory in bytes per second. A processor reads `bytes` with its
/// number of threads; a card copies within its memory.
pub fn memory_bandwidth(backend: &dyn Backend, bytes: u64) -> Result<f64, RateError> {
    Ok(backend.measure_bandwidth(bytes)?)
}

/// Measures the bandwidth of the link in bytes per second. A processor reads the model's weights as the
/// blueprint does, beginning at the share `start` of all bytes; a card copies from pinned memory.
pub fn link_bandwidth(
    backend: &dyn Backend,
    model: &Model,
    blueprint: &Blueprint,
    time: Duration,
    start: f64,
) -> Result<f64, RateError> {
    if let Some(card) = backend.card() {
        return Ok(cuda::measure_link(card, blueprint.link().chunk, time)?);
    }
    let (chunk, workers) = (blueprint.weights().link_chunk(), blueprint.link().workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s())
}

/// Source of streamed weights, for people.
pub fn link_source(backend: &dyn Backend, model: &Model) -> &'static str {
    match backend.card() {
        None => model.weights.origin().describe(),
        Some(_) => "pinned memory",
    }
}

/// Whether the threads that compute also produce weights, so that both times add up.
pub fn link_shares_cores(backend: &dyn Backend, model: &Model) -> bool {
    let is_processor = backend.card().is_none();
    is_processor && model.weights.origin() == Origin::Generated
}
