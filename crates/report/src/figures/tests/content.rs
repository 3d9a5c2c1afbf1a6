//! Content of the figures for fixed data: labels, values, marks and their positions.

use super::{super::FIGURES, svg::SvgDocument};
use crate::{
    ActivityLane, Baseline, BaselineStatus, Experiment, MemorySample, MetricTarget, MissingData,
    PassTimeline, Point, ResultFile, ResultSet, RunEnvironment, RunRecord, Summary, TimelineSpan,
    VERSION, draw::svg,
};

/// Colour of Djinn, and the pale colour of hatched bars of Accelerate.
const DJINN: &str = "#0072B2";
const ACCELERATE_PALE: &str = "#f2cfb3";

fn result(experiment: Experiment, runs: Vec<RunRecord>) -> ResultFile {
    ResultFile {
        version: VERSION,
        experiment,
        name: "fixed".to_owned(),
        description: String::new(),
        model: "folder/model".to_owned(),
        baseline: "djinn".to_owned(),
        started: String::new(),
        environment: RunEnvironment::default(),
        settings: Default::default(),
        notes: Vec::new(),
        budget_mb: None,
        targets: Vec::new(),
        warmup: Vec::new(),
        runs,
        summary: Summary::default(),
        baselines: Vec::new(),
        memory: Vec::new(),
        timeline: None,
    }
}

fn baseline(name: &str, status: BaselineStatus, runs: Vec<RunRecord>) -> Baseline {
    Baseline {
        baseline: name.to_owned(),
        program: String::new(),
        status,
        reason: None,
        settings: Default::default(),
        warmup: Vec::new(),
        runs,
        summary: Summary::default(),
        memory: Vec::new(),
    }
}

fn drawn(name: &str, result: ResultFile) -> SvgDocument {
    let set = ResultSet::of(vec![result]);
    let results: Vec<&ResultFile> = set.results().collect();
    let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
    SvgDocument::parse(&svg(&figure.draw(&results).drawing.unwrap()))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.6
}

/// Asserts that the labels are below one another, in order.
fn assert_descend(svg: &SvgDocument, labels: &[&str]) {
    let heights: Vec<f64> = labels.iter().map(|label| svg.text_at(label).1).collect();
    assert!(heights.windows(2).all(|two| two[0] < two[1]), "{heights:?}");
}

/// Asserts that the labels are side by side, in order.
fn assert_ascend_rightwards(svg: &SvgDocument, labels: &[&str]) {
    let places: Vec<f64> = labels.iter().map(|label| svg.text_at(label).0).collect();
    assert!(places.windows(2).all(|two| two[0] < two[1]), "{places:?}");
}

/// Asserts that the x axis has these numbers, from left to right.
fn assert_x_ticks(svg: &SvgDocument, labels: &[&str]) {
    let places: Vec<f64> = labels.iter().map(|label| svg.x_tick(label)).collect();
    assert!(places.windows(2).all(|two| two[0] < two[1]), "{places:?}");
}

#[test]
fn bandwidth_bars_are_as_long_as_their_values() {
    let run = |gbps| RunRecord {
        total_time_ms: 1.0,
        effective_bandwidth_gbps: Some(gbps),
        ..RunRecord::default()
    };
    let mut result = result(
        Experiment::VirtualMemory,
        vec![run(58.0), run(60.0), run(62.0)],
    );
    result.environment.link_gbps = Some(55.0);
    result.targets = vec![MetricTarget {
        metric: "effective_bandwidth_gbps".to_owned(),
        at_least: Some(45.0),
        ..MetricTarget::default()
    }];
    let mut absent = baseline("deepspeed_zero", BaselineStatus::Absent, Vec::new());
    absent.reason = Some("not installed".to_owned());
    result.baselines = vec![
        baseline("hf_accelerate", BaselineStatus::Ran, vec![run(20.0)]),
        absent,
    ];
    let svg = drawn("effective_bandwidth_comparison", result);
    assert_eq!(svg.texts()[0], "Effective bandwidth");
    assert!(svg.texts().contains(&"fixed · model"));
    assert_descend(&svg, &["Djinn", "Accelerate", "DeepSpeed ZeRO"]);
    assert_descend(&svg, &["60.0", "20.0", "absent: not installed"]);
    let (djinn, other) = (svg.bars(DJINN), svg.bars(ACCELERATE_PALE));
    let (djinn, other) = (djinn[0], other[0]);
    let unit = djinn.number("width") / 60.0;
    assert!(near(other.number("width"), 20.0 * unit));
    assert!(other.number("y") > djinn.number("y"));
    // The value is to the right of the whisker, which ends at the fastest run.
    assert!(svg.text_at("60.0").0 > djinn.number("x") + 62.0 * unit);
    let upright = svg.lines("#222222").into_iter();
    let upright: Vec<f64> = upright
        .filter(|line| line[0].0 == line[1].0 && line[1].1 - line[0].1 > 50.0)
        .map(|line| line[0].0 - djinn.number("x"))
        .collect();
    for (label, value) in [("link 55.0", 55.0), ("target 45.0", 45.0)] {
        svg.text_at(label);
        let is_there = upright.iter().any(|x| near(*x, value * unit));
        assert!(is_there, "{label}: {upright:?}, unit {unit}");
    }
}

