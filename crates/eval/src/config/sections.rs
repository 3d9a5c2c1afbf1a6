//! The sections of a configuration file and their defaults.

use std::collections::BTreeMap;

use djinn_report::MetricTarget;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A configuration of experiments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvalConfig {
    /// The experiment: model, requests and repetitions.
    pub experiment: ExperimentSection,
    /// Baselines to run, by name.
    pub baselines: BTreeMap<String, BaselineSection>,
    /// Settings of the programs under test.
    pub tuning: TuningSection,
    /// Limits and properties of the machine.
    pub environment: EnvironmentSection,
    /// Amount of output.
    pub logging: LoggingSection,
    /// Location of the results, and metrics to print.
    pub output: OutputSection,
    /// Targets that the result is checked against.
    pub targets: Vec<MetricTarget>,
}

/// The experiment: model, requests and repetitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExperimentSection {
    /// Name of the configuration, which identifies its results.
    pub name: String,
    /// Purpose of the configuration, in a sentence.
    pub description: String,
    /// Remote server to measure. Without it, a server is started in process.
    pub server: Option<ServerSection>,
    /// Memory for resident and streamed weights.
    pub ring_buffer: RingBufferSection,
    /// Model under test.
    pub model: ModelSection,
    /// Requests to the model.
    pub inference: InferenceSection,
    /// Number of runs.
    pub measurement: MeasurementSection,
    /// Sessions of memory-pressure and agents.
    pub sessions: SessionsSection,
    /// Breakpoints of resume-latency.
    pub breakpoints: BreakpointsSection,
    /// Edit of steering.
    pub activation_steering: SteeringSection,
}

/// A remote server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerSection {
    /// Host name or address.
    pub host: String,
    /// Port number.
    #[serde(default = "port")]
    pub port: u16,
    /// Largest time for a reply, in seconds.
    #[serde(default = "timeout")]
    pub timeout_seconds: f64,
}

fn port() -> u16 {
    5556
}

fn timeout() -> f64 {
    300.0
}

/// Memory for resident and streamed weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RingBufferSection {
    /// Whether weights may stream. If false, all weights have to fit.
    pub enabled: bool,
    /// Memory for resident weights in GB, without the ring that the others stream through. All of the
    /// budget if absent.
    pub capacity_gb: Option<f64>,
    /// Number of threads that read weight files, on a CPU.
    pub prefetch_workers: Option<usize>,
}

impl Default for RingBufferSection {
    fn default() -> Self {
        RingBufferSection {
            enabled: true,
            capacity_gb: None,
            prefetch_workers: None,
        }
    }
}

/// Model under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// A folder, a hub id, `shape:NAME`, or `bundled`.
    pub model_id: String,
    /// Data type of the weights; the type in the model's files if absent.
    pub dtype: Option<String>,
    /// `cpu`, `cuda:0`, `auto`, or `remote://0` for the device of the server.
    pub device: Option<String>,
}

/// Requests to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InferenceSection {
    /// Number of concurrent sessions; must be 1.
    pub batch_size: u64,
    /// Context length of a session, in tokens.
    pub max_seq_len: Option<u64>,
    /// Length of the prompt, in tokens.
    pub prompt_length: u64,
    /// Number of tokens to generate.
    pub generation_length: u64,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus sampling: total probability of the candidate tokens.
    pub top_p: Option<f32>,
    /// Prompt of steering as text, instead of a synthetic one.
    pub prompt: Option<String>,
    /// Number of prompt tokens in one pass.
    pub rows: Option<u64>,
}

