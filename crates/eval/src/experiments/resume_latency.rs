//! How long a session that stopped behind a block takes until the next block begins: with its KV on the
//! device, with its KV on the host, and with everything computed again.

use std::time::{Duration, Instant};

use djinn_client::{Events, Resume, Session, Turn};
use djinn_report::{Experiment, Point, Run, percentile};
use serde_json::json;

use super::{Outcome, limits, model_size_gb, repeat};
use crate::{
    Config, EvalError,
    ask::{ended, session, some_tokens, whole},
    baselines::{self, Reference},
    lab::{Lab, Loaded},
    sampler::Sampler,
};

const OURS: &str = "djinn";
/// How long pages may take to leave, and how often that is looked at.
const LEAVING: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(2);

pub async fn run(config: &Config, lab: &Lab) -> Result<Outcome, EvalError> {
    let experiment = &config.experiment;
    let repeats = u64::from(experiment.breakpoints.repeats.max(1));
    // A token for every stop, and some to go on with.
    let context = experiment.inference.prompt_length + 2 * repeats + 8;
    let asked = limits(config, context, experiment.sessions.count);
    let loaded = lab.load(OURS, asked).await?;
    let blocks = loaded.dims.blocks;
    let layers = &experiment.breakpoints.layers;
    if let Some(layer) = layers.iter().find(|layer| !(1..=blocks).contains(*layer)) {
        return Err(EvalError::Asked(format!(
            "experiment.breakpoints.layers: {} has blocks 1 to {blocks}, and not {layer}",
            lab.subject.name
        )));
    }
    let bench = Bench {
        config,
        lab,
        loaded: &loaded,
        repeats,
    };
    let sampler = Sampler::start(&lab.client, &loaded.told.name).await?;
    let one = async |number: u32| bench.one(number, &sampler).await;
    let (warmup, runs) = repeat(config, lab, OURS, one).await?;
    let memory = sampler.end();
    let mut notes = Vec::new();
    if !runs
        .iter()
        .flat_map(|run| &run.points)
        .any(|p| p.series == "resume_from_host")
    {
        let note = "resume_from_host: pages never leave, since memory holds those of all sessions; give \
                    less memory or more experiment.sessions.count";
        notes.push(note.to_owned());
    }
    let mut all = Vec::new();
    if config.runs("djinn_recompute") {
        let program = "Djinn, everything computed again";
        let mut again = baselines::own("djinn_recompute", program);
        let one = async |number: u32| bench.recompute(number).await;
        (again.warmup, again.runs) = repeat(config, lab, "djinn_recompute", one).await?;
        again.sum_up();
        all.push(again);
    }
    let vocab = loaded.dims.vocab;
    lab.unload(loaded).await?;
    let more = json!({
        "prompt": some_tokens(vocab, experiment.inference.prompt_length, 0), "layers": layers,
    });
    let none = Reference::default();
    all.extend(baselines::run_all(lab, config, Experiment::ResumeLatency, &more, &none).await?);
    Ok(Outcome {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        baselines: all,
        memory,
        notes,
        ..Outcome::default()
    })
}

/// What stops of a session came to.
#[derive(Default)]
struct Stops {
    /// Milliseconds until the next block began, with KV on the device.
    here: Vec<f64>,
    /// The same with KV on the host.
    away: Vec<f64>,
    /// Everything it generated.
    tokens: Vec<u32>,
}

struct Bench<'a> {
    config: &'a Config,
    lab: &'a Lab,
    loaded: &'a Loaded,
    repeats: u64,
}

