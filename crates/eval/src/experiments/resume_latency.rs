//! The resume-latency experiment: time from resuming a session that stopped after a block to the start of
//! the next block, with its KV cache on the device, in host memory, and recomputed.

use std::time::Instant;

use djinn_client::Create;
use djinn_report::{Experiment, Point, RunRecord, percentile};
use serde_json::json;

use super::{
    measure::{ExperimentOutput, limits, model_size_gb, repeat},
    stopping_session::{ResumeTime, StopAt, StoppingSession},
};
use crate::{
    baselines::{self, ReferenceOutput},
    config::EvalConfig,
    error::EvalError,
    memory_sampler::MemorySampler,
    testbed::{ModelUnderTest, Testbed},
    turns::{delete_after, require_complete, session, synthetic_tokens},
};

const OURS: &str = "djinn";
/// Series of the times with the KV cache on the device.
const ON_DEVICE: &str = "resume";
/// Series of the times with the KV cache in host memory.
const FROM_HOST: &str = "resume_from_host";
/// Series of the times with the KV cache on the device, taken by the engine.
const ON_DEVICE_INSIDE: &str = "resume_inside";
/// Series of the times with the KV cache in host memory, taken by the engine.
const FROM_HOST_INSIDE: &str = "resume_from_host_inside";

pub async fn run(config: &EvalConfig, testbed: &Testbed) -> Result<ExperimentOutput, EvalError> {
    let experiment = &config.experiment;
    let repeats = u64::from(experiment.breakpoints.repeats);
    // Every stop takes a token, and the session needs some more to finish.
    let context = experiment.inference.prompt_length + 2 * repeats + 8;
    // One session for every layer, and one without breakpoints.
    let sessions = experiment.breakpoints.layers.len() as u64 + 1;
    let sessions = experiment.sessions.count.max(sessions);
    let loaded = testbed
        .load(OURS, limits(config, context, sessions))
        .await?;
    let (blocks, room) = (loaded.dims.blocks, loaded.dims.context);
    if context > room {
        return Err(EvalError::Setting {
            key: "experiment.inference.prompt_length",
            reason: format!(
                "prompt_length plus 2 × experiment.breakpoints.repeats plus 8 is {context} tokens, but \
                 the context of {} is {room}; reduce one of them",
                testbed.model.name
            ),
        });
    }
    let layers = &experiment.breakpoints.layers;
    if let Some(layer) = layers.iter().find(|layer| !(1..=blocks).contains(*layer)) {
        return Err(EvalError::Setting {
            key: "experiment.breakpoints.layers",
            reason: format!(
                "layer {layer} does not exist; {} has layers 1 to {blocks}",
                testbed.model.name
            ),
        });
    }
    let measurement = ResumeExperiment {
        config,
        testbed,
        loaded: &loaded,
        repeats,
    };
    let sampler = MemorySampler::start(&testbed.client, &loaded.info.name).await?;
    let one = async |number: u32| measurement.one(number, &sampler).await;
    let (warmup, runs) = repeat(config, testbed, OURS, one).await?;
    let memory = sampler.end();
    let notes = missing(&runs, layers);
    let mut all = Vec::new();
    if config.is_enabled("djinn_recompute") {
        let program = "Djinn, recomputes everything";
        let mut again = baselines::baseline("djinn_recompute", program);
        let one = async |number: u32| measurement.recompute(number).await;
        (again.warmup, again.runs) = repeat(config, testbed, "djinn_recompute", one).await?;
        again.sum_up();
        all.push(again);
    }
    let vocab = loaded.dims.vocab;
    testbed.unload(loaded).await?;
    let more = json!({
        "prompt": synthetic_tokens(vocab, experiment.inference.prompt_length, 0), "layers": layers,
    });
    let none = ReferenceOutput::default();
    all.extend(baselines::run_all(testbed, config, Experiment::ResumeLatency, &more, &none).await?);
    Ok(ExperimentOutput {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        baselines: all,
        memory,
        notes,
        ..ExperimentOutput::default()
    })
}

/// Returns a note on layers at which KV pages did not always leave the device.
fn missing(runs: &[RunRecord], layers: &[u64]) -> Vec<String> {
    let has = |run: &RunRecord, layer: u64| {
        let is = |point: &Point| point.series == FROM_HOST && point.x == layer as f64;
        run.points.iter().any(is)
    };
    let lacks = |layer: &&u64| !runs.iter().all(|run| has(run, **layer));
    let without: Vec<String> = layers.iter().filter(lacks).map(u64::to_string).collect();
    if without.is_empty() {
        return Vec::new();
    }
    let note = format!(
        "{FROM_HOST} at layer {}: KV pages did not always leave the device, because it holds those of all \
         sessions; reduce the memory budget or raise experiment.sessions.count",
        without.join(", ")
    );
    vec![note]
}

/// The experiment on a loaded model.
struct ResumeExperiment<'a> {
    config: &'a EvalConfig,
    testbed: &'a Testbed,
    loaded: &'a ModelUnderTest,
    repeats: u64,
}

