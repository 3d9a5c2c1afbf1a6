//! Names, scripts and settings of the baselines.

use djinn_report::Experiment;

/// Names of all contenders: Djinn, other modes of Djinn, and other programs.
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

/// A baseline that is a Python script.
pub struct BaselineScript {
    /// Name of the baseline.
    pub name: &'static str,
    /// File name of the script.
    pub file: &'static str,
    /// Source of the script.
    pub text: &'static str,
    /// Description of the program, for results of a script that did not run.
    pub program: &'static str,
    /// Settings of the configuration that the script reads.
    pub keys: &'static [&'static str],
    /// Experiments that the script supports.
    pub experiments: &'static [Experiment],
}

macro_rules! script {
    ($name:literal, $file:literal, $program:literal, $keys:expr, $experiments:expr) => {
        BaselineScript {
            name: $name,
            file: $file,
            text: include_str!(concat!("../../../../eval/baselines/", $file)),
            program: $program,
            keys: $keys,
            experiments: $experiments,
        }
    };
}

use Experiment::{Agents, MemoryPressure, ResumeLatency, VirtualMemory};

/// All baselines that are Python scripts.
pub const SCRIPTS: &[BaselineScript] = &[
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
        "eager PyTorch, every session in device memory",
        &[],
        &[MemoryPressure, Agents]
    ),
    script!(
        "recompute",
        "recompute.py",
        "PyTorch, recomputes everything",
        &[],
        &[ResumeLatency]
    ),
    script!(
        "manual_offload",
        "manual_offload.py",
        "PyTorch, KV copied to pinned memory and back",
        &[],
        &[ResumeLatency]
    ),
];

/// Source of the module that all scripts import.
pub const COMMON: &str = include_str!("../../../../eval/baselines/common.py");

/// Returns the settings that a baseline reads.
pub fn accepted_keys(name: &str) -> &'static [&'static str] {
    match SCRIPTS.iter().find(|script| script.name == name) {
        Some(script) => script.keys,
        None if name == "ring_buffer_async_prefetch" => &["use_async_prefetch"],
        None => &[],
    }
}
