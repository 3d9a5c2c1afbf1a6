//! Synthetic valid results of all experiments.

use djinn_report::{
    ActivityLane, Baseline, BaselineStatus, Experiment, MemorySample, MetricTarget, PassTimeline,
    Point, ResultFile, RunEnvironment, RunRecord, Summary, TimelineSpan, VERSION,
};
use serde_json::json;

/// Returns a value near another, the same in every call.
fn near(value: f64, i: u32) -> f64 {
    let wave = f64::from((i * 7919 + 13) % 101) / 101.0 - 0.5;
    value * (1.0 + 0.04 * wave)
}

fn environment() -> RunEnvironment {
    RunEnvironment {
        djinn: "0.1.0".to_owned(),
        commit: "0123abc".to_owned(),
        device: "cuda:0".to_owned(),
        device_name: "Made-up GPU".to_owned(),
        device_memory_mb: Some(143_000.0),
        driver: Some("570.1".to_owned()),
        cuda: Some("12.8".to_owned()),
        link: Some("PCIe 5 x16".to_owned()),
        link_gbps: Some(55.3),
        processor: "Made-up processor".to_owned(),
        cores: 16,
        host_memory_mb: 128_000.0,
        system: "Linux 6.8".to_owned(),
        server: "in process".to_owned(),
        command: "djinn eval virtual-memory".to_owned(),
    }
}