#[test]
fn the_timeline_shows_each_lane_and_its_share() {
    let span = |lane, start_ms, ms| TimelineSpan {
        lane,
        name: "blocks.0".to_owned(),
        start_ms,
        ms,
        bytes: 0,
    };
    let mut result = result(Experiment::VirtualMemory, Vec::new());
    result.timeline = Some(PassTimeline {
        spans: vec![
            span(ActivityLane::Copy, 0.0, 10.0),
            span(ActivityLane::Wait, 0.0, 5.0),
            span(ActivityLane::Compute, 5.0, 2.0),
        ],
    });
    let svg = drawn("latency_timeline", result);
    assert_descend(&svg, &["copy over the link", "compute", "wait for weights"]);
    assert_descend(&svg, &["100 %", "20 %", "50 %"]);
    assert_x_ticks(&svg, &["0", "2", "4", "6", "8", "10"]);
    let copy = svg.bars(DJINN);
    let (left, whole) = (copy[0].number("x"), copy[0].number("width"));
    // Hatched bars are filled with a pale colour of their lane.
    let compute = svg.bars("#f8e2b3");
    assert!(near(compute[0].number("x"), left + 0.5 * whole));
    assert!(near(compute[0].number("width"), 0.2 * whole));
    assert!(compute[0].number("y") > copy[0].number("y"));
}

#[test]
fn memory_lines_follow_the_samples() {
    let sample = |t_s, used_mb, host_kv_mb| MemorySample {
        t_s,
        used_mb,
        kv_mb: Some(0.0),
        host_kv_mb: Some(host_kv_mb),
        ..MemorySample::default()
    };
    let mut result = result(Experiment::MemoryPressure, Vec::new());
    result.budget_mb = Some(8_000.0);
    result.memory = vec![
        sample(0.0, 2_000.0, 0.0),
        sample(5.0, 8_000.0, 1_000.0),
        sample(10.0, 4_000.0, 2_000.0),
    ];
    let svg = drawn("memory_usage", result);
    let texts = svg.texts();
    assert_ascend_rightwards(&svg, &["device memory used", "KV in host memory", "budget"]);
    assert!(!texts.contains(&"KV on the device"), "zero all the time");
    assert!(!texts.contains(&"KV on disk"), "never measured");
    let lines = svg.lines(DJINN);
    let used = lines.iter().find(|line| line.len() == 3).unwrap();
    let (low, high, middle) = (used[0], used[1], used[2]);
    assert!(low.0 < high.0 && high.0 < middle.0);
    assert!(low.1 > middle.1 && middle.1 > high.1, "{used:?}");
    // 4 GB lies at a third of the way from 2 GB to 8 GB.
    assert!(near(middle.1, low.1 + (high.1 - low.1) / 3.0), "{used:?}");
    let budget = svg.lines("#222222").into_iter();
    let is_budget = |line: &Vec<(f64, f64)>| near(line[0].1, high.1) && near(line[1].1, high.1);
    assert!(budget.into_iter().any(|line| is_budget(&line)));
}

#[test]
fn a_cross_marks_where_a_baseline_ran_out_of_memory() {
    let sample = |sessions, used_mb| MemorySample {
        t_s: 0.0,
        used_mb,
        sessions: Some(sessions),
        ..MemorySample::default()
    };
    let run = RunRecord {
        total_time_ms: 1.0,
        model_size_gb: Some(2.0),
        kv_demand_gb: Some(8.0),
        sessions: Some(4),
        ..RunRecord::default()
    };
    let mut result = result(Experiment::MemoryPressure, vec![run]);
    result.budget_mb = Some(6_000.0);
    result.memory = (0..=4)
        .map(|i| sample(i, 2_000.0 + 1_000.0 * i as f64))
        .collect();
    let mut eager = baseline("pytorch_eager", BaselineStatus::OutOfMemory, Vec::new());
    eager.reason = Some("at session 3: full".to_owned());
    eager.memory = vec![sample(0, 2_000.0), sample(2, 6_000.0)];
    result.baselines = vec![eager];
    let svg = drawn("figure6_memory_virtualization", result);
    assert!(svg.texts().contains(&"eager PyTorch: at session 3"));
    for label in ["needed: weights and KV", "device memory used", "budget"] {
        svg.text_at(label);
    }
    assert_x_ticks(&svg, &["0", "1", "2", "3", "4"]);
    let used = svg.circles(DJINN);
    // The legend has one circle, the line has one for each number of sessions.
    let used = &used[1..];
    assert_eq!(used.len(), 5);
    assert!(
        used.windows(2)
            .all(|two| two[0].0 < two[1].0 && two[0].1 > two[1].1)
    );
    // Two crossing strokes around the last sample of the baseline: 2 sessions, 6 GB.
    let strokes = svg.lines("#D55E00").into_iter();
    let centre =
        |line: &Vec<(f64, f64)>| ((line[0].0 + line[1].0) / 2.0, (line[0].1 + line[1].1) / 2.0);
    let crossing: Vec<(f64, f64)> = strokes
        .filter(|line| line.len() == 2 && near((line[0].0 - line[1].0).abs(), 11.0))
        .map(|line| centre(&line))
        .collect();
    assert_eq!(crossing.len(), 2, "{crossing:?}");
    assert!(near(crossing[0].0, used[2].0) && near(crossing[0].1, used[4].1));
}

