//! Benchmark `link` on a card: copies between host memory and the card.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_device::cuda::{Card, Direction, HostMemory, LinkBench, Transfer};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, LinkOptions,
    link_report::{binary, conclude, range},
    sample::median,
};
use djinn_types::text::table;

/// Bytes moved in a measurement, as far as memory allows.
const SIZES: [u64; 3] = [64 << 20, 1 << 30, 4 << 30];
/// Chunk sizes that are measured by default.
const CHUNKS: [u64; 6] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 512 << 20];
/// Smallest chunk: smaller ones measure driver calls, not the link.
const CHUNK_LEAST: u64 = 64 << 10;
/// Most bytes moved from pageable memory, which is slow.
const PAGEABLE_MOST: u64 = 1 << 30;
/// Time of copies before the first measurement, in which an idle card raises its clocks.
const WARM_UP: Duration = Duration::from_millis(300);

const DIRECTIONS: [Direction; 3] = [Direction::In, Direction::Out, Direction::Both];

/// Rates of a transfer in GB/s.
struct TransferRates {
    how: Transfer,
    rates: Vec<f64>,
}

/// Measures how fast bytes are copied to and from a card.
pub fn card_link(
    options: &LinkOptions,
    card: &Arc<Card>,
    progress: &dyn Fn(&str),
) -> Result<BenchReport, BenchError> {
    let most = SIZES.into_iter().max().unwrap_or(0);
    let room = LinkBench::usable_bytes(card, most)?;
    let chunk = options.chunk;
    if chunk.is_some_and(|chunk| !(CHUNK_LEAST..=room / 2).contains(&chunk)) {
        let (least, most) = (binary(CHUNK_LEAST), binary(room / 2));
        return Err(BenchError::Option {
            option: "--chunk",
            limit: format!("from {least} to {most}, half of the bytes moved"),
        });
    }
    let mut measured = settings(room, chunk);
    progress(&format!("pinning {} of host memory", binary(room)));
    let mut bench = LinkBench::new(card, room)?;
    warm_up(&mut bench, measured[0].how)?;
    // Rounds visit every setting, so that a slow minute of the machine affects all of them.
    for round in 1..=options.repeat {
        for setting in &mut measured {
            let how = setting.how;
            progress(&format!(
                "round {round} of {}: {}",
                options.repeat,
                label(how)
            ));
            let seconds = bench.measure(how)?;
            setting.rates.push(how.bytes as f64 / seconds / 1e9);
        }
    }
    Ok(report(options, card, &mut measured))
}

/// Transfers to measure with this much memory.
fn settings(room: u64, chunk: Option<u64>) -> Vec<TransferRates> {
    let mut sizes = SIZES.map(|size| size.min(room)).to_vec();
    sizes.dedup();
    let chunks = chunk.map_or(CHUNKS.to_vec(), |chunk| vec![chunk]);
    let mut all = Vec::new();
    for memory in [HostMemory::Pinned, HostMemory::Pageable] {
        for direction in DIRECTIONS {
            for &bytes in sizes.iter().filter(|&&bytes| fits(memory, bytes)) {
                for &chunk in chunks.iter().filter(|&&c| c <= lane(direction, bytes)) {
                    let how = Transfer {
                        direction,
                        memory,
                        bytes,
                        chunk,
                    };
                    let rates = Vec::new();
                    all.push(TransferRates { how, rates });
                }
            }
        }
    }
    all
}

fn fits(memory: HostMemory, bytes: u64) -> bool {
    memory == HostMemory::Pinned || bytes <= PAGEABLE_MOST
}

/// Bytes copied in each direction.
fn lane(direction: Direction, bytes: u64) -> u64 {
    match direction {
        Direction::In | Direction::Out => bytes,
        Direction::Both => bytes / 2,
    }
}

fn warm_up(bench: &mut LinkBench, how: Transfer) -> Result<(), BenchError> {
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        bench.measure(how)?;
    }
    Ok(())
}

fn direction(how: Transfer) -> &'static str {
    match how.direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Both => "both",
    }
}

fn memory(how: Transfer) -> &'static str {
    match how.memory {
        HostMemory::Pinned => "pinned",
        HostMemory::Pageable => "pageable",
    }
}

fn label(how: Transfer) -> String {
    format!(
        "{}, {}, {} in copies of {}",
        direction(how),
        memory(how),
        binary(how.bytes),
        binary(how.chunk)
    )
}

fn report(options: &LinkOptions, card: &Card, measured: &mut [TransferRates]) -> BenchReport {
    let medians: Vec<f64> = measured.iter_mut().map(|m| median(&mut m.rates)).collect();
    let lines = || measured.iter().zip(&medians);
    let best = |direction: Direction| {
        let of = lines()
            .filter(|(m, _)| m.how.memory == HostMemory::Pinned && m.how.direction == direction);
        of.map(|(_, rate)| *rate).fold(0.0, f64::max)
    };
    let [inwards, outwards, both] = DIRECTIONS.map(best);
    let rows: Vec<Vec<String>> = lines()
        .map(|(m, rate)| {
            vec![
                direction(m.how).to_owned(),
                memory(m.how).to_owned(),
                binary(m.how.bytes),
                binary(m.how.chunk),
                format!("{rate:.1}"),
                range(&m.rates),
            ]
        })
        .collect();
    let list: Vec<Value> = lines()
        .map(|(m, rate)| {
            json!({
                "direction": direction(m.how), "memory": memory(m.how),
                "bytes": m.how.bytes, "chunk_bytes": m.how.chunk,
                "gb_per_s": rate, "all_gb_per_s": m.rates,
            })
        })
        .collect();
    let header = ["direction", "memory", "size", "chunk", "GB/s", "range"];
    let text = format!(
        "{} ({})\n{}the link: {inwards:.1} GB/s in, {outwards:.1} out, {both:.1} both at once\n",
        card.label(),
        card.name(),
        table(&header, &rows)
    );
    let json = json!({
        "device": card.label(), "device_detail": card.name(), "repeat": options.repeat,
        "in_gb_per_s": inwards, "out_gb_per_s": outwards, "both_gb_per_s": both,
        "link": list,
    });
    let what = format!("from pinned memory to {}", card.label());
    conclude(options, json, text, inwards, &what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_fit_in_memory() {
        let all = settings(4 << 30, None);
        let of = |memory, bytes| {
            let there = all
                .iter()
                .filter(|m| m.how.memory == memory && m.how.bytes == bytes);
            there.count()
        };
        assert_eq!(of(HostMemory::Pinned, 64 << 20), 4 + 4 + 3);
        assert_eq!(of(HostMemory::Pinned, 4 << 30), 3 * 6);
        assert_eq!(of(HostMemory::Pageable, 1 << 30), 3 * 6);
        assert_eq!(of(HostMemory::Pageable, 4 << 30), 0);
        let little = settings(32 << 20, None);
        assert!(little.iter().all(|m| m.how.bytes == 32 << 20));
        let one = settings(4 << 30, Some(64 << 20));
        assert!(one.iter().all(|m| m.how.chunk == 64 << 20));
    }
}
