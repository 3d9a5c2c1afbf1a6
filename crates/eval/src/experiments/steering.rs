//! What a change inside the model does to what it says, whether it is exact, and what it costs.

use std::time::Instant;

use djinn_client::{EventStream, HookEdit, Resume, SessionHandle, TurnOutput};
use djinn_report::{Run, percentile};

use super::{Outcome, limits, model_size_gb, repeat};
use crate::{
    Config, EvalError,
    ask::{LOGITS, Timed, ended, session, some_tokens, timed, whole},
    compare::{Logits, others, share},
    lab::{Lab, Loaded},
    sampler::Sampler,
};

const OURS: &str = "djinn";

pub async fn run(config: &Config, lab: &Lab) -> Result<Outcome, EvalError> {
    let steering = &config.experiment.activation_steering;
    if !steering.enabled {
        let text = "experiment.activation_steering.enabled: false, so there is nothing to measure";
        return Err(EvalError::Asked(text.to_owned()));
    }
    let inference = &config.experiment.inference;
    // A text has no more tokens than bytes, and one that begins it.
    let text = inference
        .prompt
        .as_ref()
        .map_or(0, |text| text.len() as u64 + 1);
    let context = inference.prompt_length.max(text) + inference.generation_length;
    let loaded = lab.load(OURS, limits(config, context, 2)).await?;
    let blocks = loaded.dims.blocks;
    let layer = steering.steering_layer.unwrap_or((blocks / 2).max(1));
    if !(1..=blocks).contains(&layer) {
        return Err(EvalError::Asked(format!(
            "experiment.activation_steering.steering_layer: {} has blocks 1 to {blocks}, and not {layer}",
            lab.subject.name
        )));
    }
    let bench = Bench {
        config,
        loaded: &loaded,
        prompt: prompt(config, &loaded).await?,
        hook: format!("blocks.{}.hook_resid_post", layer - 1),
        factor: steering.modification_factor,
    };
    let sampler = Sampler::start(&lab.client, &loaded.told.name).await?;
    let size = model_size_gb(lab, &loaded);
    let one = async |_: u32| -> Result<Run, EvalError> {
        sampler.take_peak();
        let run = bench.one().await?;
        Ok(Run {
            vram_used_mb: sampler.take_peak(),
            model_size_gb: Some(size),
            ..run
        })
    };
    let (warmup, runs) = repeat(config, lab, OURS, one).await?;
    let memory = sampler.end();
    let note = format!(
        "scale {} at {}; logit_norm is of a scale by 1.0, and of a session that was stopped there and \
         changed, beside one that was changed in flight",
        bench.factor, bench.hook
    );
    lab.unload(loaded).await?;
    Ok(Outcome {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        memory,
        notes: vec![note],
        ..Outcome::default()
    })
}

/// The text of the configuration, where the model has words; else tokens of that length.
async fn prompt(config: &Config, loaded: &Loaded) -> Result<Vec<u32>, EvalError> {
    let inference = &config.experiment.inference;
    match &inference.prompt {
        Some(text) if loaded.told.has_text => Ok(loaded.model.tokenize(text).await?),
        _ => Ok(some_tokens(loaded.dims.vocab, inference.prompt_length, 3)),
    }
}

struct Bench<'a> {
    config: &'a Config,
    loaded: &'a Loaded,
    prompt: Vec<u32>,
    hook: String,
    factor: f32,
}

impl Bench<'_> {
    /// Plain and changed in turns, so that a slow second of the machine is of both; then changed by
    /// nothing, and stopped and changed.
    async fn one(&self) -> Result<Run, EvalError> {
        let begin = Instant::now();
        let (mut plain, mut scaled) = (Vec::new(), Vec::new());
        for turn in 0..2 * self.config.experiment.activation_steering.repeats {
            // Who was first is second the next time: plain, scaled, scaled, plain.
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
        let identity = Logits::beside(unchanged.logits(), first.logits());
        let stop = Logits::beside(at_stop, in_flight.logits());
        let same = unchanged.turn.tokens == first.turn.tokens
            && stopped.tokens == in_flight.turn.tokens
            && is_one(&plain)
            && is_one(&scaled);
        let count = first.turn.tokens.len().max(1);
        let changed = others(&first.turn.tokens, &first_scaled.turn.tokens);
        let (token, without) = (token_ms(&scaled), token_ms(&plain));
        let first_ms: Vec<f64> = scaled.iter().filter_map(|timed| timed.first_ms).collect();
        let norm = identity.norm.max(stop.norm);
        Ok(Run {
            total_time_ms,
            tokens: Some(count as u64),
            first_token_ms: percentile(&first_ms, 50),
            per_token_ms: token,
            overhead: token.zip(without).map(|(a, b)| a / b - 1.0),
            logit_norm: Some(norm),
            logit_match: Some(identity.matches() && stop.matches()),
            tokens_match: Some(same),
            output_change: Some(share(first.logits(), first_scaled.logits())),
            tokens_changed: Some(changed as f64 / count as f64),
            ..Run::default()
        })
    }

    fn scale(&self, factor: f32) -> HookEdit {
        HookEdit::scale(&self.hook, factor)
    }

    async fn generate(&self, edit: Option<HookEdit>) -> Result<Timed, EvalError> {
        let count = self.config.experiment.inference.generation_length;
        let asked = session(self.config, &self.loaded.model, self.prompt.clone(), count);
        let asked = asked.capture(LOGITS);
        let asked = match edit {
            Some(edit) => asked.edit(edit),
            None => asked,
        };
        let begin = Instant::now();
        let timed = timed(asked.open().await?, begin).await?;
        whole(&timed.turn)?;
        Ok(timed)
    }

    /// The prompt stops at the hook, is changed there, and goes on.
    async fn stopped(&self) -> Result<TurnOutput, EvalError> {
        let count = self.config.experiment.inference.generation_length;
        let asked = session(self.config, &self.loaded.model, self.prompt.clone(), count);
        let asked = asked
            .capture(LOGITS)
            .breakpoint(format!("{}@prompt", self.hook));
        let events = asked.keep().open().await?;
        let session = events.session().clone();
        let turn = self.changed_at_stops(&session, events).await;
        ended(&session, turn).await
    }

    async fn changed_at_stops(
        &self,
        session: &SessionHandle,
        events: EventStream,
    ) -> Result<TurnOutput, EvalError> {
        let mut turn = events.collect().await?;
        // A long prompt comes in several parts.
        while turn.paused().is_some() {
            let edited = Resume::new().edit(self.scale(self.factor));
            turn = session.resume(edited).await?.collect().await?;
        }
        whole(&turn)?;
        Ok(turn)
    }
}

/// Milliseconds of a token, of all that were generated.
fn token_ms(all: &[Timed]) -> Option<f64> {
    let gaps: Vec<f64> = all
        .iter()
        .flat_map(|timed| &timed.gaps_ms)
        .copied()
        .collect();
    percentile(&gaps, 50)
}

/// Whether all said the same, and came to it by the same logits.
fn is_one(all: &[Timed]) -> bool {
    all.iter()
        .all(|one| one.turn.tokens == all[0].turn.tokens && one.logits() == all[0].logits())
}
