//! The measurements of one run, and what was recorded while it ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measurements of one run. Fields that do not apply to an experiment are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// Number of the run, from 0.
    pub run_id: u32,
    /// Duration of the whole run, in milliseconds.
    pub total_time_ms: f64,
    /// Size of the model's weights, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_size_gb: Option<f64>,
    /// Peak device memory in MB, as the driver counts it; on a CPU, the memory of the loaded models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_used_mb: Option<f64>,
    /// Number of passes through the model. Every pass needs all weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<u64>,
    /// Number of tokens generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Size of the weights times the number of passes, divided by the duration of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_bandwidth_gbps: Option<f64>,
    /// Bytes that crossed the link, divided by the time in which passes ran. Absent if no weights streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// `link_gbps` as a share of the rate that the link reaches without compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_share: Option<f64>,
    /// Time for which passes waited for weights, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_ms: Option<f64>,
    /// Time from the request to the first token, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<f64>,
    /// Median time between two tokens, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_token_ms: Option<f64>,
    /// Whether the logits match those of the reference run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_match: Option<bool>,
    /// Euclidean norm of the difference between the logits and those of the reference run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_norm: Option<f64>,
    /// Whether the tokens equal those of the reference run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_match: Option<bool>,
    /// Number of sessions started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    /// Number of sessions that generated all of their tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_completed: Option<u64>,
    /// Error messages of the sessions that did not complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// KV cache of all sessions together at their longest, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_demand_gb: Option<f64>,
    /// KV cache copied from the device to the host, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paged_out_gb: Option<f64>,
    /// KV cache copied from the host back to the device, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paged_back_gb: Option<f64>,
    /// Median time from the end of a pause to the next token, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_p50_ms: Option<f64>,
    /// 99th percentile of the time from the end of a pause to the next token, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_p99_ms: Option<f64>,
    /// Norm of the change that steering makes to the logits, as a share of their norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_change: Option<f64>,
    /// Share of the generated tokens that steering changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_changed: Option<f64>,
    /// Extra time per token that steering costs, as a share of the time without steering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<f64>,
    /// Measurements at several layers or numbers of agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Point>,
}

/// A duration measured at one layer or with one number of agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Name of the series: `resume`, `resume_from_host`, `p50` or `p99`. The suffix `_inside` marks times
    /// taken by the engine.
    pub series: String,
    /// Layer, or number of agents.
    pub x: f64,
    /// Duration in milliseconds.
    pub ms: f64,
}

/// Memory in use at one moment, in MB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySample {
    /// Seconds since the first run began.
    pub t_s: f64,
    /// Device memory in use, as the driver counts it; on a CPU, the memory of the loaded models.
    pub used_mb: f64,
    /// KV cache on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_mb: Option<f64>,
    /// KV cache in host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_kv_mb: Option<f64>,
    /// KV cache on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_kv_mb: Option<f64>,
    /// Number of open sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
}

/// Copies, computation and stalls of the recorded passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PassTimeline {
    /// Spans in order of time.
    pub spans: Vec<TimelineSpan>,
}

/// A period in which the link or the device was busy, or a pass waited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimelineSpan {
    /// Activity of the span.
    pub lane: ActivityLane,
    /// Part of the model that was copied or computed.
    pub name: String,
    /// Start in milliseconds, relative to the first span.
    pub start_ms: f64,
    /// Duration in milliseconds.
    pub ms: f64,
    /// Number of bytes copied; 0 for computation and stalls.
    pub bytes: u64,
}

/// Activity that a span of the timeline shows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ActivityLane {
    /// Weights are copied over the link.
    Copy,
    /// The device computes.
    Compute,
    /// The pass waits for weights.
    Wait,
}
