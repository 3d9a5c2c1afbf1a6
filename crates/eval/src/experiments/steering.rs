//! The steering experiment: effect, exactness and cost of an edit inside the model.

use std::time::Instant;

use djinn_client::{EventStream, HookEdit, Resume, SessionHandle, TurnOutput};
use djinn_report::{RunRecord, percentile};

use super::measure::{ExperimentOutput, limits, model_size_gb, repeat};
use crate::{
    accuracy::{LogitDifference, differing_tokens, relative_change},
    config::EvalConfig,
    error::EvalError,
    memory_sampler::MemorySampler,
    testbed::{ModelUnderTest, Testbed},
    turns::{LOGITS, TimedTurn, delete_after, require_complete, session, synthetic_tokens, timed},
};

const OURS: &str = "djinn";

pub async fn run(config: &EvalConfig, testbed: &Testbed) -> Result<ExperimentOutput, EvalError> {
    let steering = &config.experiment.activation_steering;
    if !steering.enabled {
        return Err(EvalError::Setting {
            key: "experiment.activation_steering.enabled",
            reason: "must be true for the steering experiment".to_owned(),
        });
    }
    let inference = &config.experiment.inference;
    // A text has at most as many tokens as bytes, plus a begin-of-text token.
    let text = inference
        .prompt
        .as_ref()
        .map_or(0, |text| text.len() as u64 + 1);
    let context = inference.prompt_length.max(text) + inference.generation_length;
    let loaded = testbed.load(OURS, limits(config, context, 2)).await?;
    let blocks = loaded.dims.blocks;
    let layer = steering.steering_layer.unwrap_or((blocks / 2).max(1));
    if !(1..=blocks).contains(&layer) {
        return Err(EvalError::Setting {
            key: "experiment.activation_steering.steering_layer",
            reason: format!(
                "layer {layer} does not exist; {} has layers 1 to {blocks}",
                testbed.model.name
            ),
        });
    }
    let measurement = SteeringExperiment {
        config,
        loaded: &loaded,
        prompt: prompt(config, &loaded).await?,
        hook: format!("blocks.{}.hook_resid_post", layer - 1),
        factor: steering.modification_factor,
    };
    let sampler = MemorySampler::start(&testbed.client, &loaded.info.name).await?;
    let size = model_size_gb(testbed, &loaded);
    let one = async |_: u32| -> Result<RunRecord, EvalError> {
        sampler.take_peak();
        let run = measurement.one().await?;
        Ok(RunRecord {
            vram_used_mb: sampler.take_peak(),
            model_size_gb: Some(size),
            ..run
        })
    };
    let (warmup, runs) = repeat(config, testbed, OURS, one).await?;
    let memory = sampler.end();
    let note = format!(
        "scale {} at {}; logit_norm is the larger of two differences: scale 1.0 against no edit, and an \
         edit at a breakpoint against the same edit without a stop",
        measurement.factor, measurement.hook
    );
    testbed.unload(loaded).await?;
    Ok(ExperimentOutput {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        memory,
        notes: vec![note],
        ..ExperimentOutput::default()
    })
}

/// Returns the configured text as tokens, or synthetic tokens if the model has no tokenizer.
async fn prompt(config: &EvalConfig, loaded: &ModelUnderTest) -> Result<Vec<u32>, EvalError> {
    let inference = &config.experiment.inference;
    match &inference.prompt {
        Some(text) if loaded.info.has_text => Ok(loaded.model.tokenize(text).await?),
        _ => Ok(synthetic_tokens(
            loaded.dims.vocab,
            inference.prompt_length,
            3,
        )),
    }
}

/// The experiment on a loaded model.
struct SteeringExperiment<'a> {
    config: &'a EvalConfig,
    loaded: &'a ModelUnderTest,
    prompt: Vec<u32>,
    hook: String,
    factor: f32,
}

