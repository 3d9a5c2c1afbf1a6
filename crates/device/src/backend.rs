//! Backends: devices that are known but not yet opened.

use std::fmt;
use std::sync::Arc;

use djinn_types::{DType, Tier};

use crate::cuda::Card;
use crate::{Device, Result};

/// Upper bounds on the operands of a pass. A device allocates its scratch memory for these bounds
/// when the backend opens the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassLimits {
    /// Rows of a pass.
    pub rows: usize,
    /// Elements of the widest input of a matrix product.
    pub width: usize,
    /// Rows of a pass that hold generated tokens.
    pub generated: usize,
    /// Query heads.
    pub heads: usize,
    /// Elements of a head.
    pub d_head: usize,
    /// Keys of the longest context, in whole pages.
    pub keys: usize,
}

/// Upper bounds that a device's kernels impose on a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Rows of a pass.
    pub rows: usize,
    /// Keys that one row attends to.
    pub keys: usize,
    /// Keys of an attention pattern that is read or edited.
    pub pattern_keys: usize,
}

impl DeviceLimits {
    /// No limits.
    pub const NONE: DeviceLimits = DeviceLimits {
        rows: usize::MAX,
        keys: usize::MAX,
        pattern_keys: usize::MAX,
    };
}

/// A device that is not opened yet. The size of its slab is known only after a model is laid out.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Name of the device in flags and reports: `cpu`, `cuda:0`.
    fn name(&self) -> String;
    /// Product name of the device; empty for the CPU.
    fn detail(&self) -> String;
    /// Whether rows of prompts and rows of generated tokens give the same bits. Keys and values of
    /// a generated token then equal those of the same token in a prompt.
    fn phases_agree(&self) -> bool;
    /// Tier that weights stream from by default.
    fn tier(&self) -> Tier;
    /// Whether the slab lies in host memory.
    fn is_host_memory(&self) -> bool;
    /// Bytes of device memory that this process uses in addition to its slabs: contexts, kernels,
    /// libraries. A memory budget includes these bytes.
    fn overhead(&self) -> u64;
    /// Bytes of device memory that the driver needs to map `host_bytes` of pinned memory.
    fn host_tables(&self, host_bytes: u64) -> u64;
    /// Bytes of device memory that the driver needs for the recorded passes of up to
    /// `sessions` sessions.
    fn graph_bytes(&self, sessions: usize) -> u64;
    /// Bytes of device memory that operations within these limits need in addition to the slab.
    fn scratch_bytes(&self, limits: PassLimits) -> u64;
    /// Limits of the kernels for keys of this type and heads of this width.
    fn limits(&self, kv_dtype: DType, d_head: usize) -> DeviceLimits;
    /// Bytes of the largest piece that weights are cut into for streaming. Large pieces cost
    /// the least to copy, small ones waste the least memory.
    fn max_piece_bytes(&self) -> u64;
    /// Checks that the device can be opened with a slab of this size, without opening it.
    fn check(&self, slab_bytes: u64) -> Result<()>;
    /// Bytes of device memory that are free or already used by this process.
    fn free_memory(&self) -> Result<u64>;
    /// Opens the device with a slab of this size and scratch memory for these limits.
    fn open(&self, slab_bytes: u64, limits: PassLimits) -> Result<Arc<dyn Device>>;
    /// Measures how fast the device reads its memory, in bytes per second. A CPU reads
    /// through a buffer of `bytes`.
    fn measure_bandwidth(&self, bytes: u64) -> Result<f64>;
    /// NVIDIA card of this backend, or `None`. Callers read the PCIe link and the driver's
    /// statistics through it.
    fn card(&self) -> Option<&Arc<Card>> {
        None
    }
}
