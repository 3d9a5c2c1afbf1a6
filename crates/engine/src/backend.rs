//! Properties that an engine derives from a backend for a model.

use djinn_device::Backend;
use djinn_model::program::Program;
use djinn_types::{DType, Tier};

use djinn_weights::{MemorySettings, Packing, weights_dtype};

use crate::{
    error::{EngineError, LimitKind},
    settings::Settings,
};

/// Element type of a model's keys and values.
pub fn kv_dtype(memory: &MemorySettings, program: &Program) -> DType {
    memory.kv_dtype.resolve(weights_dtype(program))
}

/// Element type of a model's keys and values in releases before 0.2, which did not store it with
/// sessions.
pub(crate) fn legacy_kv_dtype(backend: &dyn Backend, program: &Program) -> DType {
    match backend.is_host_memory() {
        true => DType::F32,
        false => weights_dtype(program),
    }
}

/// Bytes of the largest piece that a model's weights are cut into. The ring holds a few
/// pieces, so small models are cut into small ones.
pub(crate) fn piece_bytes(backend: &dyn Backend, weight_bytes: u64) -> u64 {
    (weight_bytes / 256).clamp(64 << 10, backend.max_piece_bytes())
}

/// Layout of weights that stream from a tier.
pub(crate) fn packing(backend: &dyn Backend, tier: Tier) -> Packing {
    match tier {
        Tier::Files if backend.is_host_memory() => Packing::Blocks,
        _ => Packing::Tensors,
    }
}

/// Bytes of host memory that a slab of this size takes.
pub(crate) fn slab_on_host(backend: &dyn Backend, slab_bytes: u64) -> u64 {
    match backend.is_host_memory() {
        true => slab_bytes,
        false => 0,
    }
}

/// Refuses settings whose passes exceed the limits of the device's kernels.
pub(crate) fn check_settings(
    backend: &dyn Backend,
    program: &Program,
    settings: &Settings,
    kv_dtype: DType,
) -> Result<(), EngineError> {
    let keys = settings.table_pages().saturating_mul(settings.page_tokens);
    let limits = backend.limits(kv_dtype, program.dims.d_head);
    let pattern_keys = settings.probe_limits.pattern_keys;
    LimitKind::DeviceRows.check(settings.rows, limits.rows)?;
    LimitKind::DeviceKeys.check(keys, limits.keys)?;
    LimitKind::DevicePatternKeys.check(pattern_keys, limits.pattern_keys)
}