impl ResumeExperiment<'_> {
    fn prompt(&self, number: u64) -> Vec<u32> {
        let count = self.config.experiment.inference.prompt_length;
        synthetic_tokens(self.loaded.dims.vocab, count, number)
    }

    /// Returns the number of tokens that a session with all stops generates.
    fn count(&self) -> u64 {
        2 * self.repeats + 2
    }

    fn session(&self, number: u64, count: u64) -> Create {
        session(self.config, &self.loaded.model, self.prompt(number), count)
    }

    fn layers(&self) -> impl Iterator<Item = u64> {
        self.config.experiment.breakpoints.layers.iter().copied()
    }

    /// Measures stops after every layer, and compares the tokens with those of uninterrupted sessions.
    async fn one(&self, run: u32, sampler: &MemorySampler) -> Result<RunRecord, EvalError> {
        sampler.take_peak();
        let begin = Instant::now();
        let mut want = Vec::new();
        for layer in self.layers() {
            want.push(self.uninterrupted(number(run, layer)).await?);
        }
        let mut all = Vec::new();
        let mut result = self.stop_in_turns(run, &mut all).await;
        for stopping in &all {
            result = delete_after(&stopping.session, result).await;
        }
        result?;
        let mut points = Vec::new();
        for (layer, stopping) in self.layers().zip(&all) {
            points.extend(self.points(layer, stopping)?);
        }
        let found = all.iter().map(|stopping| &stopping.tokens);
        Ok(RunRecord {
            total_time_ms: begin.elapsed().as_secs_f64() * 1e3,
            model_size_gb: Some(model_size_gb(self.testbed, self.loaded)),
            vram_used_mb: sampler.take_peak(),
            tokens_match: Some(found.eq(&want)),
            points,
            ..RunRecord::default()
        })
    }

    /// Returns the median times at a layer. A series is left out unless every stop contributed.
    fn points(&self, layer: u64, stopping: &StoppingSession) -> Result<Vec<Point>, EvalError> {
        let point = |series: &str, all: &[ResumeTime], ms: fn(&ResumeTime) -> Option<f64>| {
            let times: Vec<f64> = all.iter().filter_map(ms).collect();
            let complete = times.len() as u64 == self.repeats;
            let ms = complete.then(|| percentile(&times, 50)).flatten()?;
            let (series, x) = (series.to_owned(), layer as f64);
            Some(Point { series, x, ms })
        };
        let outside = |took: &ResumeTime| Some(took.ms);
        let inside = |took: &ResumeTime| took.inside_ms;
        let on_device = point(ON_DEVICE, &stopping.on_device, outside).ok_or_else(|| {
            let reason = "device memory does not hold the KV cache of one session for each layer; raise the \
                          memory budget or reduce the number of layers";
            EvalError::Setting {
                key: "experiment.breakpoints.layers",
                reason: reason.to_owned(),
            }
        })?;
        let more = [
            point(FROM_HOST, &stopping.from_host, outside),
            point(ON_DEVICE_INSIDE, &stopping.on_device, inside),
            point(FROM_HOST_INSIDE, &stopping.from_host, inside),
        ];
        Ok(std::iter::once(on_device)
            .chain(more.into_iter().flatten())
            .collect())
    }

    /// Returns the tokens of a session without breakpoints.
    async fn uninterrupted(&self, number: u64) -> Result<Vec<u32>, EvalError> {
        let create = self.session(number, self.count());
        let turn = create.open().await?.collect().await?;
        require_complete(&turn)?;
        Ok(turn.tokens)
    }

    /// Opens a session for every layer and stops them in turns, so that a slow period of the machine affects
    /// all layers equally. The caller has to delete the opened sessions, even after an error.
    async fn stop_in_turns(
        &self,
        run: u32,
        all: &mut Vec<StoppingSession>,
    ) -> Result<(), EvalError> {
        for layer in self.layers() {
            let create = self.session(number(run, layer), self.count());
            all.push(StoppingSession::open(create, layer, StopAt::Generated).await?);
        }
        for _ in 0..self.repeats {
            for stopping in &mut *all {
                stopping.measure_both().await?;
            }
        }
        for stopping in all {
            stopping.finish().await?;
        }
        Ok(())
    }

    /// Measures sessions that compute their prompt up to each layer.
    async fn recompute(&self, run: u32) -> Result<RunRecord, EvalError> {
        let (begin, mut points) = (Instant::now(), Vec::new());
        for layer in self.layers() {
            let create = self.session(500_000 + number(run, layer), 1);
            let since = Instant::now();
            let stopping = StoppingSession::open(create, layer, StopAt::Prompt).await?;
            let ms = since.elapsed().as_secs_f64() * 1e3;
            delete_after(&stopping.session, Ok(())).await?;
            let (series, x) = (ON_DEVICE.to_owned(), layer as f64);
            points.push(Point { series, x, ms });
        }
        Ok(RunRecord {
            total_time_ms: begin.elapsed().as_secs_f64() * 1e3,
            points,
            ..RunRecord::default()
        })
    }
}

/// Returns a number that gives every session another prompt, so that none uses the prefix cache.
fn number(run: u32, layer: u64) -> u64 {
    u64::from(run) * 1000 + layer
}