impl SteeringExperiment<'_> {
    /// Generates without and with the edit in turns, so that a slow period of the machine affects both
    /// equally; then with a scale of 1.0, and with the edit applied at a breakpoint.
    async fn one(&self) -> Result<RunRecord, EvalError> {
        let begin = Instant::now();
        let (mut plain, mut scaled) = (Vec::new(), Vec::new());
        for turn in 0..2 * self.config.experiment.activation_steering.repeats {
            // The order alternates: plain, scaled, scaled, plain.
            match turn % 4 {
                0 | 3 => plain.push(self.generate(None).await?),
                _ => scaled.push(self.generate(Some(self.scale(self.factor))).await?),
            }
        }
        let unchanged = self.generate(Some(self.scale(1.0))).await?;
        let in_flight = self
            .generate(Some(self.scale(self.factor).at("prompt")))
            .await?;
        let stopped = self.stopped().await?;
        let total_time_ms = begin.elapsed().as_secs_f64() * 1e3;
        let at_stop = stopped.captured.values().next();
        let at_stop = at_stop.map_or(&[][..], |tensor| &tensor.data);
        let (first, first_scaled) = (&plain[0], &scaled[0]);
        let identity = LogitDifference::of(unchanged.logits(), first.logits());
        let stop = LogitDifference::of(at_stop, in_flight.logits());
        let same = unchanged.turn.tokens == first.turn.tokens
            && stopped.tokens == in_flight.turn.tokens
            && all_equal(&plain)
            && all_equal(&scaled);
        let count = first.turn.tokens.len().max(1);
        let changed = differing_tokens(&first.turn.tokens, &first_scaled.turn.tokens);
        let (token, without) = (token_ms(&scaled), token_ms(&plain));
        let first_ms: Vec<f64> = scaled.iter().filter_map(|timed| timed.first_ms).collect();
        let norm = identity.norm.max(stop.norm);
        Ok(RunRecord {
            total_time_ms,
            tokens: Some(count as u64),
            first_token_ms: percentile(&first_ms, 50),
            per_token_ms: token,
            overhead: token.zip(without).map(|(a, b)| a / b - 1.0),
            logit_norm: Some(norm),
            logit_match: Some(identity.matches() && stop.matches()),
            tokens_match: Some(same),
            output_change: Some(relative_change(first.logits(), first_scaled.logits())),
            tokens_changed: Some(changed as f64 / count as f64),
            ..RunRecord::default()
        })
    }

    fn scale(&self, factor: f32) -> HookEdit {
        HookEdit::scale(&self.hook, factor)
    }

    async fn generate(&self, edit: Option<HookEdit>) -> Result<TimedTurn, EvalError> {
        let count = self.config.experiment.inference.generation_length;
        let create = session(self.config, &self.loaded.model, self.prompt.clone(), count);
        let create = create.capture(LOGITS);
        let create = match edit {
            Some(edit) => create.edit(edit),
            None => create,
        };
        let begin = Instant::now();
        let timed = timed(create.open().await?, begin).await?;
        require_complete(&timed.turn)?;
        Ok(timed)
    }

    /// Stops the prompt at the hook, applies the edit there, and resumes.
    async fn stopped(&self) -> Result<TurnOutput, EvalError> {
        let count = self.config.experiment.inference.generation_length;
        let create = session(self.config, &self.loaded.model, self.prompt.clone(), count);
        let create = create
            .capture(LOGITS)
            .breakpoint(format!("{}@prompt", self.hook));
        let events = create.keep().open().await?;
        let session = events.session().clone();
        let turn = self.edited_at_stops(&session, events).await;
        delete_after(&session, turn).await
    }

    async fn edited_at_stops(
        &self,
        session: &SessionHandle,
        events: EventStream,
    ) -> Result<TurnOutput, EvalError> {
        let mut turn = events.collect().await?;
        // A long prompt is computed in several passes, each of which stops.
        while turn.paused().is_some() {
            let edited = Resume::new().edit(self.scale(self.factor));
            turn = session.resume(edited).await?.collect().await?;
        }
        require_complete(&turn)?;
        Ok(turn)
    }
}

/// Returns the median time between tokens, in milliseconds.
fn token_ms(all: &[TimedTurn]) -> Option<f64> {
    let gaps: Vec<f64> = all
        .iter()
        .flat_map(|timed| &timed.gaps_ms)
        .copied()
        .collect();
    percentile(&gaps, 50)
}

/// Whether all turns have the same tokens and logits.
fn all_equal(all: &[TimedTurn]) -> bool {
    all.iter()
        .all(|one| one.turn.tokens == all[0].turn.tokens && one.logits() == all[0].logits())
}
