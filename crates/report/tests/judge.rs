//! The checks of results: valid results pass, and every fault fails the check of its kind.

#![allow(clippy::unwrap_used, missing_docs)]

mod samples;

use djinn_report::{
    Baseline, BaselineStatus, CheckKind, Judgement, MemorySample, MetricTarget, Outcome, Point,
    ResultFile, judge, summarize,
};

/// Returns the first check of a kind.
fn find(kind: CheckKind, checks: &[Judgement]) -> &Judgement {
    let found = checks.iter().find(|one| one.kind == kind);
    found.unwrap_or_else(|| panic!("no check {kind:?} in {checks:?}"))
}

fn target(
    metric: &str,
    at_least: Option<f64>,
    at_most: Option<f64>,
    of: Option<&str>,
) -> MetricTarget {
    let (metric, of) = (metric.to_owned(), of.map(str::to_owned));
    MetricTarget {
        metric,
        x: None,
        at_least,
        at_most,
        of,
    }
}

/// Sets the only target of a result.
fn aim(
    result: &mut ResultFile,
    metric: &str,
    at_least: Option<f64>,
    at_most: Option<f64>,
    of: Option<&str>,
) {
    result.targets = vec![target(metric, at_least, at_most, of)];
}

#[test]
fn valid_results_pass() {
    for result in samples::all() {
        let checks = judge(&result);
        let bad = checks.iter().find(|one| one.check.outcome == Outcome::Fail);
        assert!(bad.is_none(), "{}: {bad:?}", result.name);
        assert!(summarize(&result).pass);
    }
}

/// A change that makes a result invalid.
type Break = fn(&mut ResultFile);
/// Description of a fault, a valid result, the fault, the check that fails, and the run that fails it.
type Case = (
    &'static str,
    fn() -> ResultFile,
    Break,
    CheckKind,
    Option<u32>,
);

const VM: fn() -> ResultFile = || samples::virtual_memory("a", "m", 26.0);
const PRESSURE: fn() -> ResultFile = || samples::memory_pressure("a", 50);
const RESUME: fn() -> ResultFile = || samples::resume_latency("a");
const STEERING: fn() -> ResultFile = || samples::steering("a");
const AGENTS: fn() -> ResultFile = || samples::agents("a");

#[rustfmt::skip]
const INVALID_RUNS: &[Case] = &[
    ("no runs", VM, |r| r.runs.clear(), CheckKind::RunsMeasured, None),
    ("duration zero", VM, |r| r.runs[2].total_time_ms = 0.0, CheckKind::RunsMeasured, Some(2)),
    ("duration NaN", VM, |r| r.runs[2].total_time_ms = f64::NAN, CheckKind::RunsMeasured, Some(2)),
    ("infinite metric", PRESSURE, |r| r.runs[1].resume_p99_ms = Some(f64::INFINITY), CheckKind::FiniteNumbers, Some(1)),
    ("NaN point", RESUME, |r| r.runs[1].points[0].ms = f64::NAN, CheckKind::FiniteNumbers, Some(1)),
    ("other logits", VM, |r| r.runs[1].logit_norm = Some(5.0), CheckKind::Logits, Some(1)),
    ("logits at the limit", VM, |r| r.runs[1].logit_norm = Some(0.1), CheckKind::Logits, Some(1)),
    ("NaN logits", VM, |r| r.runs[1].logit_norm = Some(f64::NAN), CheckKind::Logits, Some(1)),
    ("negative norm", VM, |r| r.runs[1].logit_norm = Some(-1.0), CheckKind::Logits, Some(1)),
    ("logits not compared", VM, |r| r.runs[4].logit_norm = None, CheckKind::Logits, Some(4)),
    ("logits recorded as different", VM, |r| r.runs[0].logit_match = Some(false), CheckKind::Logits, Some(0)),
    ("other steered logits", STEERING, |r| r.runs[0].logit_norm = Some(5.0), CheckKind::Logits, Some(0)),
    ("other tokens", VM, |r| r.runs[3].tokens_match = Some(false), CheckKind::Tokens, Some(3)),
    ("tokens not compared", RESUME, |r| r.runs[3].tokens_match = None, CheckKind::Tokens, Some(3)),
    ("other tokens of agents", AGENTS, |r| r.runs[0].tokens_match = Some(false), CheckKind::Tokens, Some(0)),
    ("a lost session", PRESSURE, |r| r.runs[2].sessions_completed = Some(49), CheckKind::SessionsCompleted, Some(2)),
    ("a session too many", PRESSURE, |r| r.runs[2].sessions_completed = Some(51), CheckKind::SessionsCompleted, Some(2)),
    ("no sessions", PRESSURE, |r| (r.runs[0].sessions, r.runs[0].sessions_completed) = (Some(0), Some(0)), CheckKind::SessionsCompleted, Some(0)),
    ("sessions not counted", AGENTS, |r| r.runs[1].sessions_completed = None, CheckKind::SessionsCompleted, Some(1)),
    ("no weights streamed", VM, |r| r.runs[3].link_gbps = None, CheckKind::WeightsStreamed, Some(3)),
    ("link rate zero", VM, |r| r.runs[0].link_gbps = Some(0.0), CheckKind::WeightsStreamed, Some(0)),
    ("no pages out", PRESSURE, |r| r.runs[1].paged_out_gb = Some(0.0), CheckKind::PagesMoved, Some(1)),
    ("no pages back", PRESSURE, |r| r.runs[1].paged_back_gb = Some(0.0), CheckKind::PagesMoved, Some(1)),
    ("pages not measured", PRESSURE, |r| r.runs[0].paged_back_gb = None, CheckKind::PagesMoved, Some(0)),
    ("other tokens while warming up", VM, |r| {
        r.warmup = vec![r.runs[1].clone()];
        r.warmup[0].tokens_match = Some(false);
    }, CheckKind::OtherRuns, Some(1)),
    ("other logits of a Djinn baseline", VM, |r| r.baselines[0].runs[0].logit_match = Some(false), CheckKind::OtherRuns, Some(9)),
    ("too much memory", VM, |r| r.runs[0].vram_used_mb = Some(16_010.0), CheckKind::MemoryBudget, None),
    ("too much memory for a moment", VM, |r| r.memory.push(MemorySample {
        used_mb: 20_000.0,
        ..MemorySample::default()
    }), CheckKind::MemoryBudget, None),
];

