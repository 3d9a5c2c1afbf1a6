//! `djinn bench link`

use std::time::Duration;

use djinn_memory::Size;
use djinn_model::Model;
use djinn_types::IO_BLOCK;
use djinn_weights::{MemorySettings, measure_link};
use serde_json::{Value, json};

use super::{card_link, median};
use crate::{
    args::{BenchLinkArgs, Chosen, DeviceName},
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

/// How long files are read for each measurement.
const SECONDS: f64 = 1.0;

/// How fast weights can come.
pub fn link(args: &BenchLinkArgs) -> Result<(), Failure> {
    let of_files = args.model.is_some() || args.workers.is_some() || args.seconds.is_some();
    let device = match args.device {
        DeviceName::Auto if of_files => DeviceName::Cpu,
        device => device,
    };
    let chosen = device.choose(None)?;
    match chosen.backend.card() {
        None => files(args, &chosen),
        Some(_) if of_files => Err(Failure::Message(format!(
            "--model, --workers and --seconds are of files, which a card's link has no part in: \
             leave them out, or measure files with --device cpu instead of {device}"
        ))),
        Some(card) => card_link::card_link(args, card),
    }
}

/// Whether a rate is what was wanted, as the last line of a report tells it.
pub fn verdict(rate: f64, threshold: f64, what: &str) -> (bool, String) {
    let passed = rate >= threshold;
    let word = if passed { "PASS" } else { "FAIL" };
    let line = format!("{word}: {rate:.2} GB/s {what}, at least {threshold} wanted");
    (passed, line)
}

/// Prints a report, and says whether the best rate was what was wanted.
pub fn conclude(
    args: &BenchLinkArgs,
    mut json: Value,
    text: &str,
    best: f64,
    what: &str,
) -> Result<(), Failure> {
    let verdict = args.threshold.map(|t| (t, verdict(best, t, what)));
    if let Some((threshold, (passed, _))) = &verdict {
        json["threshold_gb_per_s"] = json!(threshold);
        json["passed"] = json!(passed);
    }
    if args.json {
        say_json(&json)?;
    } else {
        say(text)?;
    }
    match verdict {
        None => Ok(()),
        Some((_, (true, _))) if args.json => Ok(()),
        Some((_, (false, line))) if args.json => Err(Failure::Message(line)),
        Some((_, (passed, line))) => {
            say(&format!("{line}\n"))?;
            if passed { Ok(()) } else { Err(Failure::Told) }
        }
    }
}

/// How fast a model's files are read.
fn files(args: &BenchLinkArgs, chosen: &Chosen) -> Result<(), Failure> {
    let model = bundled::open(args.model.as_deref())?;
    if args
        .workers
        .is_some_and(|n| n > MemorySettings::WORKERS_MAX)
    {
        let most = MemorySettings::WORKERS_MAX;
        return Err(Failure::Message(format!("--workers: at most {most}")));
    }
    let workers = args.workers.map_or(WORKERS.to_vec(), |n| vec![n]);
    // Chunks are whole blocks, and no longer than a file.
    let longest = model.weights.files().into_iter().max().unwrap_or(0);
    let settled = |chunk: u64| chunk.clamp(1, longest.max(1)).next_multiple_of(IO_BLOCK);
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
    let seconds = args.seconds.unwrap_or(SECONDS);
    // In turns, so that a slow minute of the disk is everybody's.
    for round in 0..args.repeat {
        let start = round as f64 / args.repeat as f64;
        for setting in &mut measured {
            setting
                .rates
                .push(measure(&model, seconds, setting, start)?);
        }
    }
    chosen.say();
    report(args, &model, seconds, &mut measured)
}

fn measure(model: &Model, seconds: f64, setting: &Measured, start: f64) -> Result<f64, Failure> {
    let time = Duration::from_secs_f64(seconds);
    let (chunk, workers) = (setting.chunk, setting.workers);
    let rate = measure_link(&*model.weights, chunk, workers, time, start)?;
    Ok(rate.bytes_per_s() / 1e9)
}

fn report(
    args: &BenchLinkArgs,
    model: &Model,
    seconds: f64,
    measured: &mut [Measured],
) -> Result<(), Failure> {
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
    conclude(args, json, &text, best, &format!("from {origin}"))
}

/// From the lowest to the highest of sorted rates.
pub fn range(rates: &[f64]) -> String {
    let (least, most) = (rates.first(), rates.last());
    let of = |rate: Option<&f64>| rate.copied().unwrap_or(0.0);
    format!("{:.2} to {:.2}", of(least), of(most))
}

/// Chunks are powers of two, and read best as such.
pub fn binary(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => Size(b).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{binary, range, verdict};

    #[test]
    fn verdicts() {
        let (passed, line) = verdict(55.312, 20.0, "in");
        assert!(passed);
        assert_eq!(line, "PASS: 55.31 GB/s in, at least 20 wanted");
        let (passed, line) = verdict(7.9, 20.5, "in");
        assert!(!passed);
        assert_eq!(line, "FAIL: 7.90 GB/s in, at least 20.5 wanted");
    }

    #[test]
    fn sizes_and_ranges() {
        assert_eq!(binary(4 << 30), "4 GiB");
        assert_eq!(binary(1536 << 20), "1536 MiB");
        assert_eq!(binary(64 << 10), "64 KiB");
        assert_eq!(range(&[1.0, 2.0, 3.5]), "1.00 to 3.50");
    }
}
