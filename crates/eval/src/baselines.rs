//! The same done by others: small scripts that are told the same and answer in the same shape.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use djinn_report::{Baseline, Experiment, Status};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{Config, EvalError, config::BaselineConfig, lab::Lab};

/// How long a baseline may take.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Lines of what it said last that are kept.
const SAID: usize = 5;

/// Everybody who can run beside Djinn, and Djinn's own ways.
pub const NAMES: &[&str] = &[
    "ring_buffer_async_prefetch",
    "ring_buffer_no_prefetch",
    "djinn_resident",
    "djinn_recompute",
    "stateless",
    "hf_accelerate",
    "transformers_vram",
    "deepspeed_zero",
    "llama_cpp",
    "vllm",
    "pytorch_eager",
    "recompute",
    "manual_offload",
];

/// A script, and what is known of it before it runs.
struct Script {
    name: &'static str,
    file: &'static str,
    text: &'static str,
    /// What it is called where it did not run to say so itself.
    program: &'static str,
    /// Settings of the configuration that it reads.
    keys: &'static [&'static str],
    experiments: &'static [Experiment],
}

macro_rules! script {
    ($name:literal, $file:literal, $program:literal, $keys:expr, $experiments:expr) => {
        Script {
            name: $name,
            file: $file,
            text: include_str!(concat!("../../../eval/baselines/", $file)),
            program: $program,
            keys: $keys,
            experiments: $experiments,
        }
    };
}

use Experiment::{Agents, MemoryPressure, ResumeLatency, VirtualMemory};

const SCRIPTS: &[Script] = &[
    script!(
        "hf_accelerate",
        "hf_accelerate.py",
        "accelerate, device_map",
        &["generation_length", "scratch"],
        &[VirtualMemory]
    ),
    script!(
        "transformers_vram",
        "transformers_vram.py",
        "transformers, all in device memory",
        &["generation_length"],
        &[VirtualMemory]
    ),
    script!(
        "deepspeed_zero",
        "deepspeed_zero.py",
        "DeepSpeed ZeRO-Inference",
        &["generation_length"],
        &[VirtualMemory]
    ),
    script!(
        "llama_cpp",
        "llama_cpp.py",
        "llama.cpp",
        &[
            "binary",
            "generation_length",
            "gguf",
            "gpu_layers",
            "threads",
            "scratch",
        ],
        &[VirtualMemory]
    ),
    script!(
        "vllm",
        "vllm_offload.py",
        "vLLM, CPU offload",
        &["cpu_offload_gb", "generation_length", "prefetch_depth"],
        &[VirtualMemory]
    ),
    script!(
        "pytorch_eager",
        "pytorch_eager.py",
        "eager PyTorch that parks every session in device memory",
        &[],
        &[MemoryPressure, Agents]
    ),
    script!(
        "recompute",
        "recompute.py",
        "PyTorch, everything computed again",
        &[],
        &[ResumeLatency]
    ),
    script!(
        "manual_offload",
        "manual_offload.py",
        "PyTorch, KV copied to pinned memory and back by hand",
        &[],
        &[ResumeLatency]
    ),
];

/// What every script stands on.
const COMMON: &str = include_str!("../../../eval/baselines/common.py");

/// Settings that a baseline reads.
pub fn keys(name: &str) -> &'static [&'static str] {
    match SCRIPTS.iter().find(|script| script.name == name) {
        Some(script) => script.keys,
        None if name == "ring_buffer_async_prefetch" => &["use_async_prefetch"],
        None => &[],
    }
}

/// What the reference came to, for those who have the same weights.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its logits at the prompt's last position.
    pub logits: Vec<f32>,
}

/// Runs every baseline of the configuration that knows the experiment, one after the other. `more` is
/// what the job of this experiment says.
pub async fn run_all(
    lab: &Lab,
    config: &Config,
    experiment: Experiment,
    more: &Value,
    reference: &Reference,
) -> Result<Vec<Baseline>, EvalError> {
    let mut all = Vec::new();
    for script in SCRIPTS {
        let asked = config.baselines.get(script.name);
        let Some(asked) = asked.filter(|asked| asked.enabled) else {
            continue;
        };
        if !script.experiments.contains(&experiment) {
            continue;
        }
        let mut baseline = match lab.is_here() {
            true => {
                script
                    .run(lab, config, asked, experiment, more, reference)
                    .await?
            }
            false => script.without_runs(
                Status::Absent,
                "it runs where the server does: start the experiment on that machine".to_owned(),
            ),
        };
        baseline.sum_up();
        lab.done(&format!("{}: {}", script.name, told(&baseline)));
        all.push(baseline);
    }
    Ok(all)
}

/// What came of a baseline, in a line.
fn told(baseline: &Baseline) -> String {
    let reason = baseline.reason.as_deref().unwrap_or_default();
    match baseline.status {
        Status::Ran => {
            let time = baseline.summary.metrics.get("total_time_ms");
            let time = time.map_or(0.0, |time| time.median);
            format!("{} runs, half within {time:.1} ms", baseline.runs.len())
        }
        Status::Absent => format!("absent: {reason}"),
        Status::OutOfMemory => format!("out of memory {reason}"),
        Status::Failed => format!("failed: {reason}"),
    }
}

