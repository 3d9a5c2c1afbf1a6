//! What was to be reached, and whether it was.

use super::{
    Baseline, Check, Outcome, PointStats, ResultFile, Status, Summary, Target,
    judge::{check, of_runs},
};

/// Whether a target was reached: one check, or one for each point it is about.
pub fn reached(result: &ResultFile, summary: &Summary, target: &Target) -> Vec<Check> {
    if let Some(check) = without_grounds(result, summary, target) {
        return vec![check];
    }
    let other = match &target.of {
        None => None,
        Some(name) => {
            // One that ran out of memory came as far as its runs say; one that broke down says nothing.
            let ran = |other: &&Baseline| {
                let counts = matches!(other.status, Status::Ran | Status::OutOfMemory);
                other.baseline == *name && counts && !other.runs.is_empty()
            };
            let Some(other) = result.baselines.iter().find(ran) else {
                return vec![not_judged(target, None, format!("{name} did not run"))];
            };
            Some(of_runs(&other.runs))
        }
    };
    let all = numbers(summary, target);
    let one = |(x, value): (Option<f64>, f64)| {
        let value = match &other {
            None => value,
            Some(other) => {
                let beside = numbers(other, target);
                let beside = beside.iter().find(|(at, _)| *at == x);
                match beside {
                    Some((_, beside)) if *beside != 0.0 => value / beside,
                    _ => {
                        return not_judged(target, x, "the baseline has no such number".to_owned());
                    }
                }
            }
        };
        let above = target.at_least.is_none_or(|least| value >= least);
        let below = target.at_most.is_none_or(|most| value <= most);
        check(said(target, x), above && below, shown(target, value))
    };
    all.into_iter().map(one).collect()
}

/// What is to be said of a target that no number can be held against: that it says nothing, that runs say
/// nothing of it, or that there are too few.
fn without_grounds(result: &ResultFile, summary: &Summary, target: &Target) -> Option<Check> {
    let fails = |found: String| Some(check(said(target, target.x), false, found));
    let (metric, runs) = (&target.metric, result.runs.len() as u64);
    if target.at_least.is_none() && target.at_most.is_none() {
        return fails("it says neither at least nor at most what".to_owned());
    }
    if numbers(summary, target).is_empty() {
        return fails(format!("no run says anything of {metric}"));
    }
    if metric == "spread" && runs < 2 {
        return Some(not_judged(
            target,
            None,
            "a single run does not scatter".to_owned(),
        ));
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
        Some(fewest) if fewest < runs => fails(format!(
            "only {fewest} of {runs} runs say anything of {metric}"
        )),
        _ => None,
    }
}

/// What a target is about: a number, or some at places.
fn numbers(summary: &Summary, target: &Target) -> Vec<(Option<f64>, f64)> {
    if target.metric == "spread" {
        let time = summary.metrics.get("total_time_ms");
        return time.map(|time| (None, time.spread())).into_iter().collect();
    }
    if let Some(stats) = summary.metrics.get(&target.metric) {
        return vec![(None, stats.median)];
    }
    let wanted = |point: &&PointStats| {
        point.series == target.metric && target.x.is_none_or(|x| x == point.x)
    };
    let points = summary.points.iter().filter(wanted);
    points
        .map(|point| (Some(point.x), point.ms.median))
        .collect()
}

fn not_judged(target: &Target, x: Option<f64>, found: String) -> Check {
    Check {
        name: said(target, x),
        outcome: Outcome::NotJudged,
        found,
    }
}

/// A target in words.
fn said(target: &Target, x: Option<f64>) -> String {
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

fn shown(target: &Target, value: f64) -> String {
    match &target.of {
        Some(of) => format!("{value:.3} × {of}"),
        None => format!("{value:.4}"),
    }
}
