//! Many agents that think most of the time: how long does one wait for its next token when it is back?

use std::time::Instant;

use djinn_report::{Experiment, Point, Run};
use serde_json::json;

use super::{
    Outcome, count, limits,
    memory_pressure::{Tokens, alone, sum_up},
    model_size_gb, repeat,
    talk::{Style, job, positions, together},
};
use crate::{
    Config, EvalError,
    baselines::{self, Reference},
    lab::{Lab, Loaded},
    sampler::Sampler,
};

const OURS: &str = "djinn";

pub async fn run(config: &Config, lab: &Lab) -> Result<Outcome, EvalError> {
    let sessions = &config.experiment.sessions;
    let Some(most) = sessions
        .agents
        .iter()
        .copied()
        .max()
        .filter(|most| *most > 0)
    else {
        let text = "experiment.sessions.agents: how many? as [1, 2, 4]";
        return Err(EvalError::Asked(text.to_owned()));
    };
    if sessions.turns < 2 {
        let text = "experiment.sessions.turns: at least 2, or nobody ever comes back";
        return Err(EvalError::Asked(text.to_owned()));
    }
    let loaded = lab
        .load(OURS, limits(config, positions(config), most))
        .await?;
    // An agent says the same however many there are beside it.
    let mut known = alone(config, lab, &loaded, most).await?;
    let sampler = Sampler::start(&lab.client, &loaded.told.name).await?;
    let (warmup, runs) = measure(config, lab, &loaded, &sampler, Style::Kept, &mut known).await?;
    let memory = sampler.end();
    let mut all = Vec::new();
    if config.runs("stateless") {
        let sampler = Sampler::start(&lab.client, &loaded.told.name).await?;
        // Where prompts and generated tokens are rounded differently, other tokens are not wrong here.
        let mut own = Tokens::new();
        let (warmup, runs) =
            measure(config, lab, &loaded, &sampler, Style::Stateless, &mut own).await?;
        let program = "Djinn, sessions that end while they think and say everything again";
        let mut stateless = baselines::own("stateless", program);
        (stateless.warmup, stateless.runs) = (warmup, runs);
        stateless.memory = sampler.end();
        stateless.sum_up();
        all.push(stateless);
    }
    let vocab = loaded.dims.vocab;
    let link_ceiling = lab.status(&loaded).await?.link_ceiling;
    lab.unload(loaded).await?;
    let mut more = job(config, vocab, most);
    more["agents"] = json!(sessions.agents);
    more["think_s"] = json!(sessions.think_seconds);
    let none = Reference::default();
    all.extend(baselines::run_all(lab, config, Experiment::Agents, &more, &none).await?);
    Ok(Outcome {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        baselines: all,
        memory,
        link_ceiling: Some(link_ceiling),
        ..Outcome::default()
    })
}

async fn measure(
    config: &Config,
    lab: &Lab,
    loaded: &Loaded,
    sampler: &Sampler,
    style: Style,
    known: &mut Tokens,
) -> Result<(Vec<Run>, Vec<Run>), EvalError> {
    let one = async |_: u32| -> Result<Run, EvalError> {
        let mut all = Run {
            model_size_gb: Some(model_size_gb(lab, loaded)),
            sessions: Some(0),
            sessions_completed: Some(0),
            tokens_match: Some(true),
            ..Run::default()
        };
        sampler.take_peak();
        let before = lab.status(loaded).await?;
        for &agents in &config.experiment.sessions.agents {
            let begin = Instant::now();
            let told = together(config, loaded, 0..agents, style).await;
            all.total_time_ms += begin.elapsed().as_secs_f64() * 1e3;
            let mut part = Run::default();
            sum_up(&mut part, told, known);
            add(&mut all, agents, part);
        }
        let after = lab.status(loaded).await?;
        count(&mut all, &before, &after)?;
        // Agents think most of the time, and that says nothing of weights.
        all.effective_bandwidth_gbps = None;
        all.vram_used_mb = sampler.take_peak();
        Ok(all)
    };
    let who = if style == Style::Kept {
        OURS
    } else {
        "stateless"
    };
    repeat(config, lab, who, one).await
}

/// Adds what so many agents came to.
fn add(all: &mut Run, agents: u64, part: Run) {
    let sum = |a: Option<u64>, b: Option<u64>| Some(a.unwrap_or(0) + b.unwrap_or(0));
    all.sessions = sum(all.sessions, part.sessions);
    all.sessions_completed = sum(all.sessions_completed, part.sessions_completed);
    all.tokens_match = Some(all.tokens_match == Some(true) && part.tokens_match == Some(true));
    all.failures.extend(part.failures);
    for (series, ms) in [("p50", part.resume_p50_ms), ("p99", part.resume_p99_ms)] {
        if let Some(ms) = ms {
            let (series, x) = (series.to_owned(), agents as f64);
            all.points.push(Point { series, x, ms });
        }
    }
    // Of a run as a whole: those with the most agents.
    let before = all.points.iter().map(|point| point.x);
    if before.fold(0.0, f64::max) <= agents as f64 {
        (all.resume_p50_ms, all.resume_p99_ms) = (part.resume_p50_ms, part.resume_p99_ms);
    }
}
