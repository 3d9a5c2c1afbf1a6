//! What is judged, and how: good results pass, and each thing that is wrong fails by its own name.

#![allow(clippy::unwrap_used, missing_docs)]

mod samples;

use djinn_report::{
    Baseline, Check, MemorySample, Outcome, Point, ResultFile, Status, Target, judge, summarize,
};

fn one(check: &str, checks: &[Check]) -> Check {
    let found = checks.iter().find(|one| one.name.contains(check));
    found
        .unwrap_or_else(|| panic!("no check {check} in {checks:?}"))
        .clone()
}

fn target(metric: &str, at_least: Option<f64>, at_most: Option<f64>, of: Option<&str>) -> Target {
    let (metric, of) = (metric.to_owned(), of.map(str::to_owned));
    Target {
        metric,
        x: None,
        at_least,
        at_most,
        of,
    }
}

/// The one thing to be reached.
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
fn good_results_pass() {
    for result in samples::all() {
        let checks = judge(&result);
        let bad = checks.iter().find(|check| check.outcome == Outcome::Fail);
        assert!(bad.is_none(), "{}: {bad:?}", result.name);
        assert!(summarize(&result).pass);
    }
}

/// How a result is made wrong.
type Break = fn(&mut ResultFile);
type Case = (
    &'static str,
    fn() -> ResultFile,
    Break,
    &'static str,
    &'static str,
);

const VM: fn() -> ResultFile = || samples::virtual_memory("a", "m", 26.0);
const PRESSURE: fn() -> ResultFile = || samples::memory_pressure("a", 50);
const RESUME: fn() -> ResultFile = || samples::resume_latency("a");
const STEERING: fn() -> ResultFile = || samples::steering("a");
const AGENTS: fn() -> ResultFile = || samples::agents("a");

/// What is broken, the check that has to fail, and what it has to say.
const BROKEN: &[Case] = &[
    (
        "no runs",
        VM,
        |r| r.runs.clear(),
        "runs were measured",
        "0 measured",
    ),
    (
        "no time",
        VM,
        |r| r.runs[2].total_time_ms = 0.0,
        "runs were measured",
        "run 2 took 0 ms",
    ),
    (
        "no finite time",
        VM,
        |r| r.runs[2].total_time_ms = f64::NAN,
        "runs were measured",
        "run 2",
    ),
    (
        "other logits",
        VM,
        |r| r.runs[1].logit_norm = Some(5.0),
        "logits",
        "run 1: norm 5",
    ),
    (
        "logits at the limit",
        VM,
        |r| r.runs[1].logit_norm = Some(0.1),
        "logits",
        "norm 0.1",
    ),
    (
        "logits that are no numbers",
        VM,
        |r| r.runs[1].logit_norm = Some(f64::NAN),
        "logits",
        "norm NaN",
    ),
    (
        "a length below zero",
        VM,
        |r| r.runs[1].logit_norm = Some(-1.0),
        "logits",
        "norm -1",
    ),
    (
        "logits never compared",
        VM,
        |r| r.runs[4].logit_norm = None,
        "logits",
        "run 4 was not compared",
    ),
    (
        "logits said to differ",
        VM,
        |r| r.runs[0].logit_match = Some(false),
        "logits",
        "run 0: said not to match",
    ),
    (
        "steered logits",
        STEERING,
        |r| r.runs[0].logit_norm = Some(5.0),
        "logits",
        "norm 5",
    ),
    (
        "other tokens",
        VM,
        |r| r.runs[3].tokens_match = Some(false),
        "tokens are",
        "run 3: other tokens",
    ),
    (
        "tokens never compared",
        RESUME,
        |r| r.runs[3].tokens_match = None,
        "tokens are",
        "run 3 was not compared",
    ),
    (
        "other tokens of agents",
        AGENTS,
        |r| r.runs[0].tokens_match = Some(false),
        "tokens are",
        "other tokens",
    ),
    (
        "a lost session",
        PRESSURE,
        |r| r.runs[2].sessions_completed = Some(49),
        "every session",
        "run 2: 49 of 50",
    ),
    (
        "a session too many",
        PRESSURE,
        |r| r.runs[2].sessions_completed = Some(51),
        "every session",
        "51 of 50",
    ),
    (
        "no sessions",
        PRESSURE,
        |r| {
            (r.runs[0].sessions, r.runs[0].sessions_completed) = (Some(0), Some(0));
        },
        "every session",
        "0 of 0",
    ),
    (
        "sessions not counted",
        AGENTS,
        |r| r.runs[1].sessions_completed = None,
        "every session",
        "0 of 64",
    ),
    (
        "the reason of a loss",
        PRESSURE,
        |r| {
            r.runs[0].sessions_completed = Some(49);
            r.runs[0].failures = vec!["session 7: deadline".to_owned()];
        },
        "every session",
        "49 of 50: session 7: deadline",
    ),
    (
        "too much memory",
        VM,
        |r| r.runs[0].vram_used_mb = Some(16_010.0),
        "device memory within",
        "16010 MB",
    ),
    (
        "too much memory for a moment",
        VM,
        |r| {
            r.memory.push(MemorySample {
                used_mb: 20_000.0,
                ..MemorySample::default()
            });
        },
        "device memory within",
        "20000 MB",
    ),
    (
        "no number",
        PRESSURE,
        |r| r.runs[1].resume_p99_ms = Some(f64::INFINITY),
        "every number",
        "run 1: resume_p99_ms",
    ),
    (
        "no point",
        RESUME,
        |r| r.runs[1].points[0].ms = f64::NAN,
        "every number",
        "run 1: resume",
    ),
    (
        "a target missed",
        VM,
        |r| aim(r, "per_token_ms", None, Some(1.0), None),
        "per_token_ms at most 1",
        "394",
    ),
    (
        "a target missed from below",
        VM,
        |r| aim(r, "link_share", Some(0.99), None, None),
        "link_share at least 0.99",
        "0.9",
    ),
    (
        "worse than a baseline",
        VM,
        |r| aim(r, "per_token_ms", None, Some(0.5), Some("llama_cpp")),
        "at most 0.5 × llama_cpp",
        "1.05",
    ),
    (
        "a target of nothing",
        VM,
        |r| aim(r, "no_such", None, Some(1.0), None),
        "no_such",
        "no run says anything of no_such",
    ),
    (
        "a target without a limit",
        VM,
        |r| aim(r, "per_token_ms", None, None, None),
        "per_token_ms",
        "neither",
    ),
    (
        "a target of some runs",
        VM,
        |r| {
            r.runs[0].stall_ms = None;
            aim(r, "stall_ms", None, Some(1e9), None);
        },
        "stall_ms",
        "only 4 of 5 runs",
    ),
    (
        "a point missed",
        RESUME,
        |r| aim(r, "resume", None, Some(5.0), None),
        "resume at 0 at most 5",
        "9.",
    ),
    (
        "a point of some runs",
        RESUME,
        |r| {
            r.runs[0].points.retain(|point| point.x != 8.0);
            aim(r, "resume", None, Some(99.0), None);
        },
        "resume at most 99",
        "only 4 of 5 runs",
    ),
    (
        "a place that was not measured",
        RESUME,
        |r| {
            r.targets = vec![Target {
                x: Some(7.0),
                ..target("resume", None, Some(99.0), None)
            }];
        },
        "resume at 7 at most 99",
        "no run says anything",
    ),
    (
        "too much scatter",
        VM,
        |r| {
            r.runs[0].total_time_ms *= 3.0;
            aim(r, "spread", None, Some(0.1), None);
        },
        "spread",
        "1.94",
    ),
    (
        "a summary of other runs",
        VM,
        |r| {
            r.summary = summarize(r);
            r.runs[0].per_token_ms = Some(1.0);
        },
        "the summary is of these runs",
        "per_token_ms",
    ),
    (
        "a summary made better",
        VM,
        |r| {
            r.summary = summarize(r);
            r.summary.metrics.get_mut("per_token_ms").unwrap().min = 0.1;
        },
        "the summary is of these runs",
        "per_token_ms",
    ),
    (
        "a summary of other points",
        RESUME,
        |r| {
            r.summary = summarize(r);
            r.summary.points[0].ms.median = 0.1;
        },
        "the summary is of these runs",
        "resume at 0",
    ),
    (
        "a summary of what was not measured",
        STEERING,
        |r| {
            r.summary = summarize(&VM());
        },
        "the summary is of these runs",
        "is not what its runs come to",
    ),
    (
        "a baseline made slower than its runs",
        VM,
        |r| {
            r.baselines.iter_mut().for_each(Baseline::sum_up);
            let told = r.baselines.iter_mut().find(|b| !b.runs.is_empty());
            let metrics = &mut told.unwrap().summary.metrics;
            metrics.get_mut("per_token_ms").unwrap().median = 1e4;
        },
        "the summary is of these runs",
        "per_token_ms of ",
    ),
];

