//! `djinn bench`

use std::time::Instant;

use djinn_device::{
    cpu::{CpuDevice, CpuOptions},
    host,
    yardstick::Gemm,
};
use djinn_engine::{Engine, Request, Settings};
use djinn_model::{
    Model,
    program::{Op, Program},
};
use serde_json::json;

use crate::{
    args::{
        Bench, BenchArgs, BenchDecodeArgs, BenchMemoryArgs, BenchPrefillArgs, DeviceArgs, ModelArgs,
    },
    bundled,
    failure::Failure,
    progress::Loading,
    style::{seconds, table},
};

/// Read through to learn what memory gives; far more than caches hold.
const BANDWIDTH_BYTES: u64 = 1 << 30;

/// Runs a benchmark.
pub fn bench(args: BenchArgs) -> Result<(), Failure> {
    match args.what {
        Bench::Memory(args) => memory(&args),
        Bench::Decode(args) => decode(&args),
        Bench::Prefill(args) => prefill(&args),
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

fn memory(args: &BenchMemoryArgs) -> Result<(), Failure> {
    let most = args.device.threads.unwrap_or_else(host::cores);
    let measured = (1..=most)
        .map(|threads| Ok((threads, read_bandwidth(Some(threads), args.size.0)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    if args.json {
        let rows: Vec<_> = measured
            .iter()
            .map(|(threads, rate)| json!({ "threads": threads, "read_gb_per_s": rate }))
            .collect();
        println!("{:#}", json!({ "size_bytes": args.size.0, "memory": rows }));
    } else {
        let rows: Vec<Vec<String>> = measured
            .iter()
            .map(|(threads, rate)| vec![threads.to_string(), format!("{rate:.1} GB/s")])
            .collect();
        print!("{}", table(&["threads", "read"], &rows));
    }
    Ok(())
}

/// An engine over the model, with these requests opened.
fn engine(args: &ModelArgs, model: Model, requests: Vec<Request>) -> Result<Engine, Failure> {
    let settings = Settings::for_requests(&model.program, &requests, args.rows)?;
    let loading = Loading::new(&model.name, model.program.weight_bytes());
    let backend = args.device.backend();
    let mut engine = Engine::load(model, &backend, settings, &mut |p| loading.update(p))?;
    for request in requests {
        engine.open(request)?;
    }
    Ok(engine)
}

/// Ids spread over the vocabulary, so that no two positions are alike.
fn some_tokens(program: &Program, count: usize, salt: usize) -> Vec<u32> {
    let at = |i: usize| (i * 7919 + salt * 104_729 + 1) % program.dims.vocab;
    (0..count).map(|i| at(i) as u32).collect()
}

fn decode(args: &BenchDecodeArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let (name, read_bytes) = (model.name.clone(), bytes_read(&model.program));
    let requests = (0..args.sessions)
        .map(|i| Request {
            tokens: some_tokens(&model.program, args.context, i),
            max_tokens: args.tokens + 1,
            ..Request::default()
        })
        .collect();
    let mut engine = engine(&args.model, model, requests)?;
    // Prompts and the first generated token are not what is timed.
    let mut generated = 0;
    while generated < args.sessions {
        generated += engine.step()?.len();
    }
    let mut passes = Vec::new();
    while !engine.is_idle() {
        let started = Instant::now();
        engine.step()?;
        passes.push(started.elapsed().as_secs_f64());
    }
    let pass = median(&mut passes);
    let rate = read_bytes as f64 / pass / 1e9;
    let ceiling = read_bandwidth(args.model.device.threads, BANDWIDTH_BYTES)?;
    let share = rate / ceiling;
    if args.json {
        let report = json!({
            "model": name, "device": engine.device().detail, "sessions": args.sessions,
            "context": args.context, "tokens": args.tokens,
            "pass_s": pass, "tokens_per_s": args.sessions as f64 / pass,
            "weights_bytes_per_pass": read_bytes, "weights_gb_per_s": rate,
            "memory_gb_per_s": ceiling, "share_of_memory": share,
            "peak_rss_bytes": host::peak_rss_bytes(),
            "slab_bytes": engine.footprint().total(),
        });
        println!("{report:#}");
    } else {
        println!("{name} on {}", engine.device().detail);
        println!(
            "  a pass          {} (median of {})",
            seconds(pass),
            passes.len()
        );
        println!("  tokens          {:.1}/s", args.sessions as f64 / pass);
        println!("  weights read    {rate:.1} GB/s");
        println!("  memory gives    {ceiling:.1} GB/s");
        println!("  share           {:.0} %", share * 100.0);
    }
    Ok(())
}

/// Bytes of weights a generated token reads: all but the rows of tables it skips.
fn bytes_read(program: &Program) -> u64 {
    let mut read = vec![false; program.tensors.len()];
    for op in program.ops() {
        match *op {
            Op::Linear { weight, bias, .. } | Op::Norm { weight, bias, .. } => {
                for id in [Some(weight), bias].into_iter().flatten() {
                    read[id.0] = true;
                }
            }
            _ => {}
        }
    }
    let dense: u64 = (0..)
        .zip(&read)
        .filter(|(_, read)| **read)
        .map(|(i, _): (usize, _)| program.tensors[i].bytes())
        .sum();
    let routed: u64 = program
        .ops()
        .filter_map(|op| match op {
            Op::Experts {
                chosen, experts, ..
            } => {
                let e = experts.first()?;
                let one: u64 = [e.gate, e.up, e.down]
                    .iter()
                    .map(|&id| program.tensor(id).bytes())
                    .sum();
                Some(one * *chosen as u64)
            }
            _ => None,
        })
        .sum();
    dense + routed
}

fn prefill(args: &BenchPrefillArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let shapes = products(&model.program);
    let name = model.name.clone();
    let request = Request {
        tokens: some_tokens(&model.program, args.tokens, 0),
        max_tokens: 1,
        ..Request::default()
    };
    let mut engine = engine(&args.model, model, vec![request.clone()])?;
    let mut times = Vec::new();
    // The first run touches memory for the first time and does not count.
    for run in 0..=args.repeat {
        let id = match run {
            0 => None,
            _ => Some(engine.open(request.clone())?),
        };
        let started = Instant::now();
        while !engine.is_idle() {
            engine.step()?;
        }
        if run > 0 {
            times.push(started.elapsed().as_secs_f64());
        }
        engine.close(id.unwrap_or(djinn_engine::SessionId(0)));
    }
    let time = median(&mut times);
    let flops: f64 = shapes.iter().map(|s| s.flops(args.tokens)).sum();
    let gemm = gemm_time(&shapes, args.tokens, &args.model.device);
    if args.json {
        let report = json!({
            "model": name, "device": engine.device().detail, "tokens": args.tokens,
            "prefill_s": time, "tokens_per_s": args.tokens as f64 / time,
            "gflop_per_s": flops / time / 1e9, "gemm_gflop_per_s": flops / gemm / 1e9,
            "share_of_gemm": gemm / time,
        });
        println!("{report:#}");
    } else {
        println!(
            "{name} on {}, {} tokens",
            engine.device().detail,
            args.tokens
        );
        println!(
            "  prefill         {} (median of {})",
            seconds(time),
            times.len()
        );
        println!("  tokens          {:.1}/s", args.tokens as f64 / time);
        println!(
            "  products        {:.1} GFLOP/s, all else counted as lost time",
            flops / time / 1e9
        );
        println!(
            "  gemm crate      {:.1} GFLOP/s in f32 on the same shapes",
            flops / gemm / 1e9
        );
        println!("  share           {:.0} %", gemm / time * 100.0);
    }
    Ok(())
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
fn gemm_time(shapes: &[Product], rows: usize, device: &DeviceArgs) -> f64 {
    let threads = device.threads.unwrap_or_else(host::cores);
    let one = |shape: &Product| {
        let mut product = Gemm::new(rows, shape.outputs, shape.inputs, threads);
        let mut times: Vec<f64> = (0..5).map(|_| product.run().as_secs_f64()).collect();
        median(&mut times) * shape.count as f64
    };
    shapes.iter().map(one).sum()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
