//! The metrics of a run: names, units and direction.

use super::run::RunRecord;

/// Direction in which a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Higher values are better.
    Higher,
    /// Lower values are better.
    Lower,
    /// The metric describes the workload and has no better direction.
    Neither,
}

/// A metric of a run.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric in the result file.
    pub key: &'static str,
    /// Title of the metric in reports.
    pub title: &'static str,
    /// Unit of the metric; `share` is shown in percent.
    pub unit: &'static str,
    /// Direction in which the metric improves.
    pub better: Better,
    get: fn(&RunRecord) -> Option<f64>,
}

impl Metric {
    /// Returns the value that a run measured.
    pub fn of(&self, run: &RunRecord) -> Option<f64> {
        (self.get)(run)
    }
}

/// Finds a metric by its name in the result file.
pub fn metric(key: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.key == key)
}

macro_rules! metrics {
    ($($field:ident, $title:literal, $unit:literal, $better:ident;)*) => {
        &[$(Metric {
            key: stringify!($field),
            title: $title,
            unit: $unit,
            better: Better::$better,
            get: |run| run.$field.number(),
        }),*]
    };
}

/// All metrics, in the order in which reports show them.
pub const METRICS: &[Metric] = metrics! {
    total_time_ms, "whole run", "ms", Lower;
    first_token_ms, "first token", "ms", Lower;
    per_token_ms, "time per token", "ms", Lower;
    effective_bandwidth_gbps, "effective bandwidth", "GB/s", Higher;
    link_gbps, "link throughput", "GB/s", Higher;
    link_share, "share of the link", "share", Higher;
    stall_ms, "stalled on weights", "ms", Lower;
    vram_used_mb, "device memory", "MB", Lower;
    model_size_gb, "weights", "GB", Neither;
    passes, "passes", "", Neither;
    tokens, "tokens", "", Neither;
    logit_norm, "logit difference (norm)", "", Lower;
    sessions, "sessions", "", Neither;
    sessions_completed, "sessions completed", "", Higher;
    kv_demand_gb, "KV cache demand", "GB", Neither;
    paged_out_gb, "KV paged out", "GB", Neither;
    paged_back_gb, "KV paged in", "GB", Neither;
    resume_p50_ms, "resume to next token, p50", "ms", Lower;
    resume_p99_ms, "resume to next token, p99", "ms", Lower;
    output_change, "logit change", "share", Neither;
    tokens_changed, "tokens changed", "share", Neither;
    overhead, "steering overhead", "share", Lower;
};

/// Conversion of a field of a run to a number, if it was measured.
trait MetricValue {
    fn number(&self) -> Option<f64>;
}

impl MetricValue for f64 {
    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl MetricValue for Option<f64> {
    fn number(&self) -> Option<f64> {
        *self
    }
}

impl MetricValue for Option<u64> {
    fn number(&self) -> Option<f64> {
        self.map(|count| count as f64)
    }
}
