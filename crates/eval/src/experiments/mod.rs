//! The experiments. Each is a file, read from top to bottom: what is loaded, what is asked, what is
//! compared, what is measured.

mod agents;
mod memory_pressure;
mod resume_latency;
mod steering;
mod stopping;
mod talk;
mod virtual_memory;

use std::time::Instant;

use djinn_client::v1;
use djinn_report::{
    Baseline, Experiment, MemorySample, ResultFile, Run, Summary, Timeline, VERSION,
};

use crate::{
    Config, EvalError,
    lab::{Lab, Loaded},
};

/// What an experiment came to, before it is put into a file.
#[derive(Default)]
struct Outcome {
    /// Which of the contenders the runs are of.
    baseline: String,
    warmup: Vec<Run>,
    runs: Vec<Run>,
    baselines: Vec<Baseline>,
    memory: Vec<MemorySample>,
    timeline: Option<Timeline>,
    notes: Vec<String>,
    /// Bytes a second that the link gave alone.
    link_ceiling: Option<f64>,
}

/// Runs an experiment.
pub async fn run(
    experiment: Experiment,
    config: &Config,
    lab: &Lab,
) -> Result<ResultFile, EvalError> {
    let started = jiff::Timestamp::now();
    let began = Instant::now();
    let outcome = match experiment {
        Experiment::VirtualMemory => virtual_memory::run(config, lab).await,
        Experiment::MemoryPressure => memory_pressure::run(config, lab).await,
        Experiment::ResumeLatency => resume_latency::run(config, lab).await,
        Experiment::Steering => steering::run(config, lab).await,
        Experiment::Agents => agents::run(config, lab).await,
    }?;
    lab.done(&format!(
        "{} {} in {:.0} s",
        experiment.name(),
        config.experiment.name,
        began.elapsed().as_secs_f64()
    ));
    let mut notes = config.notes(lab.in_process(), lab.on_card());
    notes.extend(outcome.notes);
    Ok(ResultFile {
        version: VERSION,
        experiment,
        name: config.experiment.name.clone(),
        description: config.experiment.description.clone(),
        model: lab.subject.name.clone(),
        baseline: outcome.baseline,
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        environment: lab.environment(outcome.link_ceiling),
        settings: config.settings(),
        notes,
        budget_mb: config
            .environment
            .budget_bytes()
            .map(|bytes| bytes as f64 / 1e6),
        targets: config.targets.clone(),
        warmup: outcome.warmup,
        runs: outcome.runs,
        summary: Summary::default(),
        baselines: outcome.baselines,
        memory: outcome.memory,
        timeline: outcome.timeline,
    })
}

/// What a model is laid out for: so much memory, so many positions, so many sessions.
fn limits(config: &Config, context: u64, sessions: u64) -> v1::ModelLimits {
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
        no_prefetch: false,
        resident_bytes: ring.capacity_gb.map_or(0, |gb| (gb * 1e9) as u64),
    }
}

/// The same with all memory there is.
fn unlimited(limits: v1::ModelLimits) -> v1::ModelLimits {
    v1::ModelLimits {
        memory_bytes: 0,
        resident_bytes: 0,
        ..limits
    }
}

/// GB of a model's weights: as this machine knows them, or as the server laid them out.
fn model_size_gb(lab: &Lab, loaded: &Loaded) -> f64 {
    let memory = loaded.told.memory.unwrap_or_default();
    let bytes = match lab.subject.weights_bytes {
        0 => memory.resident_bytes + memory.streamed_bytes + memory.experts_bytes,
        bytes => bytes,
    };
    bytes as f64 / 1e9
}

/// What the counters of two moments say of the time between, put into a run.
fn count(
    run: &mut Run,
    before: &v1::ModelStatus,
    after: &v1::ModelStatus,
) -> Result<(), EvalError> {
    let since = |after: u64, before: u64| {
        let anew =
            || EvalError::Asked("the model was loaded anew while it was measured".to_owned());
        after.checked_sub(before).ok_or_else(anew)
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

/// Runs that only warm up, then those that count; tells of each. `one` is told how many there were before,
/// so that no two need to ask the same.
async fn repeat(
    config: &Config,
    lab: &Lab,
    who: &str,
    mut one: impl AsyncFnMut(u32) -> Result<Run, EvalError>,
) -> Result<(Vec<Run>, Vec<Run>), EvalError> {
    let (warm, counted) = (
        config.experiment.measurement.warmup_runs,
        config.counted(who),
    );
    let (mut warmup, mut runs) = (Vec::new(), Vec::new());
    for number in 0..warm + counted {
        let is_warm = number < warm;
        let run_id = if is_warm { number } else { number - warm };
        let run = Run {
            run_id,
            ..one(number).await?
        };
        if config.logging.verbose {
            let what = if is_warm { "warm-up" } else { "run" };
            lab.done(&format!("{who}: {what} {run_id}: {}", told(&run)));
        }
        match is_warm {
            true => warmup.push(run),
            false => runs.push(run),
        }
    }
    Ok((warmup, runs))
}

/// A run in a line.
fn told(run: &Run) -> String {
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
        text += ", WRONG";
    }
    text
}
