//! The memory-pressure experiment: more sessions than device memory holds. It checks that all complete
//! with the tokens that they generate alone, and measures the total time.

use std::time::Instant;

use djinn_report::{Experiment, MemorySample, RunRecord};

use super::{
    measure::{ExperimentOutput, limits, model_size_gb, record_counters, repeat, unlimited},
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
    let limits = limits(config, session_tokens(config), sessions.count);
    let loaded = testbed.load(OURS, limits).await?;
    let mut known = run_alone(config, testbed, &loaded, sessions.count).await?;
    let (warmup, runs, memory) = measure(config, testbed, &loaded, OURS, &mut known).await?;
    let vocab = loaded.dims.vocab;
    let link_ceiling = testbed.status(&loaded).await?.link_ceiling;
    testbed.unload(loaded).await?;

    let mut all = Vec::new();
    if config.is_enabled("djinn_resident") {
        let loaded = testbed.load("djinn_resident", unlimited(limits)).await?;
        let (warmup, runs, memory) =
            measure(config, testbed, &loaded, "djinn_resident", &mut known).await?;
        testbed.unload(loaded).await?;
        let mut resident = baselines::baseline("djinn_resident", "Djinn, with all device memory");
        (resident.warmup, resident.runs, resident.memory) = (warmup, runs, memory);
        resident.sum_up();
        all.push(resident);
    }
    let more = job(config, vocab, sessions.count);
    let none = ReferenceOutput::default();
    all.extend(
        baselines::run_all(testbed, config, Experiment::MemoryPressure, &more, &none).await?,
    );
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
    contender: &str,
    known: &mut SessionTokens,
) -> Result<(Vec<RunRecord>, Vec<RunRecord>, Vec<MemorySample>), EvalError> {
    let sampler = MemorySampler::start(&testbed.client, &loaded.info.name).await?;
    let one = async |_: u32| -> Result<RunRecord, EvalError> {
        sampler.take_peak();
        let before = testbed.status(loaded).await?;
        let begin = Instant::now();
        let numbers = 0..config.experiment.sessions.count;
        let outcomes = run_sessions(config, loaded, numbers, TurnStyle::Kept).await;
        let total_time_ms = begin.elapsed().as_secs_f64() * 1e3;
        let after = testbed.status(loaded).await?;
        let mut run = RunRecord {
            total_time_ms,
            model_size_gb: Some(model_size_gb(testbed, loaded)),
            vram_used_mb: sampler.take_peak(),
            kv_demand_gb: demand_gb(config, &after),
            ..RunRecord::default()
        };
        record_counters(&mut run, &before, &after)?;
        // Part of the time passes in pauses, so the rate says nothing about weights.
        run.effective_bandwidth_gbps = None;
        record_sessions(&mut run, outcomes, known);
        Ok(run)
    };
    let (warmup, runs) = repeat(config, testbed, contender, one).await?;
    Ok((warmup, runs, sampler.end()))
}

/// Returns the KV cache of all sessions at their longest, in GB; `None` if the server does not report the
/// page size.
fn demand_gb(config: &EvalConfig, status: &djinn_client::v1::ModelStatus) -> Option<f64> {
    let page = status.device.filter(|page| page.page_tokens > 0)?;
    let pages = session_tokens(config).div_ceil(page.page_tokens);
    Some((pages * config.experiment.sessions.count * page.page_bytes) as f64 / 1e9)
}
