//! `djinn bench prefill`

use std::time::Instant;

use djinn_device::{host, yardstick::Gemm};
use djinn_engine::Request;
use djinn_model::program::{Op, Program};
use serde_json::json;

use super::{check_context, median, some_tokens, start};
use crate::{
    args::BenchPrefillArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::seconds,
};

/// Time of a prompt; on a processor, beside the `gemm` crate on the same products.
pub fn prefill(args: &BenchPrefillArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    check_context(&model.program, args.tokens)?;
    let shapes = products(&model.program);
    let name = model.name.clone();
    let request = Request {
        tokens: some_tokens(&model.program, args.tokens, 0),
        max_tokens: 1,
        ..Request::default()
    };
    let settled = args.model.settled()?;
    let (mut engine, ids) = start(&settled, model, vec![request.clone()])?;
    let mut id = ids[0];
    let mut times = Vec::new();
    // The first run touches memory for the first time and does not count.
    for run in 0..=args.repeat {
        let started = Instant::now();
        while !engine.is_idle() {
            engine.step()?;
        }
        if run > 0 {
            times.push(started.elapsed().as_secs_f64());
        }
        engine.close(id);
        if run < args.repeat {
            id = engine.open(request.clone())?;
        }
    }
    let time = median(&mut times);
    let flops: f64 = shapes.iter().map(|s| s.flops(args.tokens)).sum();
    // A yardstick of processors: a card is not held against it.
    let gemm = match settled.backend().card() {
        None => Some(gemm_time(&shapes, args.tokens, settled.args.device.threads)),
        Some(_) => None,
    };
    let ours = flops / time / 1e9;
    let tokens = args.tokens as f64 / time;
    let device = engine.device();
    if args.json {
        let mut report = json!({
            "model": name, "device": device.detail, "tokens": args.tokens,
            "prefill_s": time, "tokens_per_s": tokens, "gflop_per_s": ours,
        });
        if let Some(gemm) = gemm {
            report["gemm_gflop_per_s"] = json!(flops / gemm / 1e9);
            report["share_of_gemm"] = json!(gemm / time);
        }
        return say_json(&report);
    }
    let beside = gemm.map_or(String::new(), |gemm| {
        format!(
            "  gemm crate      {:.1} GFLOP/s in f32 on the same shapes\n  \
             share           {:.0} %\n",
            flops / gemm / 1e9,
            gemm / time * 100.0
        )
    });
    say(&format!(
        "{name} on {}, {} tokens\n\
         \x20 prefill         {} (median of {})\n\
         \x20 tokens          {tokens:.1}/s\n\
         \x20 products        {}, all else counted as lost time\n{beside}",
        device.detail,
        args.tokens,
        seconds(time),
        times.len(),
        products_rate(ours),
    ))
}

/// A rate of products, from GFLOP/s.
fn products_rate(gflop_per_s: f64) -> String {
    match gflop_per_s {
        rate if rate < 1e4 => format!("{rate:.1} GFLOP/s"),
        rate => format!("{:.1} TFLOP/s", rate / 1e3),
    }
}

/// A matrix product of the pass, and how often it comes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Product {
    inputs: usize,
    outputs: usize,
    count: usize,
}

impl Product {
    fn flops(&self, rows: usize) -> f64 {
        2.0 * (rows * self.inputs * self.outputs * self.count) as f64
    }
}

/// The products of all blocks; the head runs for one row only and does not count.
fn products(program: &Program) -> Vec<Product> {
    let mut all: Vec<Product> = Vec::new();
    let mut count = |inputs: usize, outputs: usize, times: usize| {
        let same = |p: &&mut Product| p.inputs == inputs && p.outputs == outputs;
        match all.iter_mut().find(same) {
            Some(product) => product.count += times,
            None => all.push(Product {
                inputs,
                outputs,
                count: times,
            }),
        }
    };
    for op in program.blocks.iter().flatten() {
        match op {
            Op::Linear { from, to, .. } => count(program.width(*from), program.width(*to), 1),
            Op::Experts { chosen, .. } => {
                let d = &program.dims;
                count(d.d_model, d.d_mlp, 2 * chosen);
                count(d.d_mlp, d.d_model, *chosen);
            }
            _ => {}
        }
    }
    all
}

/// Seconds the `gemm` crate takes for all products in f32, with the same threads.
fn gemm_time(shapes: &[Product], rows: usize, threads: Option<usize>) -> f64 {
    let threads = threads.unwrap_or_else(host::cores);
    let one = |shape: &Product| {
        let mut product = Gemm::new(rows, shape.outputs, shape.inputs, threads);
        let mut times: Vec<f64> = (0..5).map(|_| product.run().as_secs_f64()).collect();
        median(&mut times) * shape.count as f64
    };
    shapes.iter().map(one).sum()
}
