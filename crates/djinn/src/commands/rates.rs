//! What this machine gives: its memory to those who compute, its disk to the link.

use std::time::Duration;

use djinn_device::cpu::{CpuDevice, CpuOptions};
use djinn_engine::{Blueprint, measure_link};
use djinn_model::Model;

use crate::{
    args::{DeviceArgs, DeviceName},
    failure::Failure,
};

/// GB/s of reading the device's memory, for processors with their number of threads.
pub fn memory(args: &DeviceArgs, bytes: u64) -> Result<f64, Failure> {
    if args.device != DeviceName::Cpu {
        return Err(Failure::Message(
            "a card's memory is not measured yet: only --device cpu".into(),
        ));
    }
    let options = CpuOptions {
        threads: args.threads,
        slab_bytes: 0,
        isa: None,
    };
    Ok(CpuDevice::new(options)?.read_bandwidth(bytes)?)
}

/// GB/s of reading a model's weights as a blueprint's link does, from a share of the
/// whole on.
pub fn link(
    model: &Model,
    blueprint: &Blueprint,
    time: Duration,
    start: f64,
) -> Result<f64, Failure> {
    let (chunk, workers) = (blueprint.link_chunk(), blueprint.link().workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s() / 1e9)
}
