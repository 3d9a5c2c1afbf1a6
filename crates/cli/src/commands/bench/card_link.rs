//! `djinn bench link --device cuda:N`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_device::cuda::{Card, Direction, HostMemory, LinkBench, Transfer};
use serde_json::{Value, json};

use super::{
    link::{binary, conclude, range},
    median,
};
use crate::{args::BenchLinkArgs, failure::Failure, progress::Doing, style::table};

/// Moved in all, where there is room.
const SIZES: [u64; 3] = [64 << 20, 1 << 30, 4 << 30];
/// Moved at a time where nobody says.
const CHUNKS: [u64; 6] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 512 << 20];
/// Less is a matter of the driver's calls, not of the link.
const CHUNK_LEAST: u64 = 64 << 10;
/// Pageable memory is slow: more of it only takes longer.
const PAGEABLE_MOST: u64 = 1 << 30;
/// An idle card takes a moment to wake up.
const WARM_UP: Duration = Duration::from_millis(300);

const DIRECTIONS: [Direction; 3] = [Direction::In, Direction::Out, Direction::Both];

/// A transfer and its rates in GB/s.
struct Measured {
    how: Transfer,
    rates: Vec<f64>,
}

/// How fast bytes reach a card and leave it.
pub fn card_link(args: &BenchLinkArgs, card: &Arc<Card>) -> Result<(), Failure> {
    let most = SIZES.into_iter().max().unwrap_or(0);
    let room = LinkBench::room(card, most)?;
    let chunk = args.chunk.map(|chunk| chunk.0);
    if chunk.is_some_and(|chunk| !(CHUNK_LEAST..=room / 2).contains(&chunk)) {
        return Err(Failure::Message(format!(
            "--chunk: from {} to {}, half of what is moved",
            binary(CHUNK_LEAST),
            binary(room / 2)
        )));
    }
    let mut measured = settings(room, chunk);
    let doing = Doing::new(&format!("pinning {} of host memory", binary(room)));
    let mut bench = LinkBench::new(card, room)?;
    warm_up(&mut bench, measured[0].how)?;
    // In turns, so that a slow minute of the machine is everybody's.
    for round in 1..=args.repeat {
        for setting in &mut measured {
            let how = setting.how;
            doing.now(format!("round {round} of {}: {}", args.repeat, told(how)));
            let seconds = bench.measure(how)?;
            setting.rates.push(how.bytes as f64 / seconds / 1e9);
        }
    }
    drop(doing);
    report(args, card, &mut measured)
}

/// Everything that is measured with so much memory.
fn settings(room: u64, chunk: Option<u64>) -> Vec<Measured> {
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
                    all.push(Measured { how, rates });
                }
            }
        }
    }
    all
}

fn fits(memory: HostMemory, bytes: u64) -> bool {
    memory == HostMemory::Pinned || bytes <= PAGEABLE_MOST
}

/// Bytes that go each way.
fn lane(direction: Direction, bytes: u64) -> u64 {
    match direction {
        Direction::In | Direction::Out => bytes,
        Direction::Both => bytes / 2,
    }
}

fn warm_up(bench: &mut LinkBench, how: Transfer) -> Result<(), Failure> {
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

fn told(how: Transfer) -> String {
    format!(
        "{}, {}, {} in copies of {}",
        direction(how),
        memory(how),
        binary(how.bytes),
        binary(how.chunk)
    )
}

fn report(args: &BenchLinkArgs, card: &Card, measured: &mut [Measured]) -> Result<(), Failure> {
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
        "device": card.label(), "device_detail": card.name(), "repeat": args.repeat,
        "in_gb_per_s": inwards, "out_gb_per_s": outwards, "both_gb_per_s": both,
        "link": list,
    });
    let what = format!("from pinned memory to {}", card.label());
    conclude(args, json, &text, inwards, &what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sweep_has_what_fits() {
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