#[test]
fn what_is_wrong_fails() {
    for (what, make, broken, name, found) in BROKEN {
        let mut result = make();
        broken(&mut result);
        let check = one(name, &judge(&result));
        assert_eq!(check.outcome, Outcome::Fail, "{what}: {check:?}");
        assert!(check.found.contains(found), "{what}: {check:?}");
        assert!(!summarize(&result).pass, "{what}");
    }
}

#[test]
fn what_cannot_be_judged_is_not() {
    let cases: [(Break, &str, &str); 5] = [
        (
            |r| aim(r, "per_token_ms", None, Some(1.0), Some("deepspeed_zero")),
            "× deepspeed_zero",
            "did not run",
        ),
        (
            |r| aim(r, "per_token_ms", None, Some(1.0), Some("nobody")),
            "× nobody",
            "did not run",
        ),
        (
            |r| {
                r.baselines[1].status = Status::Failed;
                aim(r, "per_token_ms", None, Some(1.0), Some("hf_accelerate"));
            },
            "× hf_accelerate",
            "did not run",
        ),
        (
            |r| {
                r.runs.truncate(1);
                aim(r, "spread", None, Some(0.1), None);
            },
            "spread",
            "does not scatter",
        ),
        (
            |r| {
                for run in &mut r.runs {
                    run.vram_used_mb = None;
                }
                r.memory.clear();
            },
            "device memory",
            "not measured",
        ),
    ];
    for (change, name, found) in cases {
        let mut result = VM();
        change(&mut result);
        let check = one(name, &judge(&result));
        assert_eq!(check.outcome, Outcome::NotJudged, "{check:?}");
        assert!(check.found.contains(found), "{check:?}");
        assert!(summarize(&result).pass, "what is not judged does not fail");
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
        reached.iter().all(|check| check.outcome == Outcome::Pass),
        "{reached:?}"
    );
    let mut points = RESUME();
    points.targets = vec![target("resume", None, Some(0.5), Some("manual_offload"))];
    let checks = judge(&points);
    let of_layers = checks
        .iter()
        .filter(|check| check.name.starts_with("resume at "));
    assert_eq!(
        of_layers
            .filter(|check| check.outcome == Outcome::Pass)
            .count(),
        5,
        "{checks:?}"
    );
}

#[test]
fn runs_of_a_place_are_summed_up_together() {
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
