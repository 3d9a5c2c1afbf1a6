//! Bandwidths in GB/s.

use std::time::Duration;

use djinn_device::Backend;
use djinn_engine::{Blueprint, rates};
use djinn_model::Model;

use crate::BenchError;

/// Bandwidth of the device's memory; see [`rates::memory_bandwidth`].
pub fn memory(backend: &dyn Backend, bytes: u64) -> Result<f64, BenchError> {
    Ok(rates::memory_bandwidth(backend, bytes)? / 1e9)
}

/// Bandwidth of the link; see [`rates::link_bandwidth`].
pub fn link(
    backend: &dyn Backend,
    model: &Model,
    blueprint: &Blueprint,
    time: Duration,
    start: f64,
) -> Result<f64, BenchError> {
    Ok(rates::link_bandwidth(backend, model, blueprint, time, start)? / 1e9)
}