#[rustfmt::skip]
const INVALID_TARGETS: &[Case] = &[
    ("above the upper limit", VM, |r| aim(r, "per_token_ms", None, Some(1.0), None), CheckKind::Target, None),
    ("below the lower limit", VM, |r| aim(r, "link_share", Some(0.99), None, None), CheckKind::Target, None),
    ("worse than a baseline", VM, |r| aim(r, "per_token_ms", None, Some(0.5), Some("llama_cpp")), CheckKind::Target, None),
    ("unknown metric", VM, |r| aim(r, "no_such", None, Some(1.0), None), CheckKind::Target, None),
    ("no limit", VM, |r| aim(r, "per_token_ms", None, None, None), CheckKind::Target, None),
    ("measured in some runs only", VM, |r| {
        r.runs[0].stall_ms = None;
        aim(r, "stall_ms", None, Some(1e9), None);
    }, CheckKind::Target, None),
    ("a point above the limit", RESUME, |r| aim(r, "resume", None, Some(5.0), None), CheckKind::Target, None),
    ("a point of some runs only", RESUME, |r| {
        r.runs[0].points.retain(|point| point.x != 8.0);
        aim(r, "resume", None, Some(99.0), None);
    }, CheckKind::Target, None),
    ("a layer that was not measured", RESUME, |r| r.targets = vec![MetricTarget {
        x: Some(7.0),
        ..target("resume", None, Some(99.0), None)
    }], CheckKind::Target, None),
    ("too much scatter", VM, |r| {
        r.runs[0].total_time_ms *= 3.0;
        aim(r, "spread", None, Some(0.1), None);
    }, CheckKind::Target, None),
];

#[rustfmt::skip]
const INVALID_SUMMARIES: &[Case] = &[
    ("summary of other runs", VM, |r| {
        r.summary = summarize(r);
        r.runs[0].per_token_ms = Some(1.0);
    }, CheckKind::Summary, None),
    ("summary with a better minimum", VM, |r| {
        r.summary = summarize(r);
        r.summary.metrics.get_mut("per_token_ms").unwrap().min = 0.1;
    }, CheckKind::Summary, None),
    ("summary of other points", RESUME, |r| {
        r.summary = summarize(r);
        r.summary.points[0].ms.median = 0.1;
    }, CheckKind::Summary, None),
    ("summary of metrics that were not measured", STEERING, |r| r.summary = summarize(&VM()), CheckKind::Summary, None),
    ("baseline with a slower summary than its runs", VM, |r| {
        r.baselines.iter_mut().for_each(Baseline::sum_up);
        let ran = r.baselines.iter_mut().find(|b| !b.runs.is_empty());
        let metrics = &mut ran.unwrap().summary.metrics;
        metrics.get_mut("per_token_ms").unwrap().median = 1e4;
    }, CheckKind::Summary, None),
];

