//! Running of baseline scripts. A script reads a job file and writes a result in the format of result files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use djinn_report::{Baseline, BaselineStatus, Experiment};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use super::catalog::{BaselineScript, COMMON, SCRIPTS};
use crate::{
    config::{BaselineSection, EvalConfig},
    error::EvalError,
    testbed::Testbed,
};

/// Largest duration of a baseline script.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Number of output lines that an error message quotes.
const QUOTED_LINES: usize = 5;

/// Output of the reference run, for baselines with the same weights.
#[derive(Clone, Debug, Default)]
pub struct ReferenceOutput {
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Logits at the last position of the prompt.
    pub logits: Vec<f32>,
}

/// Runs every enabled baseline script that supports the experiment, one after the other. `more` is the part
/// of the job file that is specific to the experiment.
pub async fn run_all(
    testbed: &Testbed,
    config: &EvalConfig,
    experiment: Experiment,
    more: &Value,
    reference: &ReferenceOutput,
) -> Result<Vec<Baseline>, EvalError> {
    let mut all = Vec::new();
    for script in SCRIPTS {
        let section = config.baselines.get(script.name);
        let Some(section) = section.filter(|section| section.enabled) else {
            continue;
        };
        if !script.experiments.contains(&experiment) {
            continue;
        }
        let mut baseline = match testbed.is_local() {
            true => {
                script
                    .run(testbed, config, section, experiment, more, reference)
                    .await?
            }
            false => script.without_runs(
                BaselineStatus::Absent,
                "baselines run on the machine of the server; run djinn eval there".to_owned(),
            ),
        };
        baseline.sum_up();
        testbed.report_result(&format!("{}: {}", script.name, described(&baseline)));
        all.push(baseline);
    }
    Ok(all)
}

/// Describes the result of a baseline in one line.
fn described(baseline: &Baseline) -> String {
    let reason = baseline.reason.as_deref().unwrap_or_default();
    match baseline.status {
        BaselineStatus::Ran => {
            let time = baseline.summary.metrics.get("total_time_ms");
            let time = time.map_or(0.0, |time| time.median);
            format!("{} runs, median {time:.1} ms", baseline.runs.len())
        }
        BaselineStatus::Absent => format!("absent: {reason}"),
        BaselineStatus::OutOfMemory => format!("out of memory: {reason}"),
        BaselineStatus::Failed => format!("failed: {reason}"),
    }
}

