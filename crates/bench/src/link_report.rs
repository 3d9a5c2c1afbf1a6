//! Report of the benchmark `link`, shared by files and cards.

use djinn_types::Size;
use serde_json::{Value, json};

use crate::BenchReport;

/// Options of the benchmark `link`.
pub struct LinkOptions {
    /// Threads that read files; several numbers by default.
    pub workers: Option<usize>,
    /// Bytes moved at a time; several sizes by default.
    pub chunk: Option<u64>,
    /// Seconds that files are read for each measurement.
    pub seconds: Option<f64>,
    /// Number of measurements; the median counts.
    pub repeat: usize,
    /// Rate in GB/s below which the benchmark fails.
    pub threshold: Option<f64>,
}

/// Compares a rate with a threshold. Returns whether the rate is high enough, and the last line of a
/// report.
fn verdict(rate: f64, threshold: f64, what: &str) -> (bool, String) {
    let passed = rate >= threshold;
    let word = if passed { "PASS" } else { "FAIL" };
    let line = format!("{word}: {rate:.2} GB/s {what}, at least {threshold} wanted");
    (passed, line)
}

/// Finishes a report with the verdict about its best rate.
pub fn conclude(
    options: &LinkOptions,
    mut json: Value,
    text: String,
    best: f64,
    what: &str,
) -> BenchReport {
    let verdict = options.threshold.map(|t| (t, verdict(best, t, what)));
    if let Some((threshold, (passed, _))) = &verdict {
        json["threshold_gb_per_s"] = json!(threshold);
        json["passed"] = json!(passed);
    }
    BenchReport {
        passed: verdict.as_ref().is_none_or(|(_, (passed, _))| *passed),
        verdict: verdict.map(|(_, (_, line))| line),
        ..BenchReport::new(text, json)
    }
}

/// Lowest and highest of sorted rates.
pub fn range(rates: &[f64]) -> String {
    let (least, most) = (rates.first(), rates.last());
    let of = |rate: Option<&f64>| rate.copied().unwrap_or(0.0);
    format!("{:.2} to {:.2}", of(least), of(most))
}

/// Size with a binary unit where it is a whole number of that unit.
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
