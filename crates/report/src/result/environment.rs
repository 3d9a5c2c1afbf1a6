//! Machine and program version of a measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Machine, program version and command line of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunEnvironment {
    /// Version of Djinn.
    pub djinn: String,
    /// Commit that the program was built from, with `-dirty` if files had changed.
    pub commit: String,
    /// Device name: `cpu` or `cuda:0`.
    pub device: String,
    /// Model name of the device.
    pub device_name: String,
    /// Total device memory, in MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory_mb: Option<f64>,
    /// Version of the GPU driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CUDA version that the driver supports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// Link that weights stream over: `PCIe 5 x16`, or the model's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Rate of the link without compute, in GB/s, measured in the same sitting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// Model name of the CPU.
    pub processor: String,
    /// Number of usable CPU cores.
    pub cores: u64,
    /// Host memory, in MB.
    pub host_memory_mb: f64,
    /// Operating system and version.
    pub system: String,
    /// Address of the server, or `in process`.
    pub server: String,
    /// Command line of the measurement.
    pub command: String,
}
