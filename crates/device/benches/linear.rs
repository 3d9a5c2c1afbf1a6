//! Benchmarks of products: few rows against the memory bandwidth, many rows against the `gemm`
//! crate in f32.
//!
//! Run with `cargo bench -p djinn-device --features yardstick`. Every number is the best of
//! several rounds. Both sides of a ratio run in each round, so that a busy machine slows both.

#![allow(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::time::Instant;

use djinn_device::cpu::{CpuDevice, CpuOptions};
use djinn_device::yardstick::Gemm;
use djinn_device::{Device, Phase, ProductOps, Span, Stream, Transfers, View, Weight};
use djinn_types::{DType, Order};

const SLAB: u64 = 1 << 30;
/// Offset of the weights; activations lie below.
const WEIGHTS: u64 = 128 << 20;
const ROUNDS: usize = 7;

const SHAPES: [(usize, usize); 4] = [(2048, 2048), (5632, 2048), (2048, 5632), (256, 2048)];

fn main() {
    for threads in [1, djinn_device::host::cores()] {
        let options = CpuOptions {
            threads: Some(threads),
            slab_bytes: SLAB,
            isa: None,
        };
        let device = CpuDevice::new(options).unwrap();
        fill(&device);
        println!("{}", device.info().detail);
        for order in [Order::OutIn, Order::InOut] {
            for rows in [1, 2, 4, 8, 16] {
                few_rows(&device, order, rows);
            }
            many_rows(&device, order, 512);
        }
    }
}

/// Fills the slab with numbers that are small in every element type.
fn fill(device: &CpuDevice) {
    let span = Span {
        offset: 0,
        bytes: SLAB,
    };
    let mut fill = |bytes: &mut [u8]| {
        for (i, pair) in bytes.chunks_exact_mut(2).enumerate() {
            let sign = (i as u64 * 0x9e37) as u16 & 0x8000;
            pair.copy_from_slice(&(0x3c00 | sign | (i as u16 & 0x3ff)).to_le_bytes());
        }
        Ok(())
    };
    device.load(span, &mut fill).unwrap();
    let zeros = vec![0; (WEIGHTS / 2) as usize];
    let activations = Span {
        offset: 0,
        bytes: WEIGHTS / 2,
    };
    device.upload(Stream::Compute, activations, &zeros).unwrap();
}

fn weight(offset: u64, order: Order, n: usize, k: usize) -> Weight {
    let (rows, cols) = match order {
        Order::OutIn => (n, k),
        Order::InOut => (k, n),
    };
    Weight {
        view: View::new(offset, DType::Bf16, rows, cols),
        order,
    }
}

fn few_rows(device: &CpuDevice, order: Order, rows: usize) {
    let mut read_rate = 0f64;
    let mut seconds = [f64::INFINITY; SHAPES.len()];
    for _ in 0..ROUNDS {
        read_rate = read_rate.max(device.read_bandwidth(256 << 20).unwrap() / 1e9);
        for ((n, k), seconds) in SHAPES.into_iter().zip(&mut seconds) {
            *seconds = seconds.min(stream(device, order, rows, n, k));
        }
    }
    for ((n, k), seconds) in SHAPES.into_iter().zip(seconds) {
        let rate = (2 * n * k) as f64 / seconds / 1e9;
        println!(
            "  {order:?} {rows:3} x {k} -> {n}: {rate:6.1} GB/s, {:3.0} % of {read_rate:.1} read",
            100.0 * rate / read_rate
        );
    }
}

/// Seconds of one product with weights that are in no cache.
fn stream(device: &CpuDevice, order: Order, rows: usize, n: usize, k: usize) -> f64 {
    let x = View::new(0, DType::F32, rows, k);
    let out = View::new(WEIGHTS / 2, DType::F32, rows, n);
    let bytes = (2 * n * k) as u64;
    let count = (256 << 20) / bytes;
    let start = Instant::now();
    for i in 0..count {
        let weight = weight(WEIGHTS + i * bytes, order, n, k);
        device.linear(x, weight, None, out, Phase::Prompt).unwrap();
    }
    start.elapsed().as_secs_f64() / count as f64
}

fn many_rows(device: &CpuDevice, order: Order, rows: usize) {
    for (n, k) in SHAPES {
        let x = View::new(0, DType::F32, rows, k);
        let out = View::new(WEIGHTS / 2, DType::F32, rows, n);
        let weight = weight(WEIGHTS, order, n, k);
        let mut gemm = Gemm::new(rows, n, k, device.threads());
        let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            device.linear(x, weight, None, out, Phase::Prompt).unwrap();
            ours = ours.min(start.elapsed().as_secs_f64());
            theirs = theirs.min(gemm.run().as_secs_f64());
        }
        let flops = (2 * rows * n * k) as f64;
        println!(
            "  {order:?} {rows:3} x {k} -> {n}: {:6.1} GFLOP/s, {:3.0} % of {:.1} by gemm",
            flops / ours / 1e9,
            100.0 * theirs / ours,
            flops / theirs / 1e9
        );
    }
}
