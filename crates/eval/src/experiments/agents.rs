//! The agents experiment: time from the end of an agent's pause to its next token, by number of agents.

use std::time::Instant;

use djinn_report::{Experiment, Point, RunRecord};
use serde_json::json;

use super::{
    measure::{ExperimentOutput, limits, model_size_gb, record_counters, repeat},
    multi_turn::{
        SessionTokens, TurnStyle, job, record_sessions, run_alone, run_sessions, session_tokens,
    },
};
use crate::{
    baselines::{self, ReferenceOutput},
    config::EvalConfig,
    error::EvalError,
    memory_sampler::MemorySampler,
    testbed::{ModelUnderTest, Testbed},
};

const OURS: &str = "djinn";

pub async fn run(config: &EvalConfig, testbed: &Testbed) -> Result<ExperimentOutput, EvalError> {
    let sessions = &config.experiment.sessions;
    let Some(most) = sessions
        .agents
        .iter()
        .copied()
        .max()
        .filter(|most| *most > 0)
    else {
        return Err(EvalError::Setting {
            key: "experiment.sessions.agents",
            reason: "must contain a number of agents above 0, such as [1, 2, 4]".to_owned(),
        });
    };
    if sessions.turns < 2 {
        return Err(EvalError::Setting {
            key: "experiment.sessions.turns",
            reason: "must be at least 2, so that agents resume after a pause".to_owned(),
        });
    }
    let loaded = testbed
        .load(OURS, limits(config, session_tokens(config), most))
        .await?;
    // The tokens of an agent do not depend on the number of agents.
    let mut known = run_alone(config, testbed, &loaded, most).await?;
    let sampler = MemorySampler::start(&testbed.client, &loaded.info.name).await?;
    let (warmup, runs) = measure(
        config,
        testbed,
        &loaded,
        &sampler,
        TurnStyle::Kept,
        &mut known,
    )
    .await?;
    let memory = sampler.end();
    let mut all = Vec::new();
    if config.is_enabled("stateless") {
        let sampler = MemorySampler::start(&testbed.client, &loaded.info.name).await?;
        // A GPU rounds prompt tokens and generated tokens differently, so these tokens may differ.
        let mut own = SessionTokens::new();
        let (warmup, runs) = measure(
            config,
            testbed,
            &loaded,
            &sampler,
            TurnStyle::Stateless,
            &mut own,
        )
        .await?;
        let program = "Djinn, without sessions: every turn sends the whole history";
        let mut stateless = baselines::baseline("stateless", program);
        (stateless.warmup, stateless.runs) = (warmup, runs);
        stateless.memory = sampler.end();
        stateless.sum_up();
        all.push(stateless);
    }
    let vocab = loaded.dims.vocab;
    let link_ceiling = testbed.status(&loaded).await?.link_ceiling;
    testbed.unload(loaded).await?;
    let mut more = job(config, vocab, most);
    more["agents"] = json!(sessions.agents);
    more["think_s"] = json!(sessions.think_seconds);
    let none = ReferenceOutput::default();
    all.extend(baselines::run_all(testbed, config, Experiment::Agents, &more, &none).await?);
    Ok(ExperimentOutput {
        baseline: OURS.to_owned(),
        warmup,
        runs,
        baselines: all,
        memory,
        link_ceiling: Some(link_ceiling),
        ..ExperimentOutput::default()
    })
}

async fn measure(
    config: &EvalConfig,
    testbed: &Testbed,
    loaded: &ModelUnderTest,
    sampler: &MemorySampler,
    style: TurnStyle,
    known: &mut SessionTokens,
) -> Result<(Vec<RunRecord>, Vec<RunRecord>), EvalError> {
    let one = async |_: u32| -> Result<RunRecord, EvalError> {
        let mut all = RunRecord {
            model_size_gb: Some(model_size_gb(testbed, loaded)),
            sessions: Some(0),
            sessions_completed: Some(0),
            tokens_match: Some(true),
            ..RunRecord::default()
        };
        sampler.take_peak();
        let before = testbed.status(loaded).await?;
        for &agents in &config.experiment.sessions.agents {
            let begin = Instant::now();
            let outcomes = run_sessions(config, loaded, 0..agents, style).await;
            all.total_time_ms += begin.elapsed().as_secs_f64() * 1e3;
            let mut part = RunRecord::default();
            record_sessions(&mut part, outcomes, known);
            add(&mut all, agents, part);
        }
        let after = testbed.status(loaded).await?;
        record_counters(&mut all, &before, &after)?;
        // Most of the time passes in pauses, so the rate says nothing about weights.
        all.effective_bandwidth_gbps = None;
        all.vram_used_mb = sampler.take_peak();
        Ok(all)
    };
    let contender = if style == TurnStyle::Kept {
        OURS
    } else {
        "stateless"
    };
    repeat(config, testbed, contender, one).await
}

/// Adds the measurements with one number of agents to the run.
fn add(all: &mut RunRecord, agents: u64, part: RunRecord) {
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
    // The percentiles of the whole run are those with the most agents.
    let before = all.points.iter().map(|point| point.x);
    if before.fold(0.0, f64::max) <= agents as f64 {
        (all.resume_p50_ms, all.resume_p99_ms) = (part.resume_p50_ms, part.resume_p99_ms);
    }
}