/// The process group of a running script. Dropping it kills the script and its children, on a timeout and
/// on Ctrl-C alike, because they would otherwise hold the device while others are measured.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl BaselineScript {
    /// Runs the script with a job file in a temporary folder.
    async fn run(
        &self,
        testbed: &Testbed,
        config: &EvalConfig,
        section: &BaselineSection,
        experiment: Experiment,
        more: &Value,
        reference: &ReferenceOutput,
    ) -> Result<Baseline, EvalError> {
        if testbed.model.config.is_null() {
            let reason = format!(
                "the configuration of {} is not on this machine",
                testbed.model.name
            );
            return Ok(self.without_runs(BaselineStatus::Absent, reason));
        }
        testbed.report_step(&format!("{}: {}", self.name, self.program));
        let system_error = |error| EvalError::System {
            what: format!("temporary folder for {}", self.name),
            error,
        };
        let folder = tempfile::tempdir().map_err(system_error)?;
        let path_of = |name: &str| folder.path().join(name);
        fs::write(path_of(self.file), self.text).map_err(system_error)?;
        fs::write(path_of("common.py"), COMMON).map_err(system_error)?;
        let logits = path_of("reference.f32");
        let bytes: Vec<u8> = reference
            .logits
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        fs::write(&logits, bytes).map_err(system_error)?;
        let mut job = job(testbed, config, section, experiment);
        // Outputs are comparable only with the same weights and without sampling.
        let comparable =
            !testbed.model.is_synthetic() && config.experiment.inference.temperature == 0.0;
        if comparable && !reference.logits.is_empty() {
            job["reference"] = json!({ "tokens": reference.tokens, "logits": logits });
        }
        if let (Some(job), Some(more)) = (job.as_object_mut(), more.as_object()) {
            for (key, value) in more {
                job.entry(key).or_insert_with(|| value.clone());
            }
        }
        fs::write(path_of("job.json"), job.to_string()).map_err(system_error)?;
        let output = match self.start(testbed, folder.path()).await {
            Ok(output) => output,
            Err(reason) => return Ok(self.without_runs(BaselineStatus::Absent, reason)),
        };
        Ok(self.read(&path_of("out.json"), &output))
    }

    /// Runs the script to completion, and returns its last lines of output.
    async fn start(&self, testbed: &Testbed, folder: &Path) -> Result<Vec<String>, String> {
        let mut child = Command::new(&testbed.python)
            .arg(folder.join(self.file))
            .arg("--job")
            .arg(folder.join("job.json"))
            .arg("--output")
            .arg(folder.join("out.json"))
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {} (--python): {error}", testbed.python))?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let mut group = ProcessGroup(id);
        let stderr = child.stderr.take().expect("stderr is piped");
        let mut lines = BufReader::new(stderr).lines();
        let mut output = Vec::new();
        let listen = async {
            while let Ok(Some(line)) = lines.next_line().await {
                testbed.report_step(&format!("{}: {line}", self.name));
                output.push(line);
                if output.len() > QUOTED_LINES {
                    output.remove(0);
                }
            }
            child.wait().await
        };
        let ended = tokio::time::timeout(TIMEOUT, listen).await;
        match ended {
            Ok(Ok(status)) => {
                group.0 = None;
                if !status.success() {
                    output.push(format!("{status}"));
                }
                Ok(output)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                drop(group);
                let _ = child.wait().await;
                output.push(format!("killed after {} s", TIMEOUT.as_secs()));
                Ok(output)
            }
        }
    }

    /// Reads the result that the script wrote; a missing or invalid result counts as a failure.
    fn read(&self, path: &Path, output: &[String]) -> Baseline {
        let failed = |why: String| {
            let last = output.join(" · ");
            self.without_runs(BaselineStatus::Failed, format!("{why}: {last}"))
        };
        let Ok(text) = fs::read_to_string(path) else {
            return failed("the script wrote no result".to_owned());
        };
        match serde_json::from_str::<Baseline>(&text) {
            Ok(baseline) if baseline.baseline == self.name => baseline,
            Ok(baseline) => failed(format!("the result is of {}", baseline.baseline)),
            Err(error) => failed(format!("the script wrote an invalid result: {error}")),
        }
    }

    fn without_runs(&self, status: BaselineStatus, reason: String) -> Baseline {
        let mut baseline = baseline(self.name, self.program);
        (baseline.status, baseline.reason) = (status, Some(reason));
        baseline
    }
}

/// Returns a baseline without runs.
pub fn baseline(name: &str, program: &str) -> Baseline {
    Baseline {
        baseline: name.to_owned(),
        program: program.to_owned(),
        status: BaselineStatus::Ran,
        reason: None,
        settings: BTreeMap::new(),
        warmup: Vec::new(),
        runs: Vec::new(),
        summary: djinn_report::Summary::default(),
        memory: Vec::new(),
    }
}

/// Returns the part of the job file that all scripts read.
fn job(
    testbed: &Testbed,
    config: &EvalConfig,
    section: &BaselineSection,
    experiment: Experiment,
) -> Value {
    let (run, inference) = (&config.experiment.measurement, &config.experiment.inference);
    let mut settings = serde_json::to_value(section).unwrap_or_default();
    if let Some(settings) = settings.as_object_mut() {
        settings.retain(|key, value| {
            let general = ["enabled", "runs", "generation_length", "use_async_prefetch"];
            !value.is_null() && !general.contains(&key.as_str())
        });
    }
    let folder: Option<&PathBuf> = testbed.model.folder.as_ref();
    json!({
        "experiment": experiment.name(),
        "model": {
            "reference": testbed.model.name, "folder": folder,
            "config": testbed.model.config, "dtype": testbed.model.dtype,
        },
        "device": testbed.device(),
        "budget_mb": config.environment.budget_bytes().map(|bytes| bytes as f64 / 1e6),
        "generate": section.generation_length.unwrap_or(inference.generation_length),
        "runs": section.runs.unwrap_or(run.runs), "warmup": run.warmup_runs,
        "threads": section.threads,
        "gc_between_runs": run.gc_between_runs,
        "disable_gc_during_run": run.disable_gc_during_run,
        "tuning": config.tuning,
        "settings": settings,
        "reference": { "tokens": null, "logits": null },
    })
}