#[test]
fn every_fault_fails_the_check_of_its_kind() {
    let cases = INVALID_RUNS.iter();
    let cases = cases.chain(INVALID_TARGETS).chain(INVALID_SUMMARIES);
    for (what, make, fault, kind, run) in cases {
        let mut result = make();
        fault(&mut result);
        let checks = judge(&result);
        let found = find(*kind, &checks);
        assert_eq!(found.check.outcome, Outcome::Fail, "{what}: {found:?}");
        assert_eq!(found.run, *run, "{what}: {found:?}");
        assert!(!summarize(&result).pass, "{what}");
    }
}

#[test]
fn streaming_and_paging_are_required_only_beyond_the_budget() {
    let kinds = |result: &ResultFile| -> Vec<CheckKind> {
        judge(result).iter().map(|one| one.kind).collect()
    };
    let mut fits = VM();
    assert!(kinds(&fits).contains(&CheckKind::WeightsStreamed));
    fits.budget_mb = Some(30_000.0);
    assert!(!kinds(&fits).contains(&CheckKind::WeightsStreamed));
    let mut fits = PRESSURE();
    assert!(kinds(&fits).contains(&CheckKind::PagesMoved));
    fits.budget_mb = Some(100_000.0);
    assert!(!kinds(&fits).contains(&CheckKind::PagesMoved));
    assert!(!kinds(&STEERING()).contains(&CheckKind::WeightsStreamed));
}

#[test]
fn the_reason_of_a_lost_session_is_shown() {
    let mut result = PRESSURE();
    result.runs[0].sessions_completed = Some(49);
    result.runs[0].failures = vec!["session 7: deadline".to_owned()];
    let checks = judge(&result);
    let found = find(CheckKind::SessionsCompleted, &checks);
    assert!(found.check.found.contains(&result.runs[0].failures[0]));
}

#[test]
fn checks_without_data_are_not_judged() {
    let cases: [(Break, CheckKind); 5] = [
        (
            |r| aim(r, "per_token_ms", None, Some(1.0), Some("deepspeed_zero")),
            CheckKind::Target,
        ),
        (
            |r| aim(r, "per_token_ms", None, Some(1.0), Some("unknown")),
            CheckKind::Target,
        ),
        (
            |r| {
                r.baselines[1].status = BaselineStatus::Failed;
                aim(r, "per_token_ms", None, Some(1.0), Some("hf_accelerate"));
            },
            CheckKind::Target,
        ),
        (
            |r| {
                r.runs.truncate(1);
                aim(r, "spread", None, Some(0.1), None);
            },
            CheckKind::Target,
        ),
        (
            |r| {
                for run in &mut r.runs {
                    run.vram_used_mb = None;
                }
                r.memory.clear();
            },
            CheckKind::MemoryBudget,
        ),
    ];
    for (change, kind) in cases {
        let mut result = VM();
        change(&mut result);
        let checks = judge(&result);
        let found = find(kind, &checks);
        assert_eq!(found.check.outcome, Outcome::NotJudged, "{found:?}");
        assert!(summarize(&result).pass, "a missing check does not fail");
    }
}

#[test]
fn targets_that_are_reached_pass() {
    let mut result = VM();
    result.targets = vec![
        target("per_token_ms", Some(1.0), Some(1000.0), None),
        target("per_token_ms", None, Some(0.2), Some("hf_accelerate")),
        target("spread", None, Some(0.1), None),
    ];
    let checks = judge(&result);
    let reached = &checks[checks.len() - 3..];
    assert!(
        reached.iter().all(|one| one.check.outcome == Outcome::Pass),
        "{reached:?}"
    );
    let mut points = RESUME();
    points.targets = vec![target("resume", None, Some(0.5), Some("manual_offload"))];
    let checks = judge(&points);
    let of_layers = checks.iter().filter(|one| one.kind == CheckKind::Target);
    assert_eq!(
        of_layers
            .filter(|one| one.check.outcome == Outcome::Pass)
            .count(),
        5,
        "{checks:?}"
    );
}

#[test]
fn points_of_a_layer_are_summarized_over_all_runs() {
    let mut result = RESUME();
    result.runs.truncate(2);
    for (run, ms) in result.runs.iter_mut().zip([2.0, 4.0]) {
        run.points = vec![Point {
            series: "resume".to_owned(),
            x: 3.0,
            ms,
        }];
    }
    let summary = summarize(&result);
    assert_eq!(summary.points.len(), 1);
    assert_eq!(
        (summary.points[0].ms.median, summary.points[0].ms.count),
        (3.0, 2)
    );
}