/// Returns a result without runs.
pub fn empty(experiment: Experiment, name: &str, model: &str) -> ResultFile {
    ResultFile {
        version: VERSION,
        experiment,
        name: name.to_owned(),
        description: "A sentence that says what this is for.".to_owned(),
        model: model.to_owned(),
        baseline: "ring_buffer_async_prefetch".to_owned(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        environment: environment(),
        settings: [("prompt_tokens".to_owned(), json!(512))].into(),
        notes: vec!["A note that a reader should know.".to_owned()],
        budget_mb: Some(16_000.0),
        targets: Vec::new(),
        warmup: Vec::new(),
        runs: Vec::new(),
        summary: Summary::default(),
        baselines: Vec::new(),
        memory: Vec::new(),
        timeline: None,
    }
}

/// Returns a baseline without runs.
pub fn baseline(name: &str, program: &str, status: BaselineStatus) -> Baseline {
    Baseline {
        baseline: name.to_owned(),
        program: program.to_owned(),
        status,
        reason: (status != BaselineStatus::Ran)
            .then(|| "the package is not installed here".to_owned()),
        settings: [("device_map".to_owned(), json!("auto"))].into(),
        warmup: Vec::new(),
        runs: Vec::new(),
        summary: Summary::default(),
        memory: Vec::new(),
    }
}

fn virtual_run(i: u32, gb: f64, gbps: f64) -> RunRecord {
    let passes = 16.0;
    let total_time_ms = near(gb * passes / gbps * 1000.0, i);
    RunRecord {
        run_id: i,
        total_time_ms,
        model_size_gb: Some(gb),
        vram_used_mb: Some(15_800.0),
        passes: Some(16),
        tokens: Some(16),
        effective_bandwidth_gbps: Some(gb * passes / total_time_ms * 1000.0),
        link_gbps: Some(near(gbps * 0.8, i)),
        link_share: Some(near(gbps * 0.8, i) / 55.3),
        stall_ms: Some(12.0),
        first_token_ms: Some(total_time_ms / 12.0),
        per_token_ms: Some(total_time_ms / 16.0),
        logit_match: Some(true),
        logit_norm: Some(0.0),
        tokens_match: Some(true),
        ..RunRecord::default()
    }
}

/// Returns a virtual-memory result with baselines of every status.
pub fn virtual_memory(name: &str, model: &str, gb: f64) -> ResultFile {
    let mut result = empty(Experiment::VirtualMemory, name, model);
    result.runs = (0..5).map(|i| virtual_run(i, gb, 66.0)).collect();
    result.targets = vec![
        MetricTarget {
            metric: "effective_bandwidth_gbps".to_owned(),
            at_least: Some(45.0),
            ..MetricTarget::default()
        },
        MetricTarget {
            metric: "per_token_ms".to_owned(),
            at_most: Some(1.0),
            of: Some("hf_accelerate".to_owned()),
            ..MetricTarget::default()
        },
    ];
    let ran = |name: &str, program: &str, gbps| {
        let mut one = baseline(name, program, BaselineStatus::Ran);
        one.runs = (0..3).map(|i| virtual_run(i + 9, gb, gbps)).collect();
        one
    };
    result.baselines = vec![
        ran("ring_buffer_no_prefetch", "djinn 0.1.0", 31.0),
        ran("hf_accelerate", "accelerate 1.15.0, device_map", 9.4),
        ran("llama_cpp", "llama.cpp b1234", 70.0),
        baseline(
            "deepspeed_zero",
            "DeepSpeed 0.17, ZeRO-3 offload",
            BaselineStatus::Absent,
        ),
        Baseline {
            reason: Some("CUDA out of memory while loading layer 21 of 40".to_owned()),
            ..baseline(
                "transformers_vram",
                "transformers 5.17",
                BaselineStatus::OutOfMemory,
            )
        },
    ];
    result.memory = (0..200)
        .map(|i| MemorySample {
            t_s: f64::from(i) * 0.25,
            used_mb: 15_700.0 + f64::from(i % 7),
            kv_mb: Some(300.0 + f64::from(i)),
            host_kv_mb: Some(0.0),
            disk_kv_mb: Some(0.0),
            sessions: Some(1),
        })
        .collect();
    result.timeline = Some(timeline(40, 3));
    result
}

/// Returns a timeline of copies and computation for a number of blocks and passes.
pub fn timeline(blocks: u32, passes: u32) -> PassTimeline {
    let mut spans = Vec::new();
    for i in 0..blocks * passes {
        let at = f64::from(i) * 12.0;
        let mut span = |lane, start_ms, ms, bytes| {
            let name = format!("blocks.{}", i % blocks);
            spans.push(TimelineSpan {
                lane,
                name,
                start_ms,
                ms,
                bytes,
            });
        };
        span(ActivityLane::Copy, at, 11.4, 640_000_000);
        span(ActivityLane::Compute, at + 12.0, 2.2, 0);
        span(
            ActivityLane::Wait,
            at + 14.2,
            if i % 9 == 0 { 9.8 } else { 3.0 },
            0,
        );
    }
    PassTimeline { spans }
}

/// Returns a memory-pressure result with a baseline that runs out of memory.
pub fn memory_pressure(name: &str, sessions: u64) -> ResultFile {
    let mut result = empty(Experiment::MemoryPressure, name, "shapes/llama-13b");
    let run = |i: u32| RunRecord {
        run_id: i,
        total_time_ms: near(240_000.0, i),
        model_size_gb: Some(12.0),
        vram_used_mb: Some(15_900.0),
        logit_norm: Some(0.0),
        tokens_match: Some(true),
        sessions: Some(sessions),
        sessions_completed: Some(sessions),
        kv_demand_gb: Some(0.42 * sessions as f64),
        paged_out_gb: Some(31.0),
        paged_back_gb: Some(30.5),
        resume_p50_ms: Some(near(80.0, i)),
        resume_p99_ms: Some(near(190.0, i)),
        ..RunRecord::default()
    };
    result.runs = (0..3).map(run).collect();
    let sample = |i: u64, used: f64| MemorySample {
        t_s: i as f64 * 3.0,
        used_mb: used,
        kv_mb: Some((420.0 * i as f64).min(3_600.0)),
        host_kv_mb: Some((420.0 * i as f64 - 3_600.0).max(0.0)),
        disk_kv_mb: None,
        sessions: Some(i),
    };
    let ours = (0..=sessions).map(|i| sample(i, (12_200.0 + 420.0 * i as f64).min(15_850.0)));
    result.memory = ours.collect();
    let mut eager = baseline(
        "pytorch_eager",
        "PyTorch 2.9, transformers 5.17",
        BaselineStatus::OutOfMemory,
    );
    eager.reason = Some("out of memory at session 8".to_owned());
    eager.memory = (0..=sessions.min(8))
        .map(|i| sample(i, 12_600.0 + 440.0 * i as f64))
        .collect();
    result.baselines = vec![eager];
    result
}

/// Returns a resume-latency result at several layers.
pub fn resume_latency(name: &str) -> ResultFile {
    let mut result = empty(Experiment::ResumeLatency, name, "shapes/llama-7b");
    let layers = [0u32, 8, 16, 24, 31];
    let run = |i: u32, series: &[(&str, f64, f64)]| RunRecord {
        run_id: i,
        total_time_ms: near(4000.0, i),
        tokens_match: Some(true),
        points: series
            .iter()
            .flat_map(|(series, base, slope)| {
                layers.map(|layer| Point {
                    series: (*series).to_owned(),
                    x: f64::from(layer),
                    ms: near(base + slope * f64::from(layer), i + layer),
                })
            })
            .collect(),
        ..RunRecord::default()
    };
    result.runs = (0..5)
        .map(|i| {
            run(
                i,
                &[("resume", 9.0, -0.22), ("resume_from_host", 19.0, -0.2)],
            )
        })
        .collect();
    let with = |name: &str, base, slope| {
        let mut one = baseline(name, "PyTorch 2.9", BaselineStatus::Ran);
        one.runs = (0..3).map(|i| run(i, &[("resume", base, slope)])).collect();
        one
    };
    result.baselines = vec![
        with("manual_offload", 66.0, 0.0),
        with("recompute", 150.0, 3.1),
        with("djinn_recompute", 120.0, -0.4),
    ];
    result
}

/// Returns a steering result.
pub fn steering(name: &str) -> ResultFile {
    let mut result = empty(Experiment::Steering, name, "models/stories-7m");
    let run = |i: u32| RunRecord {
        run_id: i,
        total_time_ms: near(900.0, i),
        per_token_ms: Some(near(11.0, i)),
        logit_match: Some(true),
        logit_norm: Some(0.001),
        tokens_match: Some(true),
        output_change: Some(0.31),
        tokens_changed: Some(0.44),
        overhead: Some(near(0.012, i)),
        ..RunRecord::default()
    };
    result.runs = (0..3).map(run).collect();
    result
}

/// Returns an agents result.
pub fn agents(name: &str) -> ResultFile {
    let mut result = empty(Experiment::Agents, name, "shapes/llama-7b");
    let points = |i: u32, base: f64, growth: f64| {
        let at = move |agents: u32| {
            let half = base + growth * f64::from(agents);
            [("p50", half), ("p99", half * 2.6)].map(|(series, ms)| Point {
                series: series.to_owned(),
                x: f64::from(agents),
                ms: near(ms, i + agents),
            })
        };
        [1u32, 2, 4, 8, 16, 32, 64]
            .into_iter()
            .flat_map(at)
            .collect::<Vec<_>>()
    };
    let run = |i: u32, base, growth| RunRecord {
        run_id: i,
        total_time_ms: near(60_000.0, i),
        tokens_match: Some(true),
        sessions: Some(64),
        sessions_completed: Some(64),
        points: points(i, base, growth),
        ..RunRecord::default()
    };
    result.runs = (0..3).map(|i| run(i, 18.0, 0.9)).collect();
    let mut stateless = baseline(
        "stateless",
        "djinn 0.1.0, prompt sent anew",
        BaselineStatus::Ran,
    );
    stateless.runs = (0..3).map(|i| run(i, 160.0, 24.0)).collect();
    result.baselines = vec![
        stateless,
        baseline("vllm", "vLLM 0.11", BaselineStatus::Absent),
    ];
    result
}

/// Returns one or two results of each experiment.
pub fn all() -> Vec<ResultFile> {
    vec![
        virtual_memory("llama-13b-16gb", "shapes/llama-13b", 26.0),
        virtual_memory("llama-70b-16gb", "shapes/llama-70b", 140.0),
        memory_pressure("fifty-sessions", 50),
        resume_latency("resume-7b"),
        steering("steer-stories"),
        agents("agents-7b"),
    ]
}
