//! Benchmark `prefill`: speed of a prompt.

use std::time::Instant;

use djinn_device::{host, yardstick::Gemm};
use djinn_engine::Request;
use djinn_model::program::{Op, Program};
use serde_json::json;

use crate::{
    BenchError, BenchReport, BenchTarget,
    sample::{check_context, median, some_tokens},
    text::seconds,
};

/// Options of the benchmark `prefill`.
pub struct PrefillOptions {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Number of runs; the median counts.
    pub repeat: usize,
}

/// Times a prompt. On a processor, also times the `gemm` crate on the same matrix products.
pub fn prefill(
    options: &PrefillOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    check_context(&model.program, options.tokens)?;
    let shapes = products(&model.program);
    let name = model.name.clone();
    let request = Request {
        tokens: some_tokens(&model.program, options.tokens, 0),
        max_tokens: 1,
        ..Request::default()
    };
    let (mut engine, ids) = target.start(model, vec![request.clone()])?;
    let mut id = ids[0];
    let mut times = Vec::new();
    // The first run warms up memory and does not count.
    for run in 0..=options.repeat {
        let started = Instant::now();
        while !engine.is_idle() {
            engine.step()?;
        }
        if run > 0 {
            times.push(started.elapsed().as_secs_f64());
        }
        engine.close(id);
        if run < options.repeat {
            id = engine.open(request.clone())?;
        }
    }
    let time = median(&mut times);
    let flops: f64 = shapes.iter().map(|s| s.flops(options.tokens)).sum();
    // The `gemm` crate runs on processors only.
    let gemm = match target.backend.card() {
        None => Some(gemm_time(&shapes, options.tokens, target.threads)),
        Some(_) => None,
    };
    let ours = flops / time / 1e9;
    let tokens = options.tokens as f64 / time;
    let device = engine.device();
    let mut report = json!({
        "model": name, "device": device.detail, "tokens": options.tokens,
        "prefill_s": time, "tokens_per_s": tokens, "gflop_per_s": ours,
    });
    if let Some(gemm) = gemm {
        report["gemm_gflop_per_s"] = json!(flops / gemm / 1e9);
        report["share_of_gemm"] = json!(gemm / time);
    }
    let beside = gemm.map_or(String::new(), |gemm| {
        format!(
            "  gemm crate      {:.1} GFLOP/s in f32 on the same shapes\n  \
             share           {:.0} %\n",
            flops / gemm / 1e9,
            gemm / time * 100.0
        )
    });
    let text = format!(
        "{name} on {}, {} tokens\n\
         \x20 prefill         {} (median of {})\n\
         \x20 tokens          {tokens:.1}/s\n\
         \x20 products        {}, all else counted as lost time\n{beside}",
        device.detail,
        options.tokens,
        seconds(time),
        times.len(),
        products_rate(ours),
    );
    Ok(BenchReport::new(text, report))
}

/// Rate of matrix products in GFLOP/s or TFLOP/s.
fn products_rate(gflop_per_s: f64) -> String {
    match gflop_per_s {
        rate if rate < 1e4 => format!("{rate:.1} GFLOP/s"),
        rate => format!("{:.1} TFLOP/s", rate / 1e3),
    }
}

/// Shape of a matrix product, and how often a pass computes it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ProductShape {
    inputs: usize,
    outputs: usize,
    count: usize,
}

impl ProductShape {
    fn flops(&self, rows: usize) -> f64 {
        2.0 * (rows * self.inputs * self.outputs * self.count) as f64
    }
}

/// Matrix products of all blocks. The head runs for one row only and does not count.
fn products(program: &Program) -> Vec<ProductShape> {
    let mut all: Vec<ProductShape> = Vec::new();
    let mut count = |inputs: usize, outputs: usize, times: usize| {
        let same = |p: &&mut ProductShape| p.inputs == inputs && p.outputs == outputs;
        match all.iter_mut().find(same) {
            Some(product) => product.count += times,
            None => all.push(ProductShape {
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

/// Seconds that the `gemm` crate takes for all products in f32 with the same threads.
fn gemm_time(shapes: &[ProductShape], rows: usize, threads: Option<usize>) -> f64 {
    let threads = threads.unwrap_or_else(host::cores);
    let one = |shape: &ProductShape| {
        let mut product = Gemm::new(rows, shape.outputs, shape.inputs, threads);
        let mut times: Vec<f64> = (0..5).map(|_| product.run().as_secs_f64()).collect();
        median(&mut times) * shape.count as f64
    };
    shapes.iter().map(one).sum()
}
