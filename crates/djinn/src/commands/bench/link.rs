//! `djinn bench link`

use std::time::Duration;

use djinn_device::host::BLOCK;
use djinn_engine::{Memory, measure_link};
use djinn_memory::Size;
use djinn_model::Model;
use serde_json::json;

use super::median;
use crate::{
    args::BenchLinkArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::table,
};

/// Tried where nobody says.
const WORKERS: [usize; 4] = [1, 2, 4, 8];
const CHUNKS: [u64; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Memory for what is read, at most.
const MEMORY_MAX: u64 = 1 << 30;

/// One setting's rates in GB/s, lowest first.
struct Measured {
    workers: usize,
    chunk: u64,
    rates: Vec<f64>,
}

/// How fast a model's files are read.
pub fn link(args: &BenchLinkArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.as_deref())?;
    if args.workers.is_some_and(|n| n > Memory::WORKERS_MAX) {
        let most = Memory::WORKERS_MAX;
        return Err(Failure::Message(format!("--workers: at most {most}")));
    }
    let workers = args.workers.map_or(WORKERS.to_vec(), |n| vec![n]);
    // Chunks are whole blocks, and no longer than a file.
    let longest = model.weights.files().into_iter().max().unwrap_or(0);
    let settled = |chunk: u64| chunk.clamp(1, longest.max(1)).next_multiple_of(BLOCK);
    let chunks = args.chunk.map_or(CHUNKS.to_vec(), |size| vec![size.0]);
    let mut chunks: Vec<u64> = chunks.into_iter().map(settled).collect();
    chunks.dedup();
    let most = workers.iter().max().copied().unwrap_or(1) as u64;
    if chunks
        .iter()
        .any(|chunk| chunk.saturating_mul(most) > MEMORY_MAX)
    {
        let size = Size(MEMORY_MAX);
        return Err(Failure::Message(format!(
            "--chunk times --workers: at most {size}, which reading takes in memory"
        )));
    }
    let mut measured: Vec<Measured> = workers
        .iter()
        .flat_map(|&workers| chunks.iter().map(move |&chunk| (workers, chunk)))
        .map(|(workers, chunk)| Measured {
            workers,
            chunk,
            rates: Vec::new(),
        })
        .collect();
    // In turns, so that a slow minute of the disk is everybody's.
    for round in 0..args.repeat {
        let start = round as f64 / args.repeat as f64;
        for setting in &mut measured {
            setting
                .rates
                .push(measure(&model, args.seconds, setting, start)?);
        }
    }
    report(args, &model, &mut measured)
}

fn measure(model: &Model, seconds: f64, setting: &Measured, start: f64) -> Result<f64, Failure> {
    let time = Duration::from_secs_f64(seconds);
    let (chunk, workers) = (setting.chunk, setting.workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s() / 1e9)
}

fn report(args: &BenchLinkArgs, model: &Model, measured: &mut [Measured]) -> Result<(), Failure> {
    let origin = model.weights.origin().describe();
    if args.json {
        let rows: Vec<_> = measured
            .iter_mut()
            .map(|m| {
                json!({
                    "workers": m.workers, "chunk_bytes": m.chunk,
                    "gb_per_s": median(&mut m.rates), "all_gb_per_s": m.rates,
                })
            })
            .collect();
        return say_json(&json!({
            "model": model.name, "device": args.device, "source": origin,
            "seconds": args.seconds, "link": rows,
        }));
    }
    let rows: Vec<Vec<String>> = measured
        .iter_mut()
        .map(|m| {
            let middle = median(&mut m.rates);
            let most = m.rates.last().copied().unwrap_or(0.0);
            vec![
                m.workers.to_string(),
                binary(m.chunk),
                format!("{middle:.2} GB/s"),
                format!("{:.2} to {most:.2}", m.rates[0]),
            ]
        })
        .collect();
    say(&format!(
        "{} from {origin}\n{}",
        model.name,
        table(&["workers", "chunk", "median", "range"], &rows)
    ))
}

/// Chunks are powers of two, and read best as such.
fn binary(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => Size(b).to_string(),
    }
}
