//! `djinn bench memory`

use djinn_device::{cpu::CpuBackend, host};
use djinn_memory::Size;
use serde_json::json;

use super::{BANDWIDTH_BYTES, rates};
use crate::{
    args::{BenchMemoryArgs, Chosen},
    failure::{Failure, say, say_json},
    style::table,
};

/// The least worth reading: caches hold less.
const LEAST: u64 = 1 << 28;

/// Bandwidth of a device's memory.
pub fn memory(args: &BenchMemoryArgs) -> Result<(), Failure> {
    let chosen = args.device.choose()?;
    match chosen.backend.card() {
        None => of_processor(args, &chosen),
        Some(_) => of_card(args, &chosen),
    }
}

/// Read plus written, by a copy on the card.
fn of_card(args: &BenchMemoryArgs, chosen: &Chosen) -> Result<(), Failure> {
    if args.device.threads.is_some() {
        eprintln!("note: the card computes, so --threads is not used");
    }
    if args.size.is_some() {
        eprintln!("note: a card's memory is measured by copies of 2 GiB, so --size is not used");
    }
    let rate = rates::memory(&*chosen.backend, 0)?;
    if args.json {
        return say_json(&json!({ "device": chosen.to_string(), "memory_gb_per_s": rate }));
    }
    say(&format!(
        "{chosen}\n  memory gives    {rate:.1} GB/s (a copy on the card, read plus written)\n"
    ))
}

/// Read bandwidth, by number of threads.
fn of_processor(args: &BenchMemoryArgs, chosen: &Chosen) -> Result<(), Failure> {
    let most = args.device.threads.unwrap_or_else(host::cores);
    let size = args.size.unwrap_or(Size(BANDWIDTH_BYTES));
    if size.0 < LEAST {
        return Err(Failure::Message(format!(
            "--size {size}: at least 256MiB, or caches are measured instead of memory"
        )));
    }
    let with = |threads| CpuBackend {
        threads: Some(threads),
        isa: None,
    };
    // The most first: if that cannot be had, nothing need be measured.
    let mut measured = (1..=most)
        .rev()
        .map(|threads| Ok((threads, rates::memory(&with(threads), size.0)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    measured.reverse();
    chosen.say();
    if args.json {
        let rows: Vec<_> = measured
            .iter()
            .map(|(threads, rate)| json!({ "threads": threads, "read_gb_per_s": rate }))
            .collect();
        return say_json(
            &json!({ "device": chosen.to_string(), "size_bytes": size.0, "memory": rows }),
        );
    }
    let rows: Vec<Vec<String>> = measured
        .iter()
        .map(|(threads, rate)| vec![threads.to_string(), format!("{rate:.1} GB/s")])
        .collect();
    say(&table(&["threads", "read"], &rows))
}