fn points(series: &str, values: &[(f64, f64)]) -> Vec<Point> {
    let point = |(x, ms): &(f64, f64)| Point {
        series: series.to_owned(),
        x: *x,
        ms: *ms,
    };
    values.iter().map(point).collect()
}

fn run_with(points: Vec<Point>) -> RunRecord {
    RunRecord {
        total_time_ms: 1.0,
        points,
        ..RunRecord::default()
    }
}

#[test]
fn resume_latency_has_a_line_for_each_contender() {
    let mut all = points("resume", &[(1.0, 2.0), (10.0, 4.0), (20.0, 8.0)]);
    all.extend(points("resume_from_host", &[(1.0, 20.0), (20.0, 40.0)]));
    all.extend(points("resume_inside", &[(1.0, 1.0)]));
    let mut result = result(Experiment::ResumeLatency, vec![run_with(all)]);
    let slow = run_with(points("resume", &[(1.0, 200.0), (20.0, 400.0)]));
    result.baselines = vec![baseline("recompute", BaselineStatus::Ran, vec![slow])];
    let svg = drawn("figure7_resume_latency", result);
    let legend = [
        "Djinn, KV on the device",
        "Djinn, KV in host memory",
        "recompute",
    ];
    for label in legend {
        svg.text_at(label);
    }
    assert!(!svg.texts().iter().any(|text| text.contains("inside")));
    assert_x_ticks(&svg, &["1", "10", "20"]);
    assert!(svg.texts().contains(&"ms, log axis"));
    let marks = svg.circles(DJINN);
    // The first circle is that of the legend.
    let marks = &marks[1..];
    assert_eq!(marks.len(), 3);
    // On a logarithmic axis, doubling is the same distance everywhere.
    let (first, second) = (marks[0].1 - marks[1].1, marks[1].1 - marks[2].1);
    assert!(first > 1.0 && near(first, second), "{marks:?}");
    let layers: Vec<f64> = ["1", "10", "20"]
        .iter()
        .map(|layer| svg.x_tick(layer))
        .collect();
    for (mark, layer) in marks.iter().zip(layers) {
        assert!(near(mark.0, layer), "{marks:?}");
    }
}

#[test]
fn agent_latency_separates_percentiles() {
    let mut all = points("p50", &[(1.0, 10.0), (2.0, 20.0), (4.0, 30.0)]);
    all.extend(points("p99", &[(1.0, 40.0), (2.0, 50.0), (4.0, 60.0)]));
    let result = result(Experiment::Agents, vec![run_with(all)]);
    let svg = drawn("agents_latency", result);
    assert_ascend_rightwards(&svg, &["Djinn, p50", "Djinn, p99"]);
    assert_x_ticks(&svg, &["1", "2", "4"]);
    let (p50, p99) = (svg.circles(DJINN), svg.circles("#ffffff"));
    let (p50, p99) = (&p50[1..], &p99[1..]);
    assert_eq!((p50.len(), p99.len()), (3, 3));
    for (half, most) in p50.iter().zip(p99) {
        assert!(near(half.0, most.0) && half.1 > most.1, "{half:?} {most:?}");
    }
    // 30 ms on a linear axis from zero: p99 of one agent is 10 ms above it.
    let unit = (p50[0].1 - p50[1].1) / 10.0;
    assert!(near(p50[2].1 - p99[0].1, 10.0 * unit));
}

#[test]
fn a_figure_without_data_names_the_missing_data() {
    let set = ResultSet::of(vec![result(Experiment::VirtualMemory, Vec::new())]);
    let results: Vec<&ResultFile> = set.results().collect();
    let reasons: Vec<MissingData> = FIGURES
        .iter()
        .map(|figure| figure.draw(&results).drawing.unwrap_err())
        .collect();
    let expect = [
        MissingData::Metric("effective_bandwidth_gbps"),
        MissingData::Timeline,
        MissingData::MemorySamples,
        MissingData::Experiment(&[Experiment::MemoryPressure]),
        MissingData::Experiment(&[Experiment::ResumeLatency]),
        MissingData::Experiment(&[Experiment::Agents]),
    ];
    assert_eq!(reasons, expect);
}
