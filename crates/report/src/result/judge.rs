//! What runs come to. From the runs alone: what a file says of itself is a check of its own.

use std::collections::BTreeMap;

use super::{
    Baseline, Check, Experiment, METRICS, Outcome, PointStats, ResultFile, Run, Stats, Status,
    Summary, targets::reached,
};

/// How far logits in f16 may be from the reference's.
pub const NORM_LIMIT: f64 = 0.1;

/// Sums up the runs of a result, with its checks.
pub fn summarize(result: &ResultFile) -> Summary {
    let checks = judge(result);
    let pass = checks.iter().all(|check| check.outcome != Outcome::Fail);
    Summary {
        checks,
        pass,
        ..of_runs(&result.runs)
    }
}

impl Baseline {
    /// Sums up its runs.
    pub fn sum_up(&mut self) {
        self.summary = Summary {
            pass: self.status == Status::Ran,
            ..of_runs(&self.runs)
        };
    }
}

/// Numbers and points of runs, without checks.
pub fn of_runs(runs: &[Run]) -> Summary {
    let of = |metric: &super::Metric| {
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

/// Points of all runs, each with those of its series and place.
fn points(runs: &[Run]) -> Vec<PointStats> {
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

/// Everything that is looked at: whether what was computed is right, then what was to be reached.
pub fn judge(result: &ResultFile) -> Vec<Check> {
    let summary = of_runs(&result.runs);
    let mut checks = vec![ran(result)];
    checks.extend(finite(result));
    checks.extend(right(result));
    checks.extend(others_too(result));
    checks.extend(within_budget(result));
    let told = |target| reached(result, &summary, target);
    checks.extend(result.targets.iter().flat_map(told));
    checks.extend(says_so(result, &summary));
    checks
}

/// A check that passed or failed.
pub fn check(name: impl Into<String>, pass: bool, found: impl Into<String>) -> Check {
    Check {
        name: name.into(),
        outcome: Outcome::of(pass),
        found: found.into(),
    }
}

fn ran(result: &ResultFile) -> Check {
    let count = result.runs.len();
    let odd = result.runs.iter().find(|run| {
        let sane = run.total_time_ms.is_finite() && run.total_time_ms > 0.0;
        !sane
    });
    match odd {
        Some(run) => {
            let found = format!("run {} took {} ms", run.run_id, run.total_time_ms);
            check("runs were measured", false, found)
        }
        None => check("runs were measured", count > 0, format!("{count} measured")),
    }
}

/// Whether every number is one. Such a number is left out of sums, and must not be left out unseen.
fn finite(result: &ResultFile) -> Option<Check> {
    let odd = |run: &Run| {
        let numbers = METRICS
            .iter()
            .find(|metric| metric.of(run).is_some_and(|value| !value.is_finite()));
        let points = run
            .points
            .iter()
            .find(|point| !(point.x.is_finite() && point.ms.is_finite()));
        let name = numbers.map(|metric| metric.key.to_owned());
        name.or(points.map(|point| point.series.clone()))
            .map(|name| format!("run {}: {name}", run.run_id))
    };
    let found = result.runs.iter().find_map(odd)?;
    Some(check("every number is one", false, found))
}

/// Whether what was computed is what had to be.
fn right(result: &ResultFile) -> Vec<Check> {
    use Experiment::{Agents, MemoryPressure, ResumeLatency, Steering, VirtualMemory};
    match result.experiment {
        VirtualMemory | Steering => vec![logits(result), tokens(result)],
        MemoryPressure | Agents => vec![sessions(result), tokens(result)],
        ResumeLatency => vec![tokens(result)],
    }
}

/// Every run's logits are as the reference's.
fn logits(result: &ResultFile) -> Check {
    let name = format!("logits are the reference's (norm below {NORM_LIMIT})");
    let near = |norm: f64| (0.0..NORM_LIMIT).contains(&norm);
    let bad = |run: &&Run| !run.logit_norm.is_some_and(near) || run.logit_match == Some(false);
    if let Some(run) = result.runs.iter().find(bad) {
        let found = match run.logit_norm {
            Some(norm) if near(norm) => format!("run {}: said not to match", run.run_id),
            Some(norm) => format!("run {}: norm {norm}", run.run_id),
            None => format!("run {} was not compared", run.run_id),
        };
        return check(name, false, found);
    }
    let norms = result.runs.iter().filter_map(|run| run.logit_norm);
    let largest = norms.fold(0.0, f64::max);
    check(name, true, format!("norm at most {largest}"))
}

/// Whoever was compared with the reference came to the same: Djinn's other ways, and runs that warm up.
fn others_too(result: &ResultFile) -> Option<Check> {
    let wrong = |run: &&Run| run.tokens_match == Some(false) || run.logit_match == Some(false);
    let ours = |baseline: &&Baseline| {
        let names = ["ring_buffer", "djinn"];
        names.iter().any(|name| baseline.baseline.starts_with(name))
    };
    let mut all = vec![("a warm-up", result.warmup.iter().find(wrong))];
    for baseline in result.baselines.iter().filter(ours) {
        let mut runs = baseline.runs.iter().chain(&baseline.warmup);
        all.push((&baseline.baseline, runs.find(wrong)));
    }
    let (who, run) = all.into_iter().find(|(_, run)| run.is_some())?;
    let number = run.map_or(0, |run| run.run_id);
    let found = format!("{who}, run {number}: other logits or tokens");
    Some(check("Djinn's other runs compute the same", false, found))
}

fn tokens(result: &ResultFile) -> Check {
    let name = "tokens are the reference's";
    match result
        .runs
        .iter()
        .find(|run| run.tokens_match != Some(true))
    {
        Some(run) => {
            let found = match run.tokens_match {
                Some(_) => format!("run {}: other tokens", run.run_id),
                None => format!("run {} was not compared", run.run_id),
            };
            check(name, false, found)
        }
        None => check(name, true, "all equal"),
    }
}

fn sessions(result: &ResultFile) -> Check {
    let name = "every session came to its end";
    let lost = |run: &&Run| {
        let begun = run.sessions.filter(|count| *count > 0);
        begun.is_none() || run.sessions_completed != begun
    };
    if let Some(run) = result.runs.iter().find(lost) {
        let (done, begun) = (
            run.sessions_completed.unwrap_or(0),
            run.sessions.unwrap_or(0),
        );
        let why = run.failures.first().map(|why| format!(": {why}"));
        let found = format!(
            "run {}: {done} of {begun}{}",
            run.run_id,
            why.unwrap_or_default()
        );
        return check(name, false, found);
    }
    let all: u64 = result.runs.iter().filter_map(|run| run.sessions).sum();
    check(name, true, format!("{all} of {all}, in all runs"))
}

fn within_budget(result: &ResultFile) -> Option<Check> {
    let budget = result.budget_mb?;
    let name = format!("device memory within {budget:.0} MB");
    let of_runs = result.runs.iter().filter_map(|run| run.vram_used_mb);
    let over_time = result.memory.iter().map(|sample| sample.used_mb);
    // Where the system says nothing, nothing is said, and not that nothing is used.
    let told = of_runs.chain(over_time).filter(|used| *used > 0.0);
    let used = told.fold(f64::NAN, f64::max);
    if used.is_nan() {
        return Some(Check {
            name,
            outcome: Outcome::NotJudged,
            found: "memory was not measured".to_owned(),
        });
    }
    let pass = used <= budget;
    Some(check(name, pass, format!("{used:.0} MB at most")))
}

/// What a file says of itself and of baselines, where it says anything: that has to be what runs come to.
fn says_so(result: &ResultFile, summary: &Summary) -> Option<Check> {
    let theirs = result.baselines.iter().find_map(|baseline| {
        let what = differs(&baseline.summary, &of_runs(&baseline.runs))?;
        Some(format!("{what} of {}", baseline.baseline))
    });
    differs(&result.summary, summary).or(theirs).map(|what| {
        let found = format!("its {what} is not what its runs come to");
        check("the summary is of these runs", false, found)
    })
}

/// The first number that is told and not found.
fn differs(told: &Summary, found: &Summary) -> Option<String> {
    let metric = |(key, stats): (&String, &Stats)| {
        let there = found.metrics.get(key);
        let same = there.is_some_and(|found| agree(found, stats));
        (!same).then(|| key.clone())
    };
    let point = |point: &PointStats| {
        let of = |other: &&PointStats| other.series == point.series && other.x == point.x;
        let there = found.points.iter().find(of);
        let same = there.is_some_and(|found| agree(&found.ms, &point.ms));
        (!same).then(|| format!("{} at {}", point.series, point.x))
    };
    let mut metrics = told.metrics.iter();
    let mut points = told.points.iter();
    metrics.find_map(metric).or_else(|| points.find_map(point))
}

/// Whether two sums are of the same runs, but for the last digits.
fn agree(a: &Stats, b: &Stats) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9);
    // A deviation is the difference of large numbers: it is as exact as these are.
    let size = a.max.abs().max(a.min.abs());
    a.count == b.count
        && near(a.mean, b.mean)
        && near(a.median, b.median)
        && near(a.min, b.min)
        && near(a.max, b.max)
        && (a.std - b.std).abs() <= 1e-6 * size.max(1e-9)
}