/// A script with all it has started, until it has ended by itself. They end with this, whether time is up
/// or somebody pressed Ctrl-C: they would hold the device while others are measured.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Script {
    async fn run(
        &self,
        lab: &Lab,
        config: &Config,
        asked: &BaselineConfig,
        experiment: Experiment,
        more: &Value,
        reference: &Reference,
    ) -> Result<Baseline, EvalError> {
        if lab.subject.config.is_null() {
            let reason = format!("{} is not on this machine", lab.subject.name);
            return Ok(self.without_runs(Status::Absent, reason));
        }
        lab.say(&format!("{}: {}", self.name, self.program));
        let fault = |error| EvalError::System {
            what: format!("a folder for {}", self.name),
            error,
        };
        let folder = tempfile::tempdir().map_err(fault)?;
        let place = |name: &str| folder.path().join(name);
        fs::write(place(self.file), self.text).map_err(fault)?;
        fs::write(place("common.py"), COMMON).map_err(fault)?;
        let logits = place("reference.f32");
        let bytes: Vec<u8> = reference
            .logits
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        fs::write(&logits, bytes).map_err(fault)?;
        let mut job = job(lab, config, asked, experiment);
        // Nobody can be held to tokens of weights that it does not have, or that were drawn.
        let comparable =
            !lab.subject.is_made_up() && config.experiment.inference.temperature == 0.0;
        if comparable && !reference.logits.is_empty() {
            job["reference"] = json!({ "tokens": reference.tokens, "logits": logits });
        }
        if let (Some(job), Some(more)) = (job.as_object_mut(), more.as_object()) {
            for (key, value) in more {
                job.entry(key).or_insert_with(|| value.clone());
            }
        }
        fs::write(place("job.json"), job.to_string()).map_err(fault)?;
        let said = match self.start(lab, folder.path()).await {
            Ok(said) => said,
            Err(reason) => return Ok(self.without_runs(Status::Absent, reason)),
        };
        Ok(self.read(&place("out.json"), &said))
    }

    /// Runs the script to its end; gives what it said last.
    async fn start(&self, lab: &Lab, folder: &Path) -> Result<Vec<String>, String> {
        let mut child = Command::new(&lab.python)
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
            .map_err(|error| format!("{} does not start: {error}", lab.python))?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let mut group = Group(id);
        let stderr = child.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(stderr).lines();
        let mut said = Vec::new();
        let listen = async {
            while let Ok(Some(line)) = lines.next_line().await {
                lab.say(&format!("{}: {line}", self.name));
                said.push(line);
                if said.len() > SAID {
                    said.remove(0);
                }
            }
            child.wait().await
        };
        let ended = tokio::time::timeout(PATIENCE, listen).await;
        match ended {
            Ok(Ok(status)) => {
                group.0 = None;
                if !status.success() {
                    said.push(format!("{status}"));
                }
                Ok(said)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                drop(group);
                let _ = child.wait().await;
                said.push(format!("no answer within {} s", PATIENCE.as_secs()));
                Ok(said)
            }
        }
    }

    /// What it wrote, or that it broke down.
    fn read(&self, path: &Path, said: &[String]) -> Baseline {
        let broke = |why: String| {
            let last = said.join(" · ");
            self.without_runs(Status::Failed, format!("{why}: {last}"))
        };
        let Ok(text) = fs::read_to_string(path) else {
            return broke("it wrote nothing".to_owned());
        };
        match serde_json::from_str::<Baseline>(&text) {
            Ok(baseline) if baseline.baseline == self.name => baseline,
            Ok(baseline) => broke(format!("it calls itself {}", baseline.baseline)),
            Err(error) => broke(format!("what it wrote is no result: {error}")),
        }
    }

    fn without_runs(&self, status: Status, reason: String) -> Baseline {
        let mut baseline = own(self.name, self.program);
        (baseline.status, baseline.reason) = (status, Some(reason));
        baseline
    }
}

/// A baseline that is yet to run.
pub fn own(name: &str, program: &str) -> Baseline {
    Baseline {
        baseline: name.to_owned(),
        program: program.to_owned(),
        status: Status::Ran,
        reason: None,
        settings: BTreeMap::new(),
        warmup: Vec::new(),
        runs: Vec::new(),
        summary: djinn_report::Summary::default(),
        memory: Vec::new(),
    }
}

/// What every script is told.
fn job(lab: &Lab, config: &Config, asked: &BaselineConfig, experiment: Experiment) -> Value {
    let (run, inference) = (&config.experiment.measurement, &config.experiment.inference);
    let mut settings = serde_json::to_value(asked).unwrap_or_default();
    if let Some(settings) = settings.as_object_mut() {
        settings.retain(|key, value| {
            let general = ["enabled", "runs", "generation_length", "use_async_prefetch"];
            !value.is_null() && !general.contains(&key.as_str())
        });
    }
    let folder: Option<&PathBuf> = lab.subject.folder.as_ref();
    json!({
        "experiment": experiment.name(),
        "model": {
            "reference": lab.subject.name, "folder": folder,
            "config": lab.subject.config, "dtype": lab.subject.dtype,
        },
        "device": lab.device(),
        "budget_mb": config.environment.budget_bytes().map(|bytes| bytes as f64 / 1e6),
        "generate": asked.generation_length.unwrap_or(inference.generation_length),
        "runs": asked.runs.unwrap_or(run.runs), "warmup": run.warmup_runs,
        "threads": asked.threads,
        "gc_between_runs": run.gc_between_runs,
        "disable_gc_during_run": run.disable_gc_during_run,
        "tuning": config.tuning,
        "settings": settings,
        "reference": { "tokens": null, "logits": null },
    })
}
