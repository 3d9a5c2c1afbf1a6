//! A result file: one experiment with one configuration, ours and its baselines'.

mod environment;
mod judge;
mod metrics;
mod schema;
mod stats;
mod targets;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use environment::Environment;
pub use judge::{NORM_LIMIT, judge, summarize};
pub use metrics::{Better, METRICS, Metric, metric};
pub use schema::schema;
pub use stats::{Stats, percentile};

/// The version of this shape.
pub const VERSION: u32 = 1;

/// What `djinn eval` writes: who ran what, where, how often, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultFile {
    /// The version of this shape: 1.
    pub version: u32,
    /// What was tried.
    pub experiment: Experiment,
    /// What this configuration of it is called.
    pub name: String,
    /// What it is for, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The model: a folder, a hub id or a shape.
    pub model: String,
    /// Which of the contenders `runs` are of.
    pub baseline: String,
    /// When it began, as in RFC 3339.
    pub started: String,
    /// Where it ran.
    pub environment: Environment,
    /// The configuration as it was settled, with what flags said.
    pub settings: BTreeMap<String, Value>,
    /// What of the configuration changed nothing here, and why; and what else a reader should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Memory of the device that was to be enough, in MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_mb: Option<f64>,
    /// What was to be reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// Runs that only warm up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warmup: Vec<Run>,
    /// Runs that were measured.
    pub runs: Vec<Run>,
    /// What the runs come to.
    pub summary: Summary,
    /// The same done otherwise, in the same sitting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
    /// Memory over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemorySample>,
    /// Copies and compute of a run of its own, recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

impl ResultFile {
    /// The model without the folders it lies in, and as a person would write it: `llama-2-13b f16`.
    pub fn short_model(&self) -> String {
        let end = self.model.trim_end_matches('/');
        let name = end.rsplit('/').next().unwrap_or(end);
        name.trim_start_matches("shape:").replace("?dtype=", " ")
    }
}

/// What is tried.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Experiment {
    /// A model larger than the memory it runs in.
    VirtualMemory,
    /// More sessions than memory holds.
    MemoryPressure,
    /// How long a session that stopped takes to go on.
    ResumeLatency,
    /// What a change inside the model does, and costs.
    Steering,
    /// Many agents that think most of the time.
    Agents,
}

impl Experiment {
    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::VirtualMemory => "virtual-memory",
            Experiment::MemoryPressure => "memory-pressure",
            Experiment::ResumeLatency => "resume-latency",
            Experiment::Steering => "steering",
            Experiment::Agents => "agents",
        }
    }
}

/// One run. What does not apply to an experiment is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Its number, from 0.
    pub run_id: u32,
    /// How long all of it took.
    pub total_time_ms: f64,
    /// Weights of the model, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_size_gb: Option<f64>,
    /// Memory of the device at its most, as its driver counts; of a processor, what models compute in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_used_mb: Option<f64>,
    /// Passes through the model: every one needs all weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<u64>,
    /// Tokens generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Weights of the model times passes, over the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_bandwidth_gbps: Option<f64>,
    /// Bytes that really came over the link, over the time in which passes ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// That of what the link gives alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_share: Option<f64>,
    /// How long passes waited for weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_ms: Option<f64>,
    /// From the question to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<f64>,
    /// From one token to the next, half of the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_token_ms: Option<f64>,
    /// Whether the logits are the reference's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_match: Option<bool>,
    /// Length of the difference between the logits and the reference's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_norm: Option<f64>,
    /// Whether the tokens are the reference's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_match: Option<bool>,
    /// Sessions that were begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    /// Sessions that came to their end with all of their tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_completed: Option<u64>,
    /// Why others did not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// KV of all sessions together, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_demand_gb: Option<f64>,
    /// KV that was copied from the device, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paged_out_gb: Option<f64>,
    /// KV that came back, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paged_back_gb: Option<f64>,
    /// From the end of a thought to the next token: half do not take longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_p50_ms: Option<f64>,
    /// 99 % do not take longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_p99_ms: Option<f64>,
    /// Length of the change of the logits, of their length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_change: Option<f64>,
    /// Generated tokens that are others, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_changed: Option<f64>,
    /// How much longer a token takes when the model is changed on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<f64>,
    /// What was measured at several places: layers, or numbers of agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Point>,
}

/// Something measured at one of several places.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// What: `resume`, `resume_from_host`, `p50`; with `_inside` the same as the engine timed it.
    pub series: String,
    /// Where: the layer, or the number of agents.
    pub x: f64,
    /// How long.
    pub ms: f64,
}

/// What runs come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Every number of the runs, by its name there.
    pub metrics: BTreeMap<String, Stats>,
    /// Every point of the runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointStats>,
    /// Mean of `effective_bandwidth_gbps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_bandwidth_gbps: Option<f64>,
    /// Its standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std_bandwidth_gbps: Option<f64>,
    /// Median of `total_time_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_latency_ms: Option<f64>,
    /// What was looked at, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Whether nothing failed.
    pub pass: bool,
}

/// A point of all runs together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PointStats {
    /// What.
    pub series: String,
    /// Where.
    pub x: f64,
    /// How long.
    pub ms: Stats,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What was asked.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As it should be.
    Pass,
    /// Not as it should be.
    Fail,
    /// What it is judged by is not there.
    NotJudged,
}

impl Outcome {
    /// Pass or fail.
    pub fn of(pass: bool) -> Self {
        if pass { Outcome::Pass } else { Outcome::Fail }
    }

    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
            Outcome::NotJudged => "not judged",
        }
    }
}

/// Something to be reached: a number of the runs, at least or at most so much.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// A number of the runs by its name there, or `spread` for how far `total_time_ms` scatters, or the
    /// series of a point.
    pub metric: String,
    /// At every point of the series, unless one is named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<f64>,
    /// No less than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// No more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Of what this baseline came to, where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// The same done otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Its name.
    pub baseline: String,
    /// What it is, for readers, with its version: `accelerate 1.15.0, device_map`.
    pub program: String,
    /// What came of it.
    pub status: Status,
    /// Why it is absent or failed, or where it ran out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it was given: the best that is known for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Value>,
    /// Runs that only warm up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warmup: Vec<Run>,
    /// Runs that were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// What they come to.
    #[serde(default)]
    pub summary: Summary,
    /// Memory over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemorySample>,
}

/// What came of a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It ran to its end.
    Ran,
    /// It is not here.
    Absent,
    /// It ran out of memory, as what it is being compared to must not.
    OutOfMemory,
    /// It broke down.
    Failed,
}

/// Memory at a moment, in MB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySample {
    /// Seconds since the first run began.
    pub t_s: f64,
    /// Of the device, as its driver counts; of a processor, what models compute in.
    pub used_mb: f64,
    /// Of that, KV of sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_mb: Option<f64>,
    /// KV in host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_kv_mb: Option<f64>,
    /// KV on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_kv_mb: Option<f64>,
    /// Sessions that are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
}

/// What happened when, in passes that were recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// In order of time.
    pub spans: Vec<Span>,
}

/// Something that took a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Who was at it.
    pub lane: Lane,
    /// With which part of the model.
    pub name: String,
    /// Since the first span began.
    pub start_ms: f64,
    /// How long.
    pub ms: f64,
    /// Bytes copied; 0 for others.
    pub bytes: u64,
}

/// Who was at it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// Weights over the link.
    Copy,
    /// Operations.
    Compute,
    /// The pass waiting for weights.
    Wait,
}
