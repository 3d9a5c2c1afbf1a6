//! What an experiment is told: a YAML file, whose keys are held to what there is.

mod bundled;
mod check;
mod keys;
mod notes;

use std::{collections::BTreeMap, fs, path::Path};

use djinn_report::Target;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EvalError;
pub use bundled::names as bundled_names;

/// A configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is tried, and how.
    pub experiment: ExperimentConfig,
    /// Who runs beside it, by name.
    pub baselines: BTreeMap<String, BaselineConfig>,
    /// Settings of programs that have them.
    pub tuning: Tuning,
    /// The machine.
    pub environment: EnvironmentConfig,
    /// How much is told meanwhile.
    pub logging: Logging,
    /// Where results go, and which numbers are told of.
    pub output: OutputConfig,
    /// What is to be reached.
    pub targets: Vec<Target>,
}

/// What is tried, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExperimentConfig {
    /// What this configuration is called.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// A server that does the work; without one it is done in process.
    pub server: Option<ServerConfig>,
    /// The memory that weights stream through.
    pub ring_buffer: RingBuffer,
    /// The model.
    pub model: ModelConfig,
    /// What is asked of it.
    pub inference: Inference,
    /// How often.
    pub measurement: Measurement,
    /// Many sessions: of memory-pressure and agents.
    pub sessions: Sessions,
    /// Where sessions stop: of resume-latency.
    pub breakpoints: Breakpoints,
    /// What is changed on the way: of steering.
    pub activation_steering: Steering,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Its name or address.
    pub host: String,
    /// Its port.
    #[serde(default = "port")]
    pub port: u16,
    /// How long an answer may take.
    #[serde(default = "timeout")]
    pub timeout_seconds: f64,
}

fn port() -> u16 {
    5556
}

fn timeout() -> f64 {
    300.0
}

/// The memory that weights stream through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RingBuffer {
    /// Off: everything has to fit.
    pub enabled: bool,
    /// Memory for weights that stay, in GB: the ring that the others stream through comes on top. All
    /// that is left where it is not said.
    pub capacity_gb: Option<f64>,
    /// Threads that read files.
    pub prefetch_workers: Option<usize>,
}

impl Default for RingBuffer {
    fn default() -> Self {
        RingBuffer {
            enabled: true,
            capacity_gb: None,
            prefetch_workers: None,
        }
    }
}

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A folder, a hub id, `shape:NAME`, or `bundled`.
    pub model_id: String,
    /// What its weights are in; the model's own where it is not said.
    pub dtype: Option<String>,
    /// `cpu`, `cuda:0`, `auto`, or `remote://0` for the server's.
    pub device: Option<String>,
}

/// What is asked of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Inference {
    /// Sessions at once: 1, where one is measured.
    pub batch_size: u64,
    /// Positions of a session at most.
    pub max_seq_len: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_length: u64,
    /// Tokens to generate.
    pub generation_length: u64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Of the likeliest tokens, those that make up so much.
    pub top_p: Option<f32>,
    /// The prompt as text, in place of one of a length; of steering.
    pub prompt: Option<String>,
    /// Tokens of prompts that go through together.
    pub rows: Option<u64>,
}

impl Default for Inference {
    fn default() -> Self {
        Inference {
            batch_size: 1,
            max_seq_len: None,
            prompt_length: 512,
            generation_length: 16,
            temperature: 0.0,
            top_p: None,
            prompt: None,
            rows: None,
        }
    }
}

/// How often it is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Measurement {
    /// Runs that count.
    pub runs: u32,
    /// Runs before those.
    pub warmup_runs: u32,
    /// Python's baselines collect their garbage between runs.
    pub gc_between_runs: bool,
    /// And not within them.
    pub disable_gc_during_run: bool,
}

impl Default for Measurement {
    fn default() -> Self {
        Measurement {
            runs: 5,
            warmup_runs: 1,
            gc_between_runs: true,
            disable_gc_during_run: true,
        }
    }
}

/// Many sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sessions {
    /// How many.
    pub count: u64,
    /// Turns of each.
    pub turns: u64,
    /// Tokens that it is told before a later turn.
    pub answer_length: u64,
    /// Seconds it thinks between turns; from here to there.
    pub think_seconds: [f64; 2],
    /// Sessions in one pass.
    pub batch: Option<u64>,
    /// How many of them run again alone, to compare tokens with.
    pub check: u64,
    /// How many agents, one number after the other; of agents.
    pub agents: Vec<u64>,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions {
            count: 50,
            turns: 2,
            answer_length: 4,
            think_seconds: [8.0, 8.0],
            batch: None,
            check: 4,
            agents: vec![1, 2, 4, 8],
        }
    }
}

/// Where sessions stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Breakpoints {
    /// Behind so many blocks.
    pub layers: Vec<u64>,
    /// How often at each, in a run.
    pub repeats: u32,
}

impl Default for Breakpoints {
    fn default() -> Self {
        Breakpoints {
            layers: vec![1, 10, 20, 30, 40],
            repeats: 5,
        }
    }
}

/// What is changed on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Steering {
    /// Off: nothing is changed, and the experiment has nothing to do.
    pub enabled: bool,
    /// `scale`.
    pub modification_type: String,
    /// By how much.
    pub modification_factor: f32,
    /// Behind so many blocks; half of them where it is not said.
    pub steering_layer: Option<u64>,
    /// How often with and without it, in a run.
    pub repeats: u32,
}

impl Default for Steering {
    fn default() -> Self {
        Steering {
            enabled: true,
            modification_type: "scale".to_owned(),
            modification_factor: 0.9,
            steering_layer: None,
            repeats: 1,
        }
    }
}

