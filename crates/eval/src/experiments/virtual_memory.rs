//! The virtual-memory experiment: speed and correctness of a model that is larger than the memory budget.

use std::{collections::BTreeMap, time::Instant};

use djinn_client::v1;
use djinn_report::{
    ActivityLane, Baseline, Experiment, PassTimeline, RunRecord, TimelineSpan, percentile,
};
use serde_json::json;

use super::measure::{ExperimentOutput, limits, model_size_gb, record_counters, repeat, unlimited};
use crate::{
    accuracy::LogitDifference,
    baselines::{self, ReferenceOutput},
    config::EvalConfig,
    error::EvalError,
    memory_sampler::MemorySampler,
    testbed::{ModelUnderTest, Testbed},
    turns::{LOGITS, TimedTurn, require_complete, session, synthetic_tokens, timed},
};

/// Name of Djinn among the contenders of this experiment.
const OURS: &str = "ring_buffer_async_prefetch";
/// Number of tokens of the run whose timeline is recorded.
const RECORDED: u64 = 2;

/// Approximate number of spans in a timeline.
const SPANS: usize = 1200;
/// Largest gap between neighbouring spans that are merged, in milliseconds.
const GAP_MS: f64 = 0.05;

/// Runs and memory samples of one contender.
#[derive(Default)]
struct MeasuredRuns {
    warmup: Vec<RunRecord>,
    runs: Vec<RunRecord>,
    memory: Vec<djinn_report::MemorySample>,
    link_ceiling: f64,
}

pub async fn run(config: &EvalConfig, testbed: &Testbed) -> Result<ExperimentOutput, EvalError> {
    let inference = &config.experiment.inference;
    let context = inference.prompt_length + inference.generation_length;
    let limits = limits(config, context, 1);
    let mut notes = Vec::new();
    let mut baselines = Vec::new();
    let (reference, resident) = reference(config, testbed, limits, &mut notes).await?;
    baselines.extend(resident);

    let prefetch = config
        .baselines
        .get(OURS)
        .and_then(|ours| ours.use_async_prefetch);
    let ours = v1::ModelLimits {
        no_prefetch: prefetch == Some(false),
        ..limits
    };
    let loaded = testbed.load(OURS, ours).await?;
    if !config.experiment.ring_buffer.enabled && streams(&loaded) {
        return Err(EvalError::Setting {
            key: "experiment.ring_buffer.enabled",
            reason: format!(
                "is false, but the weights do not fit the budget: {}",
                loaded.info.routing
            ),
        });
    }
    let measured = measure(config, testbed, &loaded, OURS, &reference).await?;
    let timeline = record(config, testbed, &loaded).await?;
    if !streams(&loaded) {
        notes.push(format!("no weights stream: {}", loaded.info.routing));
    }
    testbed.unload(loaded).await?;

    if config.is_enabled("ring_buffer_no_prefetch") {
        baselines.push(without_prefetch(config, testbed, limits, &reference).await?);
    }
    let more = json!({ "prompt": prompt(config, &reference) });
    let output = &reference.output;
    let others =
        baselines::run_all(testbed, config, Experiment::VirtualMemory, &more, output).await?;
    baselines.extend(others);
    Ok(ExperimentOutput {
        baseline: OURS.to_owned(),
        warmup: measured.warmup,
        runs: measured.runs,
        baselines,
        memory: measured.memory,
        timeline,
        notes,
        link_ceiling: Some(measured.link_ceiling),
    })
}

/// Whether some of the weights stream.
fn streams(loaded: &ModelUnderTest) -> bool {
    let memory = loaded.info.memory;
    memory.is_some_and(|memory| memory.streamed_bytes > 0)
}

/// The run that all contenders are compared with.
struct ReferenceRun {
    output: ReferenceOutput,
    vocab: u64,
}

fn prompt(config: &EvalConfig, reference: &ReferenceRun) -> Vec<u32> {
    synthetic_tokens(
        reference.vocab,
        config.experiment.inference.prompt_length,
        1,
    )
}

