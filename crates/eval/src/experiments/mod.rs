//! The experiments, one file each: what is loaded, requested, compared and measured.

mod agents;
mod measure;
mod memory_pressure;
mod multi_turn;
mod resume_latency;
mod steering;
mod stopping_session;
mod virtual_memory;

use std::time::{Instant, SystemTime};

use djinn_report::{Experiment, ResultFile, Summary, VERSION};

use crate::{config::EvalConfig, error::EvalError, testbed::Testbed, utc::utc_text};

/// Runs an experiment and returns its result, without the summary.
pub async fn run(
    experiment: Experiment,
    config: &EvalConfig,
    testbed: &Testbed,
) -> Result<ResultFile, EvalError> {
    let started = utc_text(SystemTime::now());
    let began = Instant::now();
    let output = match experiment {
        Experiment::VirtualMemory => virtual_memory::run(config, testbed).await,
        Experiment::MemoryPressure => memory_pressure::run(config, testbed).await,
        Experiment::ResumeLatency => resume_latency::run(config, testbed).await,
        Experiment::Steering => steering::run(config, testbed).await,
        Experiment::Agents => agents::run(config, testbed).await,
    }?;
    testbed.report_result(&format!(
        "{} {} took {:.0} s",
        experiment.name(),
        config.experiment.name,
        began.elapsed().as_secs_f64()
    ));
    let mut notes = config.notes(testbed.in_process(), testbed.on_gpu());
    notes.extend(output.notes);
    Ok(ResultFile {
        version: VERSION,
        experiment,
        name: config.experiment.name.clone(),
        description: config.experiment.description.clone(),
        model: testbed.model.name.clone(),
        baseline: output.baseline,
        started,
        environment: testbed.environment(output.link_ceiling),
        settings: config.settings(),
        notes,
        budget_mb: config
            .environment
            .budget_bytes()
            .map(|bytes| bytes as f64 / 1e6),
        targets: config.targets.clone(),
        warmup: output.warmup,
        runs: output.runs,
        summary: Summary::default(),
        baselines: output.baselines,
        memory: output.memory,
        timeline: output.timeline,
    })
}
