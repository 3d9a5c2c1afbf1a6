//! Statistics of runs, and the outcome of checks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    metrics::{METRICS, Metric},
    run::RunRecord,
    stats::Stats,
};

/// Statistics and verdict of the runs of one contender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Statistics of each metric, by its name in the runs.
    pub metrics: BTreeMap<String, Stats>,
    /// Statistics of each point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointStats>,
    /// Mean of `effective_bandwidth_gbps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_bandwidth_gbps: Option<f64>,
    /// Standard deviation of `effective_bandwidth_gbps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std_bandwidth_gbps: Option<f64>,
    /// Median of `total_time_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_latency_ms: Option<f64>,
    /// Outcome of each check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Whether no check failed.
    pub pass: bool,
}

impl Summary {
    /// Computes the statistics of runs, without checks.
    pub fn of_runs(runs: &[RunRecord]) -> Self {
        let of = |metric: &Metric| {
            let values: Vec<f64> = runs.iter().filter_map(|run| metric.of(run)).collect();
            Some((metric.key.to_owned(), Stats::of(&values)?))
        };
        let metrics: BTreeMap<String, Stats> = METRICS.iter().filter_map(of).collect();
        let bandwidth = metrics.get("effective_bandwidth_gbps");
        Summary {
            points: points(runs),
            avg_bandwidth_gbps: bandwidth.map(|stats| stats.mean),
            std_bandwidth_gbps: bandwidth.map(|stats| stats.std),
            median_latency_ms: bandwidth
                .and(metrics.get("total_time_ms"))
                .map(|stats| stats.median),
            metrics,
            ..Summary::default()
        }
    }

    /// Returns the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        let is_failed = |check: &&Check| check.outcome == Outcome::Fail;
        self.checks.iter().filter(is_failed)
    }

    /// Returns `Pass` if no check failed.
    pub fn verdict(&self) -> Outcome {
        Outcome::of(self.pass)
    }

    /// Returns the first metric or point whose statistics are not those in `computed`.
    pub(super) fn first_difference(&self, computed: &Summary) -> Option<String> {
        let metric = |(key, stats): (&String, &Stats)| {
            let there = computed.metrics.get(key);
            let same = there.is_some_and(|found| found.agrees_with(stats));
            (!same).then(|| key.clone())
        };
        let point = |point: &PointStats| {
            let of = |other: &&PointStats| other.series == point.series && other.x == point.x;
            let there = computed.points.iter().find(of);
            let same = there.is_some_and(|found| found.ms.agrees_with(&point.ms));
            (!same).then(|| format!("{} at {}", point.series, point.x))
        };
        let mut metrics = self.metrics.iter();
        let mut points = self.points.iter();
        metrics.find_map(metric).or_else(|| points.find_map(point))
    }
}

/// Computes the statistics of each series at each layer or number of agents, over all runs.
fn points(runs: &[RunRecord]) -> Vec<PointStats> {
    let mut groups: Vec<(&str, f64, Vec<f64>)> = Vec::new();
    for point in runs.iter().flat_map(|run| &run.points) {
        let same =
            |(series, x, _): &&mut (&str, f64, Vec<f64>)| *series == point.series && *x == point.x;
        match groups.iter_mut().find(same) {
            Some((_, _, values)) => values.push(point.ms),
            None => groups.push((&point.series, point.x, vec![point.ms])),
        }
    }
    let of = |(series, x, values): (&str, f64, Vec<f64>)| {
        let series = series.to_owned();
        let ms = Stats::of(&values)?;
        Some(PointStats { series, x, ms })
    };
    groups.into_iter().filter_map(of).collect()
}

/// Statistics of a point over all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PointStats {
    /// Name of the series.
    pub series: String,
    /// Layer, or number of agents.
    pub x: f64,
    /// Statistics of the duration, in milliseconds.
    pub ms: Stats,
}

/// A check of a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Requirement that was checked.
    pub name: String,
    /// Outcome of the check.
    pub outcome: Outcome,
    /// Value or fact that decided the outcome.
    pub found: String,
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The requirement is met.
    Pass,
    /// The requirement is not met.
    Fail,
    /// The data for a decision is missing.
    NotJudged,
}

impl Outcome {
    /// Returns `Pass` or `Fail`.
    pub fn of(pass: bool) -> Self {
        if pass { Outcome::Pass } else { Outcome::Fail }
    }

    /// Returns the word for the outcome in reports: `PASS`, `FAIL` or `not judged`.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
            Outcome::NotJudged => "not judged",
        }
    }
}
