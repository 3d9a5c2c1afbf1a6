//! The checks of a result. They use the runs only; the stored summary is itself checked against the runs.

use super::{
    file::{Baseline, Experiment, ResultFile},
    judgement::{CheckKind, Judgement},
    metrics::METRICS,
    run::RunRecord,
    summary::{Outcome, Summary},
    targets,
};

/// Largest accepted norm of the difference between the logits and those of the reference run.
pub const NORM_LIMIT: f64 = 0.1;

/// Computes the summary of a result: statistics of its runs, and all checks.
pub fn summarize(result: &ResultFile) -> Summary {
    let checks: Vec<_> = judge(result).into_iter().map(|one| one.check).collect();
    let pass = checks.iter().all(|check| check.outcome != Outcome::Fail);
    Summary {
        checks,
        pass,
        ..Summary::of_runs(&result.runs)
    }
}

/// Runs all checks of a result: first the correctness of the computation, then the targets.
pub fn judge(result: &ResultFile) -> Vec<Judgement> {
    let summary = Summary::of_runs(&result.runs);
    let mut checks = vec![runs_measured(result)];
    checks.extend(finite_numbers(result));
    checks.extend(correctness(result));
    checks.extend(other_runs(result));
    checks.extend(weights_streamed(result));
    checks.extend(pages_moved(result));
    checks.extend(within_budget(result));
    let reached = |target| targets::reached(result, &summary, target);
    checks.extend(result.targets.iter().flat_map(reached));
    checks.extend(consistent_summary(result, &summary));
    checks
}

fn runs_measured(result: &ResultFile) -> Judgement {
    let (kind, name) = (CheckKind::RunsMeasured, "runs were measured");
    let is_invalid = |run: &&RunRecord| !(run.total_time_ms.is_finite() && run.total_time_ms > 0.0);
    match result.runs.iter().find(is_invalid) {
        Some(run) => {
            let found = format!("run {} took {} ms", run.run_id, run.total_time_ms);
            Judgement::failed_run(kind, name, run.run_id, found)
        }
        None => {
            let count = result.runs.len();
            Judgement::new(kind, name, count > 0, format!("{count} measured"))
        }
    }
}

/// Fails if a number is infinite or NaN. Statistics skip such numbers, so they must not go unnoticed.
fn finite_numbers(result: &ResultFile) -> Option<Judgement> {
    let invalid = |run: &RunRecord| {
        let numbers = METRICS
            .iter()
            .find(|metric| metric.of(run).is_some_and(|value| !value.is_finite()));
        let points = run
            .points
            .iter()
            .find(|point| !(point.x.is_finite() && point.ms.is_finite()));
        let name = numbers.map(|metric| metric.key.to_owned());
        name.or(points.map(|point| point.series.clone()))
            .map(|name| (run.run_id, name))
    };
    let (run, name) = result.runs.iter().find_map(invalid)?;
    Some(Judgement::failed_run(
        CheckKind::FiniteNumbers,
        "all numbers are finite",
        run,
        format!("run {run}: {name} is not finite"),
    ))
}

/// The correctness checks of each experiment.
fn correctness(result: &ResultFile) -> Vec<Judgement> {
    use Experiment::{Agents, MemoryPressure, ResumeLatency, Steering, VirtualMemory};
    match result.experiment {
        VirtualMemory | Steering => vec![logits(result), tokens(result)],
        MemoryPressure | Agents => vec![sessions(result), tokens(result)],
        ResumeLatency => vec![tokens(result)],
    }
}

fn logits(result: &ResultFile) -> Judgement {
    let kind = CheckKind::Logits;
    let name = format!("logits match the reference (norm below {NORM_LIMIT})");
    let near = |norm: f64| (0.0..NORM_LIMIT).contains(&norm);
    let bad =
        |run: &&RunRecord| !run.logit_norm.is_some_and(near) || run.logit_match == Some(false);
    if let Some(run) = result.runs.iter().find(bad) {
        let number = run.run_id;
        let found = match run.logit_norm {
            Some(norm) if near(norm) => format!("run {number}: recorded as not matching"),
            Some(norm) => format!("run {number}: norm {norm}"),
            None => format!("run {number} was not compared"),
        };
        return Judgement::failed_run(kind, name, number, found);
    }
    let norms = result.runs.iter().filter_map(|run| run.logit_norm);
    let largest = norms.fold(0.0, f64::max);
    Judgement::new(kind, name, true, format!("norm at most {largest}"))
}

fn tokens(result: &ResultFile) -> Judgement {
    let (kind, name) = (CheckKind::Tokens, "tokens match the reference");
    let differs = |run: &&RunRecord| run.tokens_match != Some(true);
    let Some(run) = result.runs.iter().find(differs) else {
        return Judgement::new(kind, name, true, "all equal");
    };
    let found = match run.tokens_match {
        Some(_) => format!("run {}: tokens differ", run.run_id),
        None => format!("run {} was not compared", run.run_id),
    };
    Judgement::failed_run(kind, name, run.run_id, found)
}

fn sessions(result: &ResultFile) -> Judgement {
    let (kind, name) = (CheckKind::SessionsCompleted, "every session completed");
    let lost = |run: &&RunRecord| {
        let started = run.sessions.filter(|count| *count > 0);
        started.is_none() || run.sessions_completed != started
    };
    if let Some(run) = result.runs.iter().find(lost) {
        let (done, started) = (
            run.sessions_completed.unwrap_or(0),
            run.sessions.unwrap_or(0),
        );
        let why = run.failures.first().map(|why| format!(": {why}"));
        let why = why.unwrap_or_default();
        let found = format!("run {}: {done} of {started}{why}", run.run_id);
        return Judgement::failed_run(kind, name, run.run_id, found);
    }
    let all: u64 = result.runs.iter().filter_map(|run| run.sessions).sum();
    Judgement::new(kind, name, true, format!("{all} of {all}, in all runs"))
}

