//! Drawing succeeds for any input: no data, single values, equal, huge, tiny and invalid numbers. The
//! content of figures for fixed data is tested in `content`.

mod content;
mod svg;

use proptest::{collection::vec, option, prelude::*, sample::select};
use roxmltree::Document;

use super::FIGURES;
use crate::{
    ActivityLane, Baseline, BaselineStatus, Experiment, MemorySample, MetricTarget, PassTimeline,
    Point, ResultFile, ResultSet, RunEnvironment, RunRecord, Summary, TimelineSpan, VERSION, draw,
};

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(7.0),
        Just(-3.0),
        Just(f64::MAX),
        Just(f64::MIN_POSITIVE),
        Just(f64::NAN),
        Just(f64::INFINITY),
        0.0..1e4f64,
        any::<f64>(),
    ]
}

fn run() -> impl Strategy<Value = RunRecord> {
    let point = (
        select(vec!["resume", "p50", "p99", "other"]),
        number(),
        number(),
    );
    let point = point.prop_map(|(series, x, ms)| Point {
        series: series.to_owned(),
        x,
        ms,
    });
    (
        vec(number(), 4),
        option::of(any::<u64>()),
        vec(point, 0..12),
    )
        .prop_map(|(numbers, sessions, points)| RunRecord {
            total_time_ms: numbers[0],
            effective_bandwidth_gbps: Some(numbers[1]),
            model_size_gb: Some(numbers[2]),
            kv_demand_gb: Some(numbers[3]),
            sessions,
            points,
            ..RunRecord::default()
        })
}

fn samples() -> impl Strategy<Value = Vec<MemorySample>> {
    let sample = (
        number(),
        number(),
        option::of(number()),
        option::of(0..60u64),
    );
    let sample = sample.prop_map(|(t_s, used_mb, host_kv_mb, sessions)| MemorySample {
        t_s,
        used_mb,
        host_kv_mb,
        sessions,
        ..MemorySample::default()
    });
    vec(sample, 0..20)
}

fn baseline() -> impl Strategy<Value = Baseline> {
    let status = select(vec![
        BaselineStatus::Ran,
        BaselineStatus::Absent,
        BaselineStatus::OutOfMemory,
        BaselineStatus::Failed,
    ]);
    let name = select(vec![
        "vllm",
        "pytorch_eager",
        "<&>",
        "",
        "a very long name indeed, and longer",
    ]);
    (name, status, option::of(".*"), vec(run(), 0..3), samples()).prop_map(
        |(name, status, reason, runs, memory)| Baseline {
            baseline: name.to_owned(),
            program: String::new(),
            status,
            reason,
            settings: Default::default(),
            warmup: Vec::new(),
            runs,
            summary: Summary::default(),
            memory,
        },
    )
}

fn timeline() -> impl Strategy<Value = Option<PassTimeline>> {
    let lane = select(vec![
        ActivityLane::Copy,
        ActivityLane::Compute,
        ActivityLane::Wait,
    ]);
    let span =
        (lane, 0..4u32, number(), number()).prop_map(|(lane, i, start_ms, ms)| TimelineSpan {
            lane,
            name: format!("blocks.{i}"),
            start_ms,
            ms,
            bytes: 0,
        });
    option::of(vec(span, 0..30).prop_map(|spans| PassTimeline { spans }))
}

fn result() -> impl Strategy<Value = ResultFile> {
    use Experiment::{Agents, MemoryPressure, ResumeLatency, VirtualMemory};
    let experiment = select(vec![VirtualMemory, MemoryPressure, ResumeLatency, Agents]);
    let parts = (
        experiment,
        ".*",
        vec(run(), 0..4),
        vec(baseline(), 0..9),
        samples(),
        timeline(),
    );
    (parts, option::of(number()), option::of(number())).prop_map(
        |((experiment, name, runs, baselines, memory, timeline), budget_mb, link_gbps)| {
            ResultFile {
                version: VERSION,
                experiment,
                model: name.clone(),
                name,
                description: String::new(),
                baseline: "djinn".to_owned(),
                started: String::new(),
                environment: RunEnvironment {
                    link_gbps,
                    ..RunEnvironment::default()
                },
                settings: Default::default(),
                notes: Vec::new(),
                budget_mb,
                targets: vec![MetricTarget {
                    metric: "effective_bandwidth_gbps".to_owned(),
                    at_least: budget_mb,
                    ..MetricTarget::default()
                }],
                warmup: Vec::new(),
                runs,
                summary: Summary::default(),
                baselines,
                memory,
                timeline,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn drawing_never_fails(results in vec(result(), 0..4)) {
        let set = ResultSet::of(results);
        let results: Vec<&ResultFile> = set.results().collect();
        for figure in &FIGURES {
            match figure.draw(&results).drawing {
                Ok(drawing) => {
                    let svg = draw::svg(&drawing);
                    prop_assert!(!svg.contains("NaN") && !svg.contains("inf\""));
                    let parsed = Document::parse(&svg);
                    prop_assert!(parsed.is_ok(), "{}: {:?}", figure.name, parsed.err());
                    prop_assert!(draw::png(&drawing).is_ok(), "{}", figure.name);
                    prop_assert!(draw::pdf(&drawing).starts_with(b"%PDF"));
                }
                Err(reason) => prop_assert!(!reason.to_string().is_empty()),
            }
        }
        crate::measurements_table(&set);
        crate::compare(&set, &set).markdown();
        crate::pages::markdown(&set, &[]);
    }
}
