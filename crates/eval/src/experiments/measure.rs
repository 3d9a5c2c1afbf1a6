//! Steps that all experiments share: limits of a model, counters of a run, and repetition.

use djinn_client::v1;
use djinn_report::{Baseline, MemorySample, PassTimeline, RunRecord};

use crate::{
    config::EvalConfig,
    error::EvalError,
    testbed::{ModelUnderTest, Testbed},
};

/// Measurements of an experiment, before they are put into a result file.
#[derive(Default)]
pub struct ExperimentOutput {
    /// Name of the contender that the runs belong to.
    pub baseline: String,
    pub warmup: Vec<RunRecord>,
    pub runs: Vec<RunRecord>,
    pub baselines: Vec<Baseline>,
    pub memory: Vec<MemorySample>,
    pub timeline: Option<PassTimeline>,
    pub notes: Vec<String>,
    /// Rate of the link without compute, in bytes per second.
    pub link_ceiling: Option<f64>,
}

/// Returns the limits of a model: the memory budget of the configuration, a context length, and a number
/// of sessions.
pub fn limits(config: &EvalConfig, context: u64, sessions: u64) -> v1::ModelLimits {
    let experiment = &config.experiment;
    let ring = &experiment.ring_buffer;
    v1::ModelLimits {
        memory_bytes: config.environment.budget_bytes().unwrap_or(0),
        context: experiment
            .inference
            .max_seq_len
            .unwrap_or(context)
            .max(context),
        batch: experiment.sessions.batch.unwrap_or(sessions).min(sessions),
        sessions,
        rows: experiment.inference.rows.unwrap_or(0),
        resident_bytes: ring.capacity_gb.map_or(0, |gb| (gb * 1e9) as u64),
        ..v1::ModelLimits::default()
    }
}

/// Returns the limits without a memory budget.
pub fn unlimited(limits: v1::ModelLimits) -> v1::ModelLimits {
    v1::ModelLimits {
        memory_bytes: 0,
        resident_bytes: 0,
        ..limits
    }
}

/// Returns the size of a model's weights in GB, from its files or from the server.
pub fn model_size_gb(testbed: &Testbed, loaded: &ModelUnderTest) -> f64 {
    let memory = loaded.info.memory.unwrap_or_default();
    let bytes = match testbed.model.weights_bytes {
        0 => memory.resident_bytes + memory.streamed_bytes + memory.experts_bytes,
        bytes => bytes,
    };
    bytes as f64 / 1e9
}

/// Writes the differences between two readings of a model's counters into a run.
pub fn record_counters(
    run: &mut RunRecord,
    before: &v1::ModelStatus,
    after: &v1::ModelStatus,
) -> Result<(), EvalError> {
    let since = |after: u64, before: u64| {
        let reloaded = || EvalError::ModelReport {
            model: String::from("under test"),
            reason: "the model was reloaded during the measurement".to_owned(),
        };
        after.checked_sub(before).ok_or_else(reloaded)
    };
    let passes = since(after.passes, before.passes)?;
    run.passes = Some(passes);
    run.tokens = Some(since(after.tokens, before.tokens)?);
    if let Some(size) = run.model_size_gb {
        run.effective_bandwidth_gbps = Some(size * passes as f64 / run.total_time_ms * 1e3);
    }
    let (bytes, busy) = (
        since(after.link_bytes, before.link_bytes)?,
        after.busy_s - before.busy_s,
    );
    if bytes > 0 && busy > 0.0 {
        let rate = bytes as f64 / busy;
        run.link_gbps = Some(rate / 1e9);
        run.link_share = (after.link_ceiling > 0.0).then_some(rate / after.link_ceiling);
        run.stall_ms = Some((after.stalled_s - before.stalled_s) * 1e3);
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let (out, back) = (
        since(after.paged_out_bytes, before.paged_out_bytes)?,
        since(after.paged_in_bytes, before.paged_in_bytes)?,
    );
    (run.paged_out_gb, run.paged_back_gb) = (Some(gb(out)), Some(gb(back)));
    Ok(())
}

/// Performs the warm-up runs, then the measured runs, and reports each. `one` receives the number of runs
/// before it, so that runs can use different prompts.
pub async fn repeat(
    config: &EvalConfig,
    testbed: &Testbed,
    contender: &str,
    mut one: impl AsyncFnMut(u32) -> Result<RunRecord, EvalError>,
) -> Result<(Vec<RunRecord>, Vec<RunRecord>), EvalError> {
    let (warm, measured) = (
        config.experiment.measurement.warmup_runs,
        config.measured_runs(contender),
    );
    let (mut warmup, mut runs) = (Vec::new(), Vec::new());
    for number in 0..warm + measured {
        let is_warm = number < warm;
        let run_id = if is_warm { number } else { number - warm };
        let run = RunRecord {
            run_id,
            ..one(number).await?
        };
        if config.logging.verbose {
            let kind = if is_warm { "warm-up" } else { "run" };
            let line = format!("{contender}: {kind} {run_id}: {}", described(&run));
            testbed.report_result(&line);
        }
        match is_warm {
            true => warmup.push(run),
            false => runs.push(run),
        }
    }
    Ok((warmup, runs))
}

/// Describes a run in one line.
fn described(run: &RunRecord) -> String {
    let mut text = format!("{:.1} ms", run.total_time_ms);
    if let Some(rate) = run.effective_bandwidth_gbps {
        text += &format!(", {rate:.2} GB/s effective");
    }
    if let Some(share) = run.link_share {
        text += &format!(", {:.1} % of the link", share * 100.0);
    }
    if let (Some(done), Some(all)) = (run.sessions_completed, run.sessions) {
        text += &format!(", {done} of {all} sessions");
    }
    if let Some(memory) = run.vram_used_mb {
        text += &format!(", {memory:.0} MB");
    }
    if run.logit_match == Some(false) || run.tokens_match == Some(false) {
        text += ", WRONG OUTPUT";
    }
    text
}
