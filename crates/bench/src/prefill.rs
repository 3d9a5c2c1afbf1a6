//! Benchmark `prefill`: speed of a prompt.

use std::time::Instant;

use djinn_engine::{Engine, Request, SessionId};
use djinn_model::program::{Op, Program};
use serde_json::json;

use crate::{
    BenchError, BenchReport, BenchTarget,
    sample::{check_context, median, some_tokens},
};
use djinn_types::text::seconds;

/// Options of the benchmark `prefill`.
pub struct PrefillOptions {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Number of runs; the median counts.
    pub repeat: usize,
}

/// Seconds that the `gemm` crate takes for the matrix products of a prompt, or the reason why the
/// comparison is missing.
type GemmComparison = Result<f64, &'static str>;

/// Times a prompt. On a processor, and if the program was built with the feature `yardstick`, also times
/// the `gemm` crate on the same matrix products.
pub fn prefill(
    options: &PrefillOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    check_context(&model.program, options.tokens)?;
    let shapes = products(&model.program);
    let request = Request {
        tokens: some_tokens(&model.program, options.tokens, 0),
        max_tokens: 1,
        ..Request::default()
    };
    let (mut engine, ids) = target.start(model, vec![request.clone()])?;
    let seconds = prompt_seconds(&mut engine, ids[0], &request, options.repeat)?;
    let gemm = match target.backend.card() {
        None => gemm(&shapes, options.tokens, target.threads),
        Some(_) => Err("runs on processors only"),
    };
    let flops = shapes.iter().map(|s| s.flops(options.tokens)).sum();
    Ok(report(options, &engine, seconds, flops, gemm))
}

/// Median seconds of the prompt. The first run warms up memory and does not count.
fn prompt_seconds(
    engine: &mut Engine,
    first: SessionId,
    request: &Request,
    repeat: usize,
) -> Result<f64, BenchError> {
    let mut id = first;
    let mut times = Vec::new();
    for run in 0..=repeat {
        let started = Instant::now();
        while !engine.is_idle() {
            engine.step()?;
        }
        if run > 0 {
            times.push(started.elapsed().as_secs_f64());
        }
        engine.close(id);
        if run < repeat {
            id = engine.open(request.clone())?;
        }
    }
    Ok(median(&mut times))
}

fn report(
    options: &PrefillOptions,
    engine: &Engine,
    time: f64,
    flops: f64,
    gemm: GemmComparison,
) -> BenchReport {
    let (name, device) = (&engine.model().name, engine.device().detail);
    let rate = flops / time / 1e9;
    let tokens = options.tokens as f64 / time;
    let mut json = json!({
        "model": name, "device": device, "tokens": options.tokens,
        "prefill_s": time, "tokens_per_s": tokens, "gflop_per_s": rate,
    });
    let comparison = match gemm {
        Ok(seconds) => {
            let (theirs, share) = (flops / seconds / 1e9, seconds / time);
            json["gemm_gflop_per_s"] = json!(theirs);
            json["share_of_gemm"] = json!(share);
            format!(
                "  gemm crate      {theirs:.1} GFLOP/s in f32 on the same shapes\n  \
                 share           {:.0} %\n",
                share * 100.0
            )
        }
        Err(reason) => {
            json["gemm_comparison"] = json!(reason);
            format!("  gemm crate      {reason}\n")
        }
    };
    let text = format!(
        "{name} on {device}, {} tokens\n\
         \x20 prefill         {} (median of {})\n\
         \x20 tokens          {tokens:.1}/s\n\
         \x20 products        {}; other operations count as lost time\n{comparison}",
        options.tokens,
        seconds(time),
        options.repeat,
        products_rate(rate),
    );
    BenchReport::new(text, json)
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

/// Times the `gemm` crate on all products in f32, with as many threads as the engine.
#[cfg(feature = "yardstick")]
fn gemm(shapes: &[ProductShape], rows: usize, threads: Option<usize>) -> GemmComparison {
    let threads = threads.unwrap_or_else(djinn_device::host::cores);
    let one = |shape: &ProductShape| {
        let (outputs, inputs) = (shape.outputs, shape.inputs);
        let mut product = djinn_device::yardstick::Gemm::new(rows, outputs, inputs, threads);
        let mut times: Vec<f64> = (0..5).map(|_| product.run().as_secs_f64()).collect();
        median(&mut times) * shape.count as f64
    };
    Ok(shapes.iter().map(one).sum())
}

/// Reports that this build has no `gemm` crate.
#[cfg(not(feature = "yardstick"))]
fn gemm(_: &[ProductShape], _: usize, _: Option<usize>) -> GemmComparison {
    Err("not in this build; build with --features yardstick to compare")
}
