//! The numbers of a run: their names, their units, and which way is better.

use super::Run;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More.
    Higher,
    /// Less.
    Lower,
    /// Neither: it says what was done.
    Neither,
}

/// A number of a run.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in the file.
    pub key: &'static str,
    /// What it is, for readers.
    pub title: &'static str,
    /// In what it is counted; `share` is shown in percent.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    get: fn(&Run) -> Option<f64>,
}

impl Metric {
    /// What a run says.
    pub fn of(&self, run: &Run) -> Option<f64> {
        (self.get)(run)
    }
}

/// A metric by its name in the file.
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

/// All of them, in the order they are shown.
pub const METRICS: &[Metric] = metrics! {
    total_time_ms, "whole run", "ms", Lower;
    first_token_ms, "first token", "ms", Lower;
    per_token_ms, "a token", "ms", Lower;
    effective_bandwidth_gbps, "effective bandwidth", "GB/s", Higher;
    link_gbps, "over the link", "GB/s", Higher;
    link_share, "share of the link", "share", Higher;
    stall_ms, "waited for weights", "ms", Lower;
    vram_used_mb, "device memory", "MB", Lower;
    model_size_gb, "weights", "GB", Neither;
    passes, "passes", "", Neither;
    tokens, "tokens", "", Neither;
    logit_norm, "difference of logits", "", Lower;
    sessions, "sessions", "", Neither;
    sessions_completed, "sessions completed", "", Higher;
    kv_demand_gb, "KV of all sessions", "GB", Neither;
    paged_out_gb, "KV paged out", "GB", Neither;
    paged_back_gb, "KV paged back", "GB", Neither;
    resume_p50_ms, "resume to next token, half", "ms", Lower;
    resume_p99_ms, "resume to next token, 99 %", "ms", Lower;
    output_change, "change of the logits", "share", Neither;
    tokens_changed, "tokens that are others", "share", Neither;
    overhead, "added to a token", "share", Lower;
};

/// What a field of a run is as a number, where it is there.
trait Number {
    fn number(&self) -> Option<f64>;
}

impl Number for f64 {
    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Number for Option<f64> {
    fn number(&self) -> Option<f64> {
        *self
    }
}

impl Number for Option<u64> {
    fn number(&self) -> Option<f64> {
        self.map(|count| count as f64)
    }
}
