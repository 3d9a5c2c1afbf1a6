//! Counters and gauges of an engine at one moment.

use std::{collections::BTreeMap, time::Duration};

use djinn_engine::{KvUsage, MemorySplit, PagingStats, PrefixCacheStats};
use djinn_weights::PassStats;

/// Totals over all passes since the model was loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassTotals {
    /// Number of passes.
    pub passes: u64,
    /// Rows (tokens) that went through the model.
    pub rows: u64,
    /// Tokens generated.
    pub tokens: u64,
    /// Seconds in which passes ran.
    pub busy_s: f64,
    /// Bytes of weights that crossed the link.
    pub link_bytes: u64,
    /// Seconds in which weights were in transfer.
    pub link_s: f64,
    /// Seconds in which passes waited for weights.
    pub stalled_s: f64,
    /// Number of sessions that ended.
    pub ended: u64,
    /// Number of passes that failed.
    pub failed: u64,
    /// Number of times that the model left the device for another one.
    pub swaps: u64,
    /// Number of times that the model was asked to leave the device and could not.
    pub swaps_refused: u64,
}

impl PassTotals {
    /// Adds one pass.
    pub fn add(&mut self, pass: &PassStats) {
        self.passes += 1;
        self.rows += pass.rows as u64;
        self.busy_s += pass.seconds;
        self.link_bytes += pass.link_bytes;
        self.link_s += pass.link_s;
        self.stalled_s += pass.stall_s;
    }
}

/// State of an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineSnapshot {
    /// Totals over all passes.
    pub totals: PassTotals,
    /// KV pages by memory tier.
    pub pages: KvUsage,
    /// Traffic of KV pages between tiers.
    pub paged: PagingStats,
    /// Division of device memory between weights and KV pages.
    pub split: MemorySplit,
    /// Number of sessions by state.
    pub sessions: BTreeMap<&'static str, u64>,
    /// Numbers of the prefix cache.
    pub prefix: PrefixCacheStats,
    /// Number of requests that wait for a free session.
    pub waiting: u64,
    /// Whether the model has given its device memory to others.
    pub is_swapped_out: bool,
}

/// State of a loaded model, for metrics and status streams.
pub struct ModelReading {
    /// Name of the model.
    pub model: String,
    /// State of its engine.
    pub snapshot: EngineSnapshot,
    /// Jobs that wait for the engine thread.
    pub queued_jobs: u64,
    /// Time that the engine thread has spent on its current pass or job.
    pub busy_for: Duration,
    /// Bytes of the ring that weights stream through.
    pub ring_bytes: u64,
    /// Measured bandwidth of the link in bytes per second; 0 if no weights stream.
    pub link_ceiling: f64,
    /// Bytes of a KV page.
    pub page_bytes: u64,
    /// Tokens per KV page.
    pub page_tokens: u64,
}

impl std::fmt::Debug for ModelReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.model)
    }
}