/// Fails if a Djinn baseline or a warm-up run computed other logits or tokens than the reference.
fn other_runs(result: &ResultFile) -> Option<Judgement> {
    let wrong =
        |run: &&RunRecord| run.tokens_match == Some(false) || run.logit_match == Some(false);
    let is_djinn = |baseline: &&Baseline| {
        let names = ["ring_buffer", "djinn"];
        names.iter().any(|name| baseline.baseline.starts_with(name))
    };
    let mut all = vec![("warm-up", result.warmup.iter().find(wrong))];
    for baseline in result.baselines.iter().filter(is_djinn) {
        let mut runs = baseline.runs.iter().chain(&baseline.warmup);
        all.push((&baseline.baseline, runs.find(wrong)));
    }
    let (who, run) = all
        .into_iter()
        .find_map(|(who, run)| Some((who, run?.run_id)))?;
    Some(Judgement::failed_run(
        CheckKind::OtherRuns,
        "Djinn's other runs compute the same",
        run,
        format!("{who}, run {run}: logits or tokens differ"),
    ))
}

/// Fails if a model that exceeds the memory budget ran without streaming: the experiment then did not
/// test what it claims.
fn weights_streamed(result: &ResultFile) -> Option<Judgement> {
    let budget_gb = result.budget_mb? / 1e3;
    let exceeds = |run: &RunRecord| run.model_size_gb.is_some_and(|size| size > budget_gb);
    let is_about_weights = result.experiment == Experiment::VirtualMemory;
    if !is_about_weights || !result.runs.iter().any(exceeds) {
        return None;
    }
    let (kind, name) = (CheckKind::WeightsStreamed, "weights streamed in every run");
    let resident = |run: &&RunRecord| !run.link_gbps.is_some_and(|rate| rate > 0.0);
    Some(match result.runs.iter().find(resident) {
        Some(run) => {
            let found = format!("run {}: no weights crossed the link", run.run_id);
            Judgement::failed_run(kind, name, run.run_id, found)
        }
        None => {
            let rates = result.runs.iter().filter_map(|run| run.link_gbps);
            let least = rates.fold(f64::INFINITY, f64::min);
            Judgement::new(kind, name, true, format!("at least {least:.3} GB/s"))
        }
    })
}

/// Fails if the KV cache of all sessions exceeded the memory budget, but no pages moved.
fn pages_moved(result: &ResultFile) -> Option<Judgement> {
    let budget_gb = result.budget_mb? / 1e3;
    let exceeds = |run: &RunRecord| {
        let demand = run.model_size_gb.unwrap_or(0.0) + run.kv_demand_gb.unwrap_or(0.0);
        demand > budget_gb
    };
    let is_about_kv = result.experiment == Experiment::MemoryPressure;
    if !is_about_kv || !result.runs.iter().any(exceeds) {
        return None;
    }
    let (kind, name) = (CheckKind::PagesMoved, "KV pages moved in every run");
    let some = |gb: Option<f64>| gb.is_some_and(|gb| gb > 0.0);
    let still = |run: &&RunRecord| !(some(run.paged_out_gb) && some(run.paged_back_gb));
    Some(match result.runs.iter().find(still) {
        Some(run) => {
            let gb = |gb: Option<f64>| gb.unwrap_or(0.0);
            let found = format!(
                "run {}: {} GB out, {} GB back",
                run.run_id,
                gb(run.paged_out_gb),
                gb(run.paged_back_gb)
            );
            Judgement::failed_run(kind, name, run.run_id, found)
        }
        None => {
            let least = |gb: fn(&RunRecord) -> Option<f64>| {
                let all = result.runs.iter().filter_map(gb);
                all.fold(f64::INFINITY, f64::min)
            };
            let (out, back) = (
                least(|run| run.paged_out_gb),
                least(|run| run.paged_back_gb),
            );
            let found = format!("at least {out:.3} GB out, {back:.3} GB back");
            Judgement::new(kind, name, true, found)
        }
    })
}

fn within_budget(result: &ResultFile) -> Option<Judgement> {
    let budget = result.budget_mb?;
    let (kind, name) = (
        CheckKind::MemoryBudget,
        format!("device memory within {budget:.0} MB"),
    );
    let of_runs = result.runs.iter().filter_map(|run| run.vram_used_mb);
    let over_time = result.memory.iter().map(|sample| sample.used_mb);
    // Zero means that the system reports no number, not that no memory is in use.
    let known = of_runs.chain(over_time).filter(|used| *used > 0.0);
    let used = known.fold(f64::NAN, f64::max);
    Some(match used.is_nan() {
        true => Judgement::not_judged(kind, name, "memory was not measured"),
        false => Judgement::new(kind, name, used <= budget, format!("{used:.0} MB at most")),
    })
}

/// Fails if a stored summary, of the result or of a baseline, disagrees with the stored runs.
fn consistent_summary(result: &ResultFile, summary: &Summary) -> Option<Judgement> {
    let of_baselines = result.baselines.iter().find_map(|baseline| {
        let computed = Summary::of_runs(&baseline.runs);
        let what = baseline.summary.first_difference(&computed)?;
        Some(format!("{what} of {}", baseline.baseline))
    });
    let what = result.summary.first_difference(summary).or(of_baselines)?;
    Some(Judgement::new(
        CheckKind::Summary,
        "the summary agrees with the runs",
        false,
        format!("the stored {what} differs from the value computed from the runs"),
    ))
}