impl Default for InferenceSection {
    fn default() -> Self {
        InferenceSection {
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

/// Number of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MeasurementSection {
    /// Measured runs.
    pub runs: u32,
    /// Warm-up runs before the measured ones.
    pub warmup_runs: u32,
    /// Whether Python baselines collect garbage between runs.
    pub gc_between_runs: bool,
    /// Whether Python baselines disable garbage collection during runs.
    pub disable_gc_during_run: bool,
}

impl Default for MeasurementSection {
    fn default() -> Self {
        MeasurementSection {
            runs: 5,
            warmup_runs: 1,
            gc_between_runs: true,
            disable_gc_during_run: true,
        }
    }
}

/// Sessions of memory-pressure and agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionsSection {
    /// Number of sessions.
    pub count: u64,
    /// Number of turns of each session.
    pub turns: u64,
    /// Number of prompt tokens in each later turn.
    pub answer_length: u64,
    /// Smallest and largest pause between turns, in seconds.
    pub think_seconds: [f64; 2],
    /// Largest number of sessions in one pass.
    pub batch: Option<u64>,
    /// Number of sessions that also run alone, to compare their tokens.
    pub check: u64,
    /// Numbers of agents to measure, for the agents experiment.
    pub agents: Vec<u64>,
}

impl Default for SessionsSection {
    fn default() -> Self {
        SessionsSection {
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

/// Breakpoints of resume-latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BreakpointsSection {
    /// Layers after which sessions stop, counted from 1.
    pub layers: Vec<u64>,
    /// Number of stops at each layer in one run.
    pub repeats: u32,
}

impl Default for BreakpointsSection {
    fn default() -> Self {
        BreakpointsSection {
            layers: vec![1, 10, 20, 30, 40],
            repeats: 5,
        }
    }
}

/// Edit of steering.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SteeringSection {
    /// Whether the edit is applied. The steering experiment needs true.
    pub enabled: bool,
    /// Kind of the edit: `scale`.
    pub modification_type: String,
    /// Factor of the edit.
    pub modification_factor: f32,
    /// Layer after which the edit applies, counted from 1; the middle layer if absent.
    pub steering_layer: Option<u64>,
    /// Number of generations with and without the edit in one run.
    pub repeats: u32,
}

impl Default for SteeringSection {
    fn default() -> Self {
        SteeringSection {
            enabled: true,
            modification_type: "scale".to_owned(),
            modification_factor: 0.9,
            steering_layer: None,
            repeats: 1,
        }
    }
}

/// Settings of one baseline. Keys that the baseline does not read are noted in the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BaselineSection {
    /// Whether the baseline runs.
    pub enabled: bool,
    /// Whether Djinn prefetches weights.
    pub use_async_prefetch: Option<bool>,
    /// Number of measured runs, for slow baselines.
    pub runs: Option<u32>,
    /// Number of tokens to generate, for slow baselines.
    pub generation_length: Option<u64>,
    /// Path of llama-bench, for llama.cpp.
    pub binary: Option<String>,
    /// Path of a GGUF model, for llama.cpp; a synthetic one if absent.
    pub gguf: Option<String>,
    /// Number of layers on the device, for llama.cpp; as many as fit if absent.
    pub gpu_layers: Option<u64>,
    /// Number of CPU threads.
    pub threads: Option<u64>,
    /// Weights in host memory in GB, for vLLM.
    pub cpu_offload_gb: Option<f64>,
    /// Number of layers to prefetch, for vLLM.
    pub prefetch_depth: Option<u64>,
    /// Folder for temporary files.
    pub scratch: Option<String>,
}

impl Default for BaselineSection {
    fn default() -> Self {
        BaselineSection {
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

/// Settings of the programs under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TuningSection {
    /// Whether baselines pin the host memory that weights stream from.
    pub pin_weights: bool,
    /// Host memory for weights and KV in GB; all free memory if absent.
    pub pin_memory_gb: Option<f64>,
    /// Whether transformers and vLLM use CUDA graphs.
    pub cuda_graphs: bool,
    /// Whether transformers compiles the model.
    pub torch_compile: bool,
    /// Whether PyTorch baselines let cuDNN choose its algorithms by measurement.
    pub cudnn_benchmark: bool,
}

impl Default for TuningSection {
    fn default() -> Self {
        TuningSection {
            pin_weights: true,
            pin_memory_gb: None,
            cuda_graphs: true,
            torch_compile: false,
            cudnn_benchmark: true,
        }
    }
}

/// Limits and properties of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentSection {
    /// `disabled` adds a note to the result if the machine has swap.
    pub os_swap: Option<String>,
    /// `unlimited` adds a note to the result if locked memory is limited.
    pub ulimit_memlock: Option<String>,
    /// Whether to bind to a NUMA node; has no effect, use numactl.
    pub numa_bind: bool,
    /// Number of the GPU.
    pub gpu_index: Option<u32>,
    /// Budget of device memory in GB; all free memory if absent.
    pub max_gpu_memory_gb: Option<f64>,
    /// Host memory left to the operating system, in GB.
    pub os_reserve_gb: Option<f64>,
    /// Part of `max_gpu_memory_gb` that is not used, in GB.
    pub safety_margin_gb: Option<f64>,
}

impl EnvironmentSection {
    /// Returns the budget of device memory in bytes, if there is one.
    pub fn budget_bytes(&self) -> Option<u64> {
        let all = self.max_gpu_memory_gb?;
        let used = all - self.safety_margin_gb.unwrap_or(0.0);
        Some((used * 1e9) as u64)
    }
}

/// Amount of output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoggingSection {
    /// Log level of the server in process: `ERROR`, `WARNING`, `INFO` or `DEBUG`.
    pub level: String,
    /// Whether to print a line for every run.
    pub verbose: bool,
}

impl Default for LoggingSection {
    fn default() -> Self {
        LoggingSection {
            level: "WARNING".to_owned(),
            verbose: true,
        }
    }
}

/// Location of the results, and metrics to print.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputSection {
    /// Folder for results, if the command line names no file.
    pub results_dir: Option<String>,
    /// Metrics to print at the end; all if empty.
    pub metrics: Vec<String>,
}
