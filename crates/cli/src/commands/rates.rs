//! What this machine gives: a device's memory to those who compute, and the link.

use std::time::Duration;

use djinn_device::{Backend, cuda};
use djinn_engine::Blueprint;
use djinn_model::{Model, Origin};
use djinn_weights::measure_link;

use crate::{args::Settled, failure::Failure};

/// GB/s of reading the device's memory: for processors with their number of threads and
/// `bytes` to read through, for cards as a copy within their memory finds it.
pub fn memory(backend: &dyn Backend, bytes: u64) -> Result<f64, Failure> {
    Ok(backend.measure_bandwidth(bytes)? / 1e9)
}

/// GB/s over the link: for processors of reading a model's weights as a blueprint does,
/// from a share of the whole on; for cards from pinned memory.
pub fn link(
    settled: &Settled<'_>,
    model: &Model,
    blueprint: &Blueprint,
    time: Duration,
    start: f64,
) -> Result<f64, Failure> {
    if let Some(card) = settled.backend().card() {
        return Ok(cuda::measure_link(card, blueprint.link().chunk, time)? / 1e9);
    }
    let (chunk, workers) = (blueprint.weights().link_chunk(), blueprint.link().workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s() / 1e9)
}

/// What is at the link's other end, as its rate is measured.
pub fn source(backend: &dyn Backend, model: &Model) -> &'static str {
    match backend.card() {
        None => model.weights.origin().describe(),
        Some(_) => "pinned memory",
    }
}

/// Whether the link's work is done by what computes, so that they add up.
pub fn shared(backend: &dyn Backend, model: &Model) -> bool {
    let processor = backend.card().is_none();
    processor && model.weights.origin() == Origin::Generated
}
