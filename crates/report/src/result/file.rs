//! The result file: one experiment with one configuration, measured for Djinn and for its baselines.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    environment::RunEnvironment,
    run::{MemorySample, PassTimeline, RunRecord},
    summary::Summary,
};

/// Version of the result file format.
pub const VERSION: u32 = 1;

/// The file that `djinn eval` writes: configuration, environment, measured runs and verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultFile {
    /// Version of the file format: 1.
    pub version: u32,
    /// The experiment that was run.
    pub experiment: Experiment,
    /// Name of the configuration.
    pub name: String,
    /// Purpose of the configuration, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The model: a folder, a hub id or a shape.
    pub model: String,
    /// Name of the contender that `runs` belong to.
    pub baseline: String,
    /// Start time, in RFC 3339 format.
    pub started: String,
    /// Machine and program version of the measurement.
    pub environment: RunEnvironment,
    /// The configuration after command-line flags were applied.
    pub settings: BTreeMap<String, Value>,
    /// Settings that have no effect on this machine, and other remarks for the reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Budget of device memory, in MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_mb: Option<f64>,
    /// Targets that the runs have to reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<MetricTarget>,
    /// Warm-up runs, which do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warmup: Vec<RunRecord>,
    /// Measured runs.
    pub runs: Vec<RunRecord>,
    /// Statistics and verdict of the measured runs.
    pub summary: Summary,
    /// Baselines measured in the same sitting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
    /// Memory over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemorySample>,
    /// Copies and computation of a separate, recorded run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<PassTimeline>,
}

impl ResultFile {
    /// Returns the model's name without folders and in readable form: `llama-2-13b f16`.
    pub fn short_model(&self) -> String {
        let end = self.model.trim_end_matches('/');
        let name = end.rsplit('/').next().unwrap_or(end);
        name.trim_start_matches("shape:").replace("?dtype=", " ")
    }

    /// Returns the title of a plot that shows this result only.
    pub(crate) fn plot_title(&self) -> String {
        match self.name == self.model || self.model.is_empty() {
            true => self.name.clone(),
            false => format!("{} · {}", self.name, self.short_model()),
        }
    }
}

/// An experiment of `djinn eval`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Experiment {
    /// A model that is larger than the memory budget.
    VirtualMemory,
    /// More sessions than device memory holds.
    MemoryPressure,
    /// Time until a session that stopped at a breakpoint resumes.
    ResumeLatency,
    /// Effect and cost of an edit inside the model.
    Steering,
    /// Many agents that pause between turns.
    Agents,
}

impl Experiment {
    /// Returns the name of the experiment on the command line.
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

/// A target for a metric: an upper limit, a lower limit, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricTarget {
    /// Name of a metric of the runs, `spread` for the scatter of `total_time_ms`, or the series of points.
    pub metric: String,
    /// Layer or number of agents to which the target applies; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<f64>,
    /// Lower limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// Upper limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Name of a baseline: the limits are multiples of the value that the baseline reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// Result of one baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Name of the baseline.
    pub baseline: String,
    /// Program and version, for readers: `accelerate 1.15.0, device_map`.
    pub program: String,
    /// Whether the baseline ran.
    pub status: BaselineStatus,
    /// Reason why the baseline is absent, failed or ran out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Settings of the baseline: the best known for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Value>,
    /// Warm-up runs, which do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warmup: Vec<RunRecord>,
    /// Measured runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunRecord>,
    /// Statistics of the measured runs.
    #[serde(default)]
    pub summary: Summary,
    /// Memory over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemorySample>,
}

impl Baseline {
    /// Computes the summary from the measured runs.
    pub fn sum_up(&mut self) {
        self.summary = Summary {
            pass: self.status == BaselineStatus::Ran,
            ..Summary::of_runs(&self.runs)
        };
    }
}

/// Whether a baseline ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BaselineStatus {
    /// The baseline ran to completion.
    Ran,
    /// The baseline is not installed, or does not support this machine.
    Absent,
    /// The baseline ran out of memory.
    OutOfMemory,
    /// The baseline failed for another reason.
    Failed,
}
