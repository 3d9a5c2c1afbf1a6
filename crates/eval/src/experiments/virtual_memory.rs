//! A model larger than the memory it runs in: how fast, and is it right?

use std::{collections::BTreeMap, time::Instant};

use djinn_client::v1;
use djinn_report::{Baseline, Experiment, Lane, Run, Span, Timeline, percentile};
use serde_json::json;

use super::{Outcome, count, limits, model_size_gb, repeat, unlimited};
use crate::{
    Config, EvalError,
    ask::{LOGITS, Timed, session, some_tokens, timed, whole},
    baselines::{self, Reference},
    compare::Logits,
    lab::{Lab, Loaded},
    sampler::Sampler,
};

/// What Djinn is called here.
const OURS: &str = "ring_buffer_async_prefetch";
/// Tokens of the run whose copies and operations are recorded.
const RECORDED: u64 = 2;

/// Spans of a record that are written down, about; and what lies between neighbours that become one, at
/// most.
const SPANS: usize = 1200;
const GAP_MS: f64 = 0.05;

/// One contender's runs.
#[derive(Default)]
struct Measured {
    warmup: Vec<Run>,
    runs: Vec<Run>,
    memory: Vec<djinn_report::MemorySample>,
    link_ceiling: f64,
}

pub async fn run(config: &Config, lab: &Lab) -> Result<Outcome, EvalError> {
    let inference = &config.experiment.inference;
    let context = inference.prompt_length + inference.generation_length;
    let asked = limits(config, context, 1);
    let mut notes = Vec::new();
    let mut baselines = Vec::new();
    let (reference, resident) = reference(config, lab, asked, &mut notes).await?;
    baselines.extend(resident);

    let prefetch = config
        .baselines
        .get(OURS)
        .and_then(|ours| ours.use_async_prefetch);
    let ours = v1::ModelLimits {
        no_prefetch: prefetch == Some(false),
        ..asked
    };
    let loaded = lab.load(OURS, ours).await?;
    if !config.experiment.ring_buffer.enabled && streams(&loaded) {
        return Err(EvalError::Asked(format!(
            "experiment.ring_buffer.enabled: false, and not everything fits: {}",
            loaded.told.routing
        )));
    }
    let measured = measure(config, lab, &loaded, OURS, &reference).await?;
    let timeline = record(config, lab, &loaded).await?;
    if !streams(&loaded) {
        notes.push(format!("nothing streams: {}", loaded.told.routing));
    }
    lab.unload(loaded).await?;

    if config.runs("ring_buffer_no_prefetch") {
        baselines.push(without_prefetch(config, lab, asked, &reference).await?);
    }
    let more = json!({ "prompt": prompt(config, &reference) });
    let kept = &reference.kept;
    let others = baselines::run_all(lab, config, Experiment::VirtualMemory, &more, kept).await?;
    baselines.extend(others);
    Ok(Outcome {
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

/// Whether some of the weights come over the link.
fn streams(loaded: &Loaded) -> bool {
    let memory = loaded.told.memory;
    memory.is_some_and(|memory| memory.streamed_bytes > 0)
}

/// What everybody is compared with.
struct Known {
    kept: Reference,
    vocab: u64,
}

fn prompt(config: &Config, reference: &Known) -> Vec<u32> {
    some_tokens(
        reference.vocab,
        config.experiment.inference.prompt_length,
        1,
    )
}

/// The reference: everything in memory, where that is possible; else weights brought when they are
/// needed and not ahead, which is the plain way that the other has to equal.
async fn reference(
    config: &Config,
    lab: &Lab,
    asked: v1::ModelLimits,
    notes: &mut Vec<String>,
) -> Result<(Known, Option<Baseline>), EvalError> {
    let fits = lab.load("djinn_resident", unlimited(asked)).await;
    let (loaded, is_resident) = match fits {
        Ok(loaded) if !streams(&loaded) => (loaded, true),
        other => {
            let why = match other {
                Ok(loaded) => {
                    let why = loaded.told.routing.clone();
                    lab.unload(loaded).await?;
                    why
                }
                Err(error) => error.to_string(),
            };
            let plain = v1::ModelLimits {
                no_prefetch: true,
                ..asked
            };
            notes.push(format!(
                "the reference has its weights brought when they are needed and not ahead, since all of \
                 them cannot be in memory: {why}"
            ));
            (lab.load("reference", plain).await?, false)
        }
    };
    let vocab = loaded.dims.vocab;
    let mut known = Known {
        kept: Reference::default(),
        vocab,
    };
    lab.say("the reference run");
    let timed = generate(config, &loaded, &known).await?;
    known.kept = Reference {
        logits: timed.logits().to_vec(),
        tokens: timed.turn.tokens,
    };
    let mut resident = None;
    if is_resident && config.runs("djinn_resident") {
        let measured = measure(config, lab, &loaded, "djinn_resident", &known).await?;
        let program = "Djinn, all weights in device memory";
        resident = Some(as_baseline("djinn_resident", program, measured));
    }
    lab.unload(loaded).await?;
    Ok((known, resident))
}

fn as_baseline(name: &str, program: &str, measured: Measured) -> Baseline {
    let mut baseline = baselines::own(name, program);
    (baseline.warmup, baseline.runs) = (measured.warmup, measured.runs);
    baseline.memory = measured.memory;
    baseline.sum_up();
    baseline
}

async fn without_prefetch(
    config: &Config,
    lab: &Lab,
    asked: v1::ModelLimits,
    reference: &Known,
) -> Result<Baseline, EvalError> {
    let name = "ring_buffer_no_prefetch";
    let asked = v1::ModelLimits {
        no_prefetch: true,
        ..asked
    };
    let loaded = lab.load(name, asked).await?;
    let measured = measure(config, lab, &loaded, name, reference).await?;
    lab.unload(loaded).await?;
    Ok(as_baseline(
        name,
        "Djinn, weights brought when they are needed",
        measured,
    ))
}

/// The prompt, and what is generated behind it.
async fn generate(config: &Config, loaded: &Loaded, known: &Known) -> Result<Timed, EvalError> {
    let tokens = prompt(config, known);
    let count = config.experiment.inference.generation_length;
    let asked = session(config, &loaded.model, tokens, count).capture(LOGITS);
    let begin = Instant::now();
    let timed = timed(asked.open().await?, begin).await?;
    whole(&timed.turn)?;
    Ok(timed)
}

async fn measure(
    config: &Config,
    lab: &Lab,
    loaded: &Loaded,
    who: &str,
    reference: &Known,
) -> Result<Measured, EvalError> {
    let size = model_size_gb(lab, loaded);
    let sampler = Sampler::start(&lab.client, &loaded.told.name).await?;
    let one = async |_: u32| -> Result<Run, EvalError> {
        sampler.take_peak();
        let before = lab.status(loaded).await?;
        let timed = generate(config, loaded, reference).await?;
        let after = lab.status(loaded).await?;
        let logits = Logits::beside(timed.logits(), &reference.kept.logits);
        let mut run = Run {
            total_time_ms: timed.total_ms,
            model_size_gb: Some(size),
            vram_used_mb: sampler.take_peak(),
            first_token_ms: timed.first_ms,
            per_token_ms: percentile(&timed.gaps_ms, 50),
            logit_norm: Some(logits.norm),
            logit_match: Some(logits.matches()),
            tokens_match: Some(timed.turn.tokens == reference.kept.tokens),
            ..Run::default()
        };
        count(&mut run, &before, &after)?;
        (run.paged_out_gb, run.paged_back_gb) = (None, None);
        Ok(run)
    };
    let (warmup, runs) = repeat(config, lab, who, one).await?;
    let link_ceiling = lab.status(loaded).await?.link_ceiling;
    Ok(Measured {
        warmup,
        runs,
        memory: sampler.end(),
        link_ceiling,
    })
}

/// Copies and operations of a short run of its own: to record costs time, so nothing is measured there.
async fn record(
    config: &Config,
    lab: &Lab,
    loaded: &Loaded,
) -> Result<Option<Timeline>, EvalError> {
    lab.say("a run that is recorded");
    let tokens = some_tokens(
        loaded.dims.vocab,
        config.experiment.inference.prompt_length,
        2,
    );
    let name = &loaded.told.name;
    lab.client.record(name).await?;
    let asked = session(config, &loaded.model, tokens, RECORDED);
    let ran = timed(asked.open().await?, Instant::now()).await;
    let kept = lab.client.end_record(name).await?;
    ran?;
    let Some(first) = kept.spans.first().map(|span| span.start_s) else {
        return Ok(None);
    };
    let of = |span: v1::Span| Span {
        lane: match span.lane.as_str() {
            "copy" => Lane::Copy,
            "wait" => Lane::Wait,
            _ => Lane::Compute,
        },
        name: span.name,
        start_ms: to_microseconds(span.start_s - first),
        ms: to_microseconds(span.seconds),
        bytes: span.bytes,
    };
    let spans = kept.spans.into_iter().map(of).collect();
    Ok(Some(Timeline {
        spans: thinned(spans),
    }))
}

/// Where there are very many, neighbours in a lane with nothing to speak of between them become one.
fn thinned(spans: Vec<Span>) -> Vec<Span> {
    let together = spans.len().div_ceil(SPANS);
    let mut merged: Vec<Span> = Vec::new();
    // For each lane the last span, and how many it stands for.
    let mut last: BTreeMap<Lane, (usize, usize)> = BTreeMap::new();
    for span in spans {
        if let Some((at, count)) = last.get_mut(&span.lane) {
            let before = &mut merged[*at];
            let gap = span.start_ms - (before.start_ms + before.ms);
            if *count < together && gap < GAP_MS {
                before.ms = to_microseconds((span.start_ms + span.ms - before.start_ms) / 1e3);
                before.bytes += span.bytes;
                *count += 1;
                continue;
            }
        }
        last.insert(span.lane, (merged.len(), 1));
        merged.push(span);
    }
    merged
}

/// Seconds as milliseconds, to the microsecond: what clocks say beyond that is noise.
fn to_microseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use djinn_report::{Lane, Span};

    use super::thinned;

    #[test]
    fn neighbours_become_one_and_nothing_is_lost() {
        let span = |lane, number: usize| Span {
            lane,
            name: number.to_string(),
            start_ms: number as f64,
            ms: 0.99,
            bytes: 7,
        };
        let few = vec![
            span(Lane::Copy, 0),
            span(Lane::Compute, 0),
            span(Lane::Copy, 1),
        ];
        assert_eq!(thinned(few.clone()), few);
        let many: Vec<Span> = (0..6000).map(|i| span(Lane::Copy, i)).collect();
        let thin = thinned(many);
        assert_eq!(thin.len(), 1200);
        assert_eq!(thin.iter().map(|span| span.bytes).sum::<u64>(), 42_000);
        assert!((thin[0].ms - 4.99).abs() < 1e-9);
        let apart: Vec<Span> = (0..6000).map(|i| span(Lane::Wait, 10 * i)).collect();
        assert_eq!(thinned(apart).len(), 6000);
    }
}
