//! Benchmark `link` on a processor: how fast a model's files are read.

use std::time::Duration;

use djinn_model::Model;
use djinn_types::text::table;
use djinn_types::{IO_BLOCK, Size};
use djinn_weights::{MemorySettings, measure_link};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, LinkOptions,
    link_report::{binary, conclude, range},
    sample::median,
};

/// Numbers of threads that are measured by default.
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Chunk sizes that are measured by default.
const CHUNKS: [u64; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Largest size of all read buffers together.
const MEMORY_MAX: u64 = 1 << 30;

/// Rates in GB/s of one number of threads and one chunk size.
struct FileRates {
    workers: usize,
    chunk: u64,
    rates: Vec<f64>,
}

/// Seconds that files are read for each measurement by default.
const SECONDS: f64 = 1.0;

/// Measures how fast a model's files are read.
pub fn file_link(options: &LinkOptions, model: &Model) -> Result<BenchReport, BenchError> {
    let mut measured = settings(options, model)?;
    let seconds = options.seconds.unwrap_or(SECONDS);
    // Rounds visit every setting, so that a slow minute of the disk affects all of them.
    for round in 0..options.repeat {
        let start = round as f64 / options.repeat as f64;
        for setting in &mut measured {
            setting.rates.push(measure(model, seconds, setting, start)?);
        }
    }
    Ok(report(options, model, seconds, &mut measured))
}

/// Numbers of threads and chunk sizes to measure, without rates yet.
fn settings(options: &LinkOptions, model: &Model) -> Result<Vec<FileRates>, BenchError> {
    if options
        .workers
        .is_some_and(|n| n > MemorySettings::WORKERS_MAX)
    {
        return Err(BenchError::Option {
            option: "--workers",
            limit: format!("at most {}", MemorySettings::WORKERS_MAX),
        });
    }
    let workers = options.workers.map_or(WORKERS.to_vec(), |n| vec![n]);
    // Chunks are whole disk blocks, at most as long as the longest file.
    let longest = model.weights.files().into_iter().max().unwrap_or(0);
    let whole_blocks = |chunk: u64| chunk.clamp(1, longest.max(1)).next_multiple_of(IO_BLOCK);
    let chunks = options.chunk.map_or(CHUNKS.to_vec(), |size| vec![size]);
    let mut chunks: Vec<u64> = chunks.into_iter().map(whole_blocks).collect();
    chunks.dedup();
    let most = workers.iter().max().copied().unwrap_or(1) as u64;
    let longest_chunk = chunks.iter().max().copied().unwrap_or(0);
    let buffers = longest_chunk.saturating_mul(most);
    if buffers > MEMORY_MAX {
        return Err(BenchError::Buffers {
            asked: Size(buffers),
            limit: Size(MEMORY_MAX),
        });
    }
    let settings = workers
        .iter()
        .flat_map(|&workers| chunks.iter().map(move |&chunk| (workers, chunk)))
        .map(|(workers, chunk)| FileRates {
            workers,
            chunk,
            rates: Vec::new(),
        });
    Ok(settings.collect())
}

fn measure(
    model: &Model,
    seconds: f64,
    setting: &FileRates,
    start: f64,
) -> Result<f64, BenchError> {
    let time = Duration::from_secs_f64(seconds);
    let (chunk, workers) = (setting.chunk, setting.workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s() / 1e9)
}

fn report(
    options: &LinkOptions,
    model: &Model,
    seconds: f64,
    measured: &mut [FileRates],
) -> BenchReport {
    let origin = model.weights.origin().describe();
    let medians: Vec<f64> = measured.iter_mut().map(|m| median(&mut m.rates)).collect();
    let both = || measured.iter().zip(&medians);
    let lines: Vec<Value> = both()
        .map(|(m, middle)| {
            json!({
                "workers": m.workers, "chunk_bytes": m.chunk,
                "gb_per_s": middle, "all_gb_per_s": m.rates,
            })
        })
        .collect();
    let json = json!({
        "model": model.name, "device": "cpu", "source": origin,
        "seconds": seconds, "link": lines,
    });
    let rows: Vec<Vec<String>> = both()
        .map(|(m, middle)| {
            vec![
                m.workers.to_string(),
                binary(m.chunk),
                format!("{middle:.2} GB/s"),
                range(&m.rates),
            ]
        })
        .collect();
    let text = format!(
        "{} from {origin}\n{}",
        model.name,
        table(&["workers", "chunk", "median", "range"], &rows)
    );
    let best = medians.iter().copied().fold(0.0, f64::max);
    conclude(options, json, text, best, &format!("from {origin}"))
}