/// Runs the reference: with all weights in memory if they fit, otherwise without prefetch. Returns it with
/// the baseline `djinn_resident`, if that is enabled.
async fn reference(
    config: &EvalConfig,
    testbed: &Testbed,
    limits: v1::ModelLimits,
    notes: &mut Vec<String>,
) -> Result<(ReferenceRun, Option<Baseline>), EvalError> {
    let fits = testbed.load("djinn_resident", unlimited(limits)).await;
    let (loaded, is_resident) = match fits {
        Ok(loaded) if !streams(&loaded) => (loaded, true),
        other => {
            let why = match other {
                Ok(loaded) => {
                    let why = loaded.info.routing.clone();
                    testbed.unload(loaded).await?;
                    why
                }
                Err(error) => error.to_string(),
            };
            let plain = v1::ModelLimits {
                no_prefetch: true,
                ..limits
            };
            notes.push(format!(
                "the reference run streams weights without prefetch, because they do not all fit: {why}"
            ));
            (testbed.load("reference", plain).await?, false)
        }
    };
    let vocab = loaded.dims.vocab;
    let mut known = ReferenceRun {
        output: ReferenceOutput::default(),
        vocab,
    };
    testbed.report_step("reference run");
    let timed = generate(config, &loaded, &known).await?;
    known.output = ReferenceOutput {
        logits: timed.logits().to_vec(),
        tokens: timed.turn.tokens,
    };
    let mut resident = None;
    if is_resident && config.is_enabled("djinn_resident") {
        let measured = measure(config, testbed, &loaded, "djinn_resident", &known).await?;
        let program = "Djinn, all weights in device memory";
        resident = Some(as_baseline("djinn_resident", program, measured));
    }
    testbed.unload(loaded).await?;
    Ok((known, resident))
}

fn as_baseline(name: &str, program: &str, measured: MeasuredRuns) -> Baseline {
    let mut baseline = baselines::baseline(name, program);
    (baseline.warmup, baseline.runs) = (measured.warmup, measured.runs);
    baseline.memory = measured.memory;
    baseline.sum_up();
    baseline
}

async fn without_prefetch(
    config: &EvalConfig,
    testbed: &Testbed,
    limits: v1::ModelLimits,
    reference: &ReferenceRun,
) -> Result<Baseline, EvalError> {
    let name = "ring_buffer_no_prefetch";
    let limits = v1::ModelLimits {
        no_prefetch: true,
        ..limits
    };
    let loaded = testbed.load(name, limits).await?;
    let measured = measure(config, testbed, &loaded, name, reference).await?;
    testbed.unload(loaded).await?;
    Ok(as_baseline(
        name,
        "Djinn, weights copied on demand",
        measured,
    ))
}

/// Runs the prompt and generates the configured number of tokens.
async fn generate(
    config: &EvalConfig,
    loaded: &ModelUnderTest,
    known: &ReferenceRun,
) -> Result<TimedTurn, EvalError> {
    let tokens = prompt(config, known);
    let count = config.experiment.inference.generation_length;
    let create = session(config, &loaded.model, tokens, count).capture(LOGITS);
    let begin = Instant::now();
    let timed = timed(create.open().await?, begin).await?;
    require_complete(&timed.turn)?;
    Ok(timed)
}

async fn measure(
    config: &EvalConfig,
    testbed: &Testbed,
    loaded: &ModelUnderTest,
    contender: &str,
    reference: &ReferenceRun,
) -> Result<MeasuredRuns, EvalError> {
    let size = model_size_gb(testbed, loaded);
    let sampler = MemorySampler::start(&testbed.client, &loaded.info.name).await?;
    let one = async |_: u32| -> Result<RunRecord, EvalError> {
        sampler.take_peak();
        let before = testbed.status(loaded).await?;
        let timed = generate(config, loaded, reference).await?;
        let after = testbed.status(loaded).await?;
        let logits = LogitDifference::of(timed.logits(), &reference.output.logits);
        let mut run = RunRecord {
            total_time_ms: timed.total_ms,
            model_size_gb: Some(size),
            vram_used_mb: sampler.take_peak(),
            first_token_ms: timed.first_ms,
            per_token_ms: percentile(&timed.gaps_ms, 50),
            logit_norm: Some(logits.norm),
            logit_match: Some(logits.matches()),
            tokens_match: Some(timed.turn.tokens == reference.output.tokens),
            ..RunRecord::default()
        };
        record_counters(&mut run, &before, &after)?;
        (run.paged_out_gb, run.paged_back_gb) = (None, None);
        Ok(run)
    };
    let (warmup, runs) = repeat(config, testbed, contender, one).await?;
    let link_ceiling = testbed.status(loaded).await?.link_ceiling;
    Ok(MeasuredRuns {
        warmup,
        runs,
        memory: sampler.end(),
        link_ceiling,
    })
}