/// Who runs beside it. Keys that a baseline does not know are told of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BaselineConfig {
    /// Whether it runs.
    pub enabled: bool,
    /// Whether weights are brought ahead of their use; of Djinn's own.
    pub use_async_prefetch: Option<bool>,
    /// Measured runs of this one, where it is slow.
    pub runs: Option<u32>,
    /// Tokens to generate with this one, where it is slow.
    pub generation_length: Option<u64>,
    /// The program; of llama.cpp, llama-bench.
    pub binary: Option<String>,
    /// A model in the form llama.cpp reads; made up where the model is.
    pub gguf: Option<String>,
    /// Layers on the device; as many as fit where it is not said.
    pub gpu_layers: Option<u64>,
    /// Threads of the processor.
    pub threads: Option<u64>,
    /// GB of weights in host memory; of vLLM.
    pub cpu_offload_gb: Option<f64>,
    /// Layers brought ahead; of vLLM.
    pub prefetch_depth: Option<u64>,
    /// A folder for what it has to write.
    pub scratch: Option<String>,
}

impl Default for BaselineConfig {
    fn default() -> Self {
        BaselineConfig {
            enabled: true,
            use_async_prefetch: None,
            runs: None,
            generation_length: None,
            binary: None,
            gguf: None,
            gpu_layers: None,
            threads: None,
            cpu_offload_gb: None,
            prefetch_depth: None,
            scratch: None,
        }
    }
}

/// Settings of programs that have them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Host memory that weights stream from is pinned.
    pub pin_weights: bool,
    /// Host memory for weights and KV, in GB; what is free where it is not said.
    pub pin_memory_gb: Option<f64>,
    /// Of baselines: of transformers with everything in device memory, and of vLLM.
    pub cuda_graphs: bool,
    /// Of baselines: of transformers with everything in device memory.
    pub torch_compile: bool,
    /// Of PyTorch's baselines.
    pub cudnn_benchmark: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            pin_weights: true,
            pin_memory_gb: None,
            cuda_graphs: true,
            torch_compile: false,
            cudnn_benchmark: true,
        }
    }
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentConfig {
    /// `disabled`: a machine with swap is told of.
    pub os_swap: Option<String>,
    /// `unlimited`: another limit is told of.
    pub ulimit_memlock: Option<String>,
    /// Bind to the card's node; the system does that where there are several.
    pub numa_bind: bool,
    /// Which card.
    pub gpu_index: Option<u32>,
    /// Memory of the device, in GB; all that is free where it is not said.
    pub max_gpu_memory_gb: Option<f64>,
    /// Host memory that is left to the system, in GB.
    pub os_reserve_gb: Option<f64>,
    /// Memory of the device that is not used, in GB.
    pub safety_margin_gb: Option<f64>,
}

impl EnvironmentConfig {
    /// Bytes of the device that may be used, where that is limited.
    pub fn budget_bytes(&self) -> Option<u64> {
        let all = self.max_gpu_memory_gb?;
        let used = all - self.safety_margin_gb.unwrap_or(0.0);
        Some((used * 1e9) as u64)
    }
}

/// How much is told meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Logging {
    /// `ERROR`, `WARNING`, `INFO` or `DEBUG`, of the server in process.
    pub level: String,
    /// A line for every run.
    pub verbose: bool,
}

impl Default for Logging {
    fn default() -> Self {
        Logging {
            level: "WARNING".to_owned(),
            verbose: true,
        }
    }
}

/// Where results go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputConfig {
    /// A folder, where no file is named.
    pub results_dir: Option<String>,
    /// Numbers that are told of at the end; the usual ones where none is named.
    pub metrics: Vec<String>,
}

impl Config {
    /// Reads a file, or one of those that ship with Djinn by its name.
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => match bundled::by_name(path) {
                Some(text) => text.to_owned(),
                None => {
                    return Err(EvalError::NoConfig {
                        path: path.to_owned(),
                        error,
                    });
                }
            },
        };
        Self::parse(&text).map_err(|problem| EvalError::Config {
            path: path.to_owned(),
            problem,
        })
    }

    /// As it stands in a result.
    pub fn settings(&self) -> BTreeMap<String, serde_json::Value> {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(entries)) => entries.into_iter().collect(),
            _ => BTreeMap::new(),
        }
    }

    /// Reads YAML.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: serde_json::Value =
            serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        keys::check(&value)?;
        let config: Config = serde_json::from_value(value).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Whether a number is to be told of at the end: all are where none is named.
    pub fn tells(&self, metric: &str) -> bool {
        let named = &self.output.metrics;
        named.is_empty() || named.iter().any(|name| told_metric(name) == Some(metric))
    }

    /// Measured runs of a baseline, or of Djinn.
    pub fn counted(&self, baseline: &str) -> u32 {
        let own = self.baselines.get(baseline).and_then(|b| b.runs);
        own.unwrap_or(self.experiment.measurement.runs)
    }

    /// Whether a baseline is to run.
    pub fn runs(&self, baseline: &str) -> bool {
        self.baselines.get(baseline).is_some_and(|b| b.enabled)
    }

    /// The server that does the work, where the configuration names one.
    pub fn server_address(&self) -> Option<String> {
        let server = self.experiment.server.as_ref()?;
        Some(format!("{}:{}", server.host, server.port))
    }
}

/// The number of a run that a name of `output.metrics` stands for, older names among them.
fn told_metric(name: &str) -> Option<&'static str> {
    let name = match name {
        "latency_ms" => "total_time_ms",
        "peak_vram_mb" => "vram_used_mb",
        "logit_norm_diff" => "logit_norm",
        name => name,
    };
    djinn_report::metric(name).map(|metric| metric.key)
}
