//! `djinn bench memory`

use djinn_device::host;
use serde_json::json;

use super::rates;
use crate::{
    args::{BenchMemoryArgs, DeviceArgs},
    failure::{Failure, say, say_json},
    style::table,
};

/// The least worth reading: caches hold less.
const LEAST: u64 = 1 << 28;

/// Read bandwidth, by number of threads.
pub fn memory(args: &BenchMemoryArgs) -> Result<(), Failure> {
    let most = args.device.threads.unwrap_or_else(host::cores);
    if args.size.0 < LEAST {
        return Err(Failure::Message(format!(
            "--size {}: at least 256MiB, or caches are measured instead of memory",
            args.size
        )));
    }
    let with = |threads| DeviceArgs {
        threads: Some(threads),
        ..args.device.clone()
    };
    // The most first: if that cannot be had, nothing need be measured.
    let mut measured = (1..=most)
        .rev()
        .map(|threads| Ok((threads, rates::memory(&with(threads), args.size.0)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    measured.reverse();
    if args.json {
        let rows: Vec<_> = measured
            .iter()
            .map(|(threads, rate)| json!({ "threads": threads, "read_gb_per_s": rate }))
            .collect();
        return say_json(&json!({ "size_bytes": args.size.0, "memory": rows }));
    }
    let rows: Vec<Vec<String>> = measured
        .iter()
        .map(|(threads, rate)| vec![threads.to_string(), format!("{rate:.1} GB/s")])
        .collect();
    say(&table(&["threads", "read"], &rows))
}