/// Records the timeline of a separate short run; recording costs time, so this run is not measured.
async fn record(
    config: &EvalConfig,
    testbed: &Testbed,
    loaded: &ModelUnderTest,
) -> Result<Option<PassTimeline>, EvalError> {
    testbed.report_step("recording a timeline");
    let tokens = synthetic_tokens(
        loaded.dims.vocab,
        config.experiment.inference.prompt_length,
        2,
    );
    let name = &loaded.info.name;
    testbed.client.record(name).await?;
    let create = session(config, &loaded.model, tokens, RECORDED);
    let ran = timed(create.open().await?, Instant::now()).await;
    let record = testbed.client.end_record(name).await?;
    ran?;
    let Some(first) = record.spans.first().map(|span| span.start_s) else {
        return Ok(None);
    };
    let of = |span: v1::Span| TimelineSpan {
        lane: match span.lane.as_str() {
            "copy" => ActivityLane::Copy,
            "wait" => ActivityLane::Wait,
            _ => ActivityLane::Compute,
        },
        name: span.name,
        start_ms: to_microseconds(span.start_s - first),
        ms: to_microseconds(span.seconds),
        bytes: span.bytes,
    };
    let spans = record.spans.into_iter().map(of).collect();
    Ok(Some(PassTimeline {
        spans: merged(spans),
    }))
}

/// Merges neighbouring spans of a lane until about [`SPANS`] are left.
fn merged(spans: Vec<TimelineSpan>) -> Vec<TimelineSpan> {
    let together = spans.len().div_ceil(SPANS);
    let mut spans_out: Vec<TimelineSpan> = Vec::new();
    // Index of the last span of each lane, and the number of spans merged into it.
    let mut last: BTreeMap<ActivityLane, (usize, usize)> = BTreeMap::new();
    for span in spans {
        if let Some((at, count)) = last.get_mut(&span.lane) {
            let before = &mut spans_out[*at];
            let gap = span.start_ms - (before.start_ms + before.ms);
            if *count < together && gap < GAP_MS {
                before.ms = to_microseconds((span.start_ms + span.ms - before.start_ms) / 1e3);
                before.bytes += span.bytes;
                *count += 1;
                continue;
            }
        }
        last.insert(span.lane, (spans_out.len(), 1));
        spans_out.push(span);
    }
    spans_out
}

/// Converts seconds to milliseconds, rounded to the microsecond.
fn to_microseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use djinn_report::{ActivityLane, TimelineSpan};

    use super::merged;

    #[test]
    fn neighbouring_spans_are_merged_without_loss() {
        let span = |lane, number: usize| TimelineSpan {
            lane,
            name: number.to_string(),
            start_ms: number as f64,
            ms: 0.99,
            bytes: 7,
        };
        let few = vec![
            span(ActivityLane::Copy, 0),
            span(ActivityLane::Compute, 0),
            span(ActivityLane::Copy, 1),
        ];
        assert_eq!(merged(few.clone()), few);
        let many: Vec<TimelineSpan> = (0..6000).map(|i| span(ActivityLane::Copy, i)).collect();
        let thin = merged(many);
        assert_eq!(thin.len(), 1200);
        assert_eq!(thin.iter().map(|span| span.bytes).sum::<u64>(), 42_000);
        assert!((thin[0].ms - 4.99).abs() < 1e-9);
        let apart: Vec<TimelineSpan> = (0..6000)
            .map(|i| span(ActivityLane::Wait, 10 * i))
            .collect();
        assert_eq!(merged(apart).len(), 6000);
    }
}
