//! Checks of the targets that a configuration sets.

use super::{
    file::{Baseline, BaselineStatus, MetricTarget, ResultFile},
    judgement::{CheckKind, Judgement},
    summary::{PointStats, Summary},
};

/// Checks a target: one check, or one for each point of a series.
pub fn reached(result: &ResultFile, summary: &Summary, target: &MetricTarget) -> Vec<Judgement> {
    if let Some(check) = undecidable(result, summary, target) {
        return vec![check];
    }
    let baseline = match &target.of {
        None => None,
        Some(name) => {
            // The runs of a baseline that ran out of memory are valid; those of one that failed are not.
            let ran = |other: &&Baseline| {
                use BaselineStatus::{OutOfMemory, Ran};
                let counts = matches!(other.status, Ran | OutOfMemory);
                other.baseline == *name && counts && !other.runs.is_empty()
            };
            let Some(baseline) = result.baselines.iter().find(ran) else {
                return vec![not_judged(target, None, format!("{name} did not run"))];
            };
            Some(Summary::of_runs(&baseline.runs))
        }
    };
    let one = |(x, value): (Option<f64>, f64)| {
        let value = match &baseline {
            None => value,
            Some(baseline) => {
                let theirs = numbers(baseline, target);
                match theirs.iter().find(|(at, _)| *at == x) {
                    Some((_, theirs)) if *theirs != 0.0 => value / theirs,
                    _ => {
                        let metric = &target.metric;
                        let found = format!("the baseline did not measure {metric}");
                        return not_judged(target, x, found);
                    }
                }
            }
        };
        let above = target.at_least.is_none_or(|least| value >= least);
        let below = target.at_most.is_none_or(|most| value <= most);
        let pass = above && below;
        Judgement::new(
            CheckKind::Target,
            described(target, x),
            pass,
            shown(target, value),
        )
    };
    numbers(summary, target).into_iter().map(one).collect()
}

/// Returns the check of a target that cannot be compared with a number: a target without limits, a metric
/// that was not measured, or too few runs.
fn undecidable(result: &ResultFile, summary: &Summary, target: &MetricTarget) -> Option<Judgement> {
    let fails = |found: String| {
        let name = described(target, target.x);
        Some(Judgement::new(CheckKind::Target, name, false, found))
    };
    let (metric, runs) = (&target.metric, result.runs.len() as u64);
    if target.at_least.is_none() && target.at_most.is_none() {
        return fails("the target has neither at_least nor at_most".to_owned());
    }
    if numbers(summary, target).is_empty() {
        return fails(format!("no run measured {metric}"));
    }
    if metric == "spread" && runs < 2 {
        let found = "the spread needs at least two runs".to_owned();
        return Some(not_judged(target, None, found));
    }
    let of_points = summary
        .points
        .iter()
        .filter(|point| point.series == *metric);
    let counts = of_points
        .filter(|point| target.x.is_none_or(|x| x == point.x))
        .map(|point| point.ms.count);
    let fewest = match summary.metrics.get(metric) {
        Some(stats) => Some(stats.count),
        None => counts.min(),
    };
    match fewest {
        Some(fewest) if fewest < runs => {
            fails(format!("only {fewest} of {runs} runs measured {metric}"))
        }
        _ => None,
    }
}

/// Returns the values that a target applies to: one metric, or one value for each point of a series.
fn numbers(summary: &Summary, target: &MetricTarget) -> Vec<(Option<f64>, f64)> {
    if target.metric == "spread" {
        let time = summary.metrics.get("total_time_ms");
        return time.map(|time| (None, time.spread())).into_iter().collect();
    }
    if let Some(stats) = summary.metrics.get(&target.metric) {
        return vec![(None, stats.median)];
    }
    let applies = |point: &&PointStats| {
        point.series == target.metric && target.x.is_none_or(|x| x == point.x)
    };
    let points = summary.points.iter().filter(applies);
    points
        .map(|point| (Some(point.x), point.ms.median))
        .collect()
}

fn not_judged(target: &MetricTarget, x: Option<f64>, found: String) -> Judgement {
    Judgement::not_judged(CheckKind::Target, described(target, x), found)
}

/// Describes a target in words: `per_token_ms at most 1 × hf_accelerate`.
fn described(target: &MetricTarget, x: Option<f64>) -> String {
    let at = x.map_or(String::new(), |x| format!(" at {x}"));
    let of = target
        .of
        .as_ref()
        .map_or(String::new(), |of| format!(" × {of}"));
    let mut limits = Vec::new();
    limits.extend(target.at_least.map(|least| format!("at least {least}{of}")));
    limits.extend(target.at_most.map(|most| format!("at most {most}{of}")));
    format!("{}{at} {}", target.metric, limits.join(" and "))
}

fn shown(target: &MetricTarget, value: f64) -> String {
    match &target.of {
        Some(of) => format!("{value:.3} × {of}"),
        None => format!("{value:.4}"),
    }
}
