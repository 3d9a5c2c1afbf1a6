//! Where an experiment ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine, the program and how it was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Version of Djinn.
    pub djinn: String,
    /// The commit it was built from, with `-dirty` where files had changed.
    pub commit: String,
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// What that is.
    pub device_name: String,
    /// All of its memory, in MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory_mb: Option<f64>,
    /// The card's driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The CUDA that driver speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// What weights come over: `PCIe 5 x16`, or the model's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// What that gave alone, in the same sitting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// The processor.
    pub processor: String,
    /// Cores that may be used.
    pub cores: u64,
    /// Memory of the host, in MB.
    pub host_memory_mb: f64,
    /// The operating system and its version.
    pub system: String,
    /// `in process`, or the server's address.
    pub server: String,
    /// The command line.
    pub command: String,
}
