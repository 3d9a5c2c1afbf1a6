//! `djinn bench`

mod decode;
mod link;
mod memory;
mod prefill;
mod stream;

use djinn_device::cpu::{CpuDevice, CpuOptions};
use djinn_model::program::Program;

use super::start;
use crate::{
    args::{Bench, BenchArgs},
    failure::Failure,
};

/// Read through to learn what memory gives; far more than caches hold.
const BANDWIDTH_BYTES: u64 = 1 << 30;

/// Runs a benchmark.
pub fn bench(args: BenchArgs) -> Result<(), Failure> {
    match args.what {
        Bench::Memory(args) => memory::memory(&args),
        Bench::Decode(args) => decode::decode(&args),
        Bench::Prefill(args) => prefill::prefill(&args),
        Bench::Link(args) => link::link(&args),
        Bench::Stream(args) => stream::stream(&args),
    }
}

/// GB/s of reading memory with this many threads.
fn read_bandwidth(threads: Option<usize>, bytes: u64) -> Result<f64, Failure> {
    let options = CpuOptions {
        threads,
        slab_bytes: 0,
        isa: None,
    };
    Ok(CpuDevice::new(options)?.read_bandwidth(bytes)?)
}

/// Refuses more positions than the model has, before anything is made of them.
fn check_context(program: &Program, positions: usize) -> Result<(), Failure> {
    let context = program.dims.context;
    if positions > context {
        return Err(Failure::Message(format!(
            "{positions} positions asked for, the model's context has {context}"
        )));
    }
    Ok(())
}

/// Ids spread over the vocabulary, so that no two positions are alike.
fn some_tokens(program: &Program, count: usize, salt: usize) -> Vec<u32> {
    let at = |i: usize| (i * 7919 + salt * 104_729 + 1) % program.dims.vocab;
    (0..count).map(|i| at(i) as u32).collect()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
