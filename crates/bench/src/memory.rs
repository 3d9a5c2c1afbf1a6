//! Benchmark `memory`: bandwidth of the device's memory.

use djinn_device::{Backend, cpu::CpuBackend, host};
use djinn_types::Size;
use djinn_types::text::table;
use serde_json::json;

use crate::{BenchError, BenchReport, rates, sample::BANDWIDTH_BYTES};

/// Least number of bytes to read: caches hold less.
const LEAST: u64 = 1 << 28;

/// Measures a card's memory: bytes read plus written by a copy on the card.
pub fn card_memory(backend: &dyn Backend, device: &str) -> Result<BenchReport, BenchError> {
    let rate = rates::memory(backend, BANDWIDTH_BYTES)?;
    Ok(BenchReport::new(
        format!(
            "{device}\n  memory          {rate:.1} GB/s (bytes read plus written by a copy on the card)\n"
        ),
        json!({ "device": device, "memory_gb_per_s": rate }),
    ))
}

/// Measures a processor's memory with every number of threads up to `threads`.
pub fn processor_memory(
    device: &str,
    threads: Option<usize>,
    size: Option<Size>,
) -> Result<BenchReport, BenchError> {
    let most = threads.unwrap_or_else(host::cores);
    let size = size.unwrap_or(Size(BANDWIDTH_BYTES));
    if size.0 < LEAST {
        let limit = format!("{size} fits in caches; use at least 256MiB");
        return Err(BenchError::Option {
            option: "--size",
            limit,
        });
    }
    let with = |threads| CpuBackend {
        threads: Some(threads),
        isa: None,
    };
    // The largest number of threads comes first, so that too large a number fails at once.
    let mut measured = (1..=most)
        .rev()
        .map(|threads| Ok((threads, rates::memory(&with(threads), size.0)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    measured.reverse();
    let json: Vec<_> = measured
        .iter()
        .map(|(threads, rate)| json!({ "threads": threads, "read_gb_per_s": rate }))
        .collect();
    let rows: Vec<Vec<String>> = measured
        .iter()
        .map(|(threads, rate)| vec![threads.to_string(), format!("{rate:.1} GB/s")])
        .collect();
    Ok(BenchReport::new(
        table(&["threads", "read"], &rows),
        json!({ "device": device, "size_bytes": size.0, "memory": json }),
    ))
}
