//! How long a session that stopped behind a block takes until the next block begins: with its KV on the
//! device, with its KV on the host, and with everything computed again.

use std::time::Instant;

use djinn_client::Create;
use djinn_report::{Experiment, Point, Run, percentile};
use serde_json::json;

use super::{
    Outcome, limits, model_size_gb, repeat,
    stopping::{At, Stopping, Took},
};
use crate::{
    Config, EvalError,
    ask::{ended, session, some_tokens, whole},
    baselines::{self, Reference},
    lab::{Lab, Loaded},
    sampler::Sampler,
};

const OURS: &str = "djinn";
/// Going on with KV on the device, and with KV on the host.
const HERE: &str = "resume";
const AWAY: &str = "resume_from_host";
/// The same without the client's way to the server and back.
const HERE_INSIDE: &str = "resume_inside";
const AWAY_INSIDE: &str = "resume_from_host_inside";

pub async fn run(config: &Config, lab: &Lab) -> Result<Outcome, EvalError> {
    let experiment = &config.experiment;
    let repeats = u64::from(experiment.breakpoints.repeats);
    // A token for every stop, and some to go on with.
    let context = experiment.inference.prompt_length + 2 * repeats + 8;
    // A session for every layer, and one that nobody stops.
    let sessions = experiment.breakpoints.layers.len() as u64 + 1;
    let sessions = experiment.sessions.count.max(sessions);
    let asked = limits(config, context, sessions);
    let loaded = lab.load(OURS, asked).await?;
    let (blocks, room) = (loaded.dims.blocks, loaded.dims.context);
    if context > room {
        return Err(EvalError::Asked(format!(
            "{} has room for {room} tokens: experiment.inference.prompt_length and 2 × \
             experiment.breakpoints.repeats + 8 more come to {context}",
            lab.subject.name
        )));
    }
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
    let notes = missing(&runs, layers);
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

/// Tells of layers at which pages did not always leave.
fn missing(runs: &[Run], layers: &[u64]) -> Vec<String> {
    let has = |run: &Run, layer: u64| {
        let is = |point: &Point| point.series == AWAY && point.x == layer as f64;
        run.points.iter().any(is)
    };
    let lacks = |layer: &&u64| !runs.iter().all(|run| has(run, **layer));
    let without: Vec<String> = layers.iter().filter(lacks).map(u64::to_string).collect();
    if without.is_empty() {
        return Vec::new();
    }
    let note = format!(
        "{AWAY} at {}: pages did not leave every time, since memory holds those of all sessions; give \
         less memory or more experiment.sessions.count",
        without.join(", ")
    );
    vec![note]
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

    fn asked(&self, number: u64, count: u64) -> Create {
        session(self.config, &self.loaded.model, self.prompt(number), count)
    }

    fn layers(&self) -> impl Iterator<Item = u64> {
        self.config.experiment.breakpoints.layers.iter().copied()
    }

    /// Stops behind every layer, beside the same sessions that nobody stops.
    async fn one(&self, run: u32, sampler: &Sampler) -> Result<Run, EvalError> {
        sampler.take_peak();
        let begin = Instant::now();
        let mut want = Vec::new();
        for layer in self.layers() {
            want.push(self.uninterrupted(number(run, layer)).await?);
        }
        let mut all = Vec::new();
        let mut came = self.take_turns(run, &mut all).await;
        for stopping in &all {
            came = ended(&stopping.session, came).await;
        }
        came?;
        let mut points = Vec::new();
        for (layer, stopping) in self.layers().zip(&all) {
            points.extend(self.points(layer, stopping)?);
        }
        let found = all.iter().map(|stopping| &stopping.tokens);
        Ok(Run {
            total_time_ms: begin.elapsed().as_secs_f64() * 1e3,
            model_size_gb: Some(model_size_gb(self.lab, self.loaded)),
            vram_used_mb: sampler.take_peak(),
            tokens_match: Some(found.eq(&want)),
            points,
            ..Run::default()
        })
    }

    /// A number is of all stops or of none.
    fn points(&self, layer: u64, stopping: &Stopping) -> Result<Vec<Point>, EvalError> {
        let point = |series: &str, all: &[Took], ms: fn(&Took) -> Option<f64>| {
            let times: Vec<f64> = all.iter().filter_map(ms).collect();
            let whole = times.len() as u64 == self.repeats;
            let ms = whole.then(|| percentile(&times, 50)).flatten()?;
            let (series, x) = (series.to_owned(), layer as f64);
            Some(Point { series, x, ms })
        };
        let outside = |took: &Took| Some(took.ms);
        let inside = |took: &Took| took.inside_ms;
        let here = point(HERE, &stopping.here, outside).ok_or_else(|| {
            let text = "memory does not hold the KV of a session for every layer at once: give more memory \
                        or fewer experiment.breakpoints.layers";
            EvalError::Asked(text.to_owned())
        })?;
        let more = [
            point(AWAY, &stopping.away, outside),
            point(HERE_INSIDE, &stopping.here, inside),
            point(AWAY_INSIDE, &stopping.away, inside),
        ];
        Ok(std::iter::once(here)
            .chain(more.into_iter().flatten())
            .collect())
    }

    /// What a session generates that nobody stops.
    async fn uninterrupted(&self, number: u64) -> Result<Vec<u32>, EvalError> {
        let asked = self.asked(number, self.count());
        let turn = asked.open().await?.collect().await?;
        whole(&turn)?;
        Ok(turn.tokens)
    }

    /// A session for every layer. They take turns, so that a slow second of the machine is everybody's
    /// and not all of one layer's. Those that were opened are to be ended, whatever comes of it.
    async fn take_turns(&self, run: u32, all: &mut Vec<Stopping>) -> Result<(), EvalError> {
        for layer in self.layers() {
            let asked = self.asked(number(run, layer), self.count());
            all.push(Stopping::open(asked, layer, At::Generated).await?);
        }
        for _ in 0..self.repeats {
            for stopping in &mut *all {
                stopping.here_then_away().await?;
            }
        }
        for stopping in all {
            stopping.finish().await?;
        }
        Ok(())
    }

    /// Sessions that have nothing, until they have come behind each block.
    async fn recompute(&self, run: u32) -> Result<Run, EvalError> {
        let (begin, mut points) = (Instant::now(), Vec::new());
        for layer in self.layers() {
            let asked = self.asked(500_000 + number(run, layer), 1);
            let since = Instant::now();
            let stopping = Stopping::open(asked, layer, At::Prompt).await?;
            let ms = since.elapsed().as_secs_f64() * 1e3;
            ended(&stopping.session, Ok(())).await?;
            let (series, x) = (HERE.to_owned(), layer as f64);
            points.push(Point { series, x, ms });
        }
        Ok(Run {
            total_time_ms: begin.elapsed().as_secs_f64() * 1e3,
            points,
            ..Run::default()
        })
    }
}

/// No two prompts are alike, or one would take the other's pages.
fn number(run: u32, layer: u64) -> u64 {
    u64::from(run) * 1000 + layer
}