impl Bench<'_> {
    fn prompt(&self, number: u64) -> Vec<u32> {
        let count = self.config.experiment.inference.prompt_length;
        some_tokens(self.loaded.dims.vocab, count, number)
    }

    /// Tokens that a session of all stops generates.
    fn count(&self) -> u64 {
        2 * self.repeats + 2
    }

    /// Every layer once.
    async fn one(&self, run: u32, sampler: &Sampler) -> Result<Run, EvalError> {
        sampler.take_peak();
        let begin = Instant::now();
        let (mut points, mut same) = (Vec::new(), true);
        for &layer in &self.config.experiment.breakpoints.layers {
            // No two prompts are alike, or one would take the other's pages.
            let number = u64::from(run) * 1000 + layer;
            let uninterrupted = self.uninterrupted(number).await?;
            let stops = self.stops(layer, number).await?;
            same &= stops.tokens == uninterrupted;
            let x = layer as f64;
            for (series, times) in [("resume", stops.here), ("resume_from_host", stops.away)] {
                if let Some(ms) = percentile(&times, 50) {
                    let series = series.to_owned();
                    points.push(Point { series, x, ms });
                }
            }
        }
        Ok(Run {
            total_time_ms: begin.elapsed().as_secs_f64() * 1e3,
            model_size_gb: Some(model_size_gb(self.lab, self.loaded)),
            vram_used_mb: sampler.take_peak(),
            tokens_match: Some(same),
            points,
            ..Run::default()
        })
    }

    /// What a session generates that nobody stops.
    async fn uninterrupted(&self, number: u64) -> Result<Vec<u32>, EvalError> {
        let asked = session(
            self.config,
            &self.loaded.model,
            self.prompt(number),
            self.count(),
        );
        let turn = asked.open().await?.collect().await?;
        whole(&turn)?;
        Ok(turn.tokens)
    }

    /// A session that stops behind a block whenever it generates a token.
    async fn stops(&self, layer: u64, number: u64) -> Result<Stops, EvalError> {
        let hook = format!("blocks.{}.hook_resid_post@generated", layer - 1);
        let asked = session(
            self.config,
            &self.loaded.model,
            self.prompt(number),
            self.count(),
        );
        let events = asked.breakpoint(hook).keep().open().await?;
        let stopped = events.session().clone();
        let stops = self.stop_by_stop(&stopped, events).await;
        ended(&stopped, stops).await
    }

    async fn stop_by_stop(&self, stopped: &Session, events: Events) -> Result<Stops, EvalError> {
        let mut turn = events.collect().await?;
        let mut stops = Stops {
            tokens: turn.tokens.clone(),
            ..Stops::default()
        };
        for _ in 0..self.repeats {
            stops.here.push(next_block(stopped, &turn).await?);
            turn = go_on(stopped, &mut stops.tokens).await?;
            if leave(stopped).await? {
                stops.away.push(next_block(stopped, &turn).await?);
            }
            turn = go_on(stopped, &mut stops.tokens).await?;
        }
        stopped.set_breakpoints(Vec::<String>::new()).await?;
        while turn.paused().is_some() {
            turn = go_on(stopped, &mut stops.tokens).await?;
        }
        whole(&turn)?;
        Ok(stops)
    }

    /// Sessions that have nothing, until they have come behind each block.
    async fn recompute(&self, run: u32) -> Result<Run, EvalError> {
        let (begin, mut points) = (Instant::now(), Vec::new());
        for &layer in &self.config.experiment.breakpoints.layers {
            let number = 500_000 + u64::from(run) * 1000 + layer;
            let hook = format!("blocks.{}.hook_resid_post@prompt", layer - 1);
            let asked = session(self.config, &self.loaded.model, self.prompt(number), 1);
            let asked = asked.breakpoint(hook).keep();
            let since = Instant::now();
            let events = asked.open().await?;
            let stopped = events.session().clone();
            let turn = events.collect().await.map_err(EvalError::from);
            let ms = since.elapsed().as_secs_f64() * 1e3;
            is_stopped(&ended(&stopped, turn).await?)?;
            let (series, x) = ("resume".to_owned(), layer as f64);
            points.push(Point { series, x, ms });
        }
        Ok(Run {
            total_time_ms: begin.elapsed().as_secs_f64() * 1e3,
            points,
            ..Run::default()
        })
    }
}

/// Milliseconds until a session that stopped has come to the next hook, where the next block begins.
async fn next_block(stopped: &Session, turn: &Turn) -> Result<f64, EvalError> {
    is_stopped(turn)?;
    let begin = Instant::now();
    let turn = stopped
        .resume(Resume::new().to_next_hook())
        .await?
        .collect()
        .await?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    is_stopped(&turn)?;
    Ok(ms)
}

fn is_stopped(turn: &Turn) -> Result<(), EvalError> {
    match (turn.paused(), turn.finished()) {
        (Some(_), _) => Ok(()),
        (None, Some(finished)) => Err(EvalError::Asked(format!(
            "a session ended before it stopped: {} {}",
            finished.why, finished.failure
        ))),
        (None, None) => Err(EvalError::Asked("a session was lost".to_owned())),
    }
}

/// To the next breakpoint, or to the end of the turn.
async fn go_on(stopped: &Session, tokens: &mut Vec<u32>) -> Result<Turn, EvalError> {
    let turn = stopped.resume(Resume::new()).await?.collect().await?;
    tokens.extend(&turn.tokens);
    Ok(turn)
}

/// Lets all pages of a session go, where there is somewhere to go to. Says whether they did.
async fn leave(stopped: &Session) -> Result<bool, EvalError> {
    stopped.waiting(None).await?;
    let begin = Instant::now();
    let mut before = u64::MAX;
    loop {
        let told = stopped.info().await?;
        if told.pages_away >= told.pages && told.pages > 0 {
            return Ok(true);
        }
        // Nothing leaves where there is nowhere to go to.
        let patience = if told.pages_away == 0 {
            LOOK * 50
        } else {
            LEAVING
        };
        if begin.elapsed() > patience && told.pages_away == before {
            return Ok(false);
        }
        before = told.pages_away;
        tokio::time::sleep(LOOK).await;
    }
}
