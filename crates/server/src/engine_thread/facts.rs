//! Properties of a loaded model that are known without a call to its engine.

use djinn_engine::{Engine, MemorySplit, RequestChecker};
use djinn_model::program::Dims;
use djinn_weights::Keep;
use djinn_wire::v1;

/// Properties that stay constant while a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadedModelFacts {
    /// Model family, for example `llama` or `gpt2`.
    pub family: &'static str,
    /// Dimensions of the model.
    pub dims: Dims,
    /// Checks requests and binds them to the model before the engine sees them.
    pub checker: RequestChecker,
    /// One sentence on how the model is laid out in memory.
    pub routing: String,
    /// Device and host memory of the model, by purpose.
    pub memory: v1::ModelMemory,
    /// Limits that the model is laid out for.
    pub limits: v1::ModelLimits,
    /// Measured bandwidth of the link in bytes per second; 0 if no weights stream.
    pub link_ceiling: f64,
    /// Bytes of a KV page.
    pub page_bytes: u64,
    /// Tokens per KV page.
    pub page_tokens: u64,
}

impl LoadedModelFacts {
    /// Collects the properties of a loaded engine.
    pub fn of(engine: &Engine, link_ceiling: f64) -> Self {
        let (model, blueprint) = (engine.model(), engine.blueprint());
        LoadedModelFacts {
            family: model.program.family,
            dims: model.program.dims,
            checker: engine.request_checker(),
            routing: blueprint.reason(),
            memory: memory(blueprint),
            limits: limits(blueprint),
            link_ceiling,
            page_bytes: blueprint.page_bytes(),
            page_tokens: blueprint.settings().page_tokens as u64,
        }
    }
}

/// Limits of a blueprint as a message.
pub(crate) fn limits(blueprint: &djinn_engine::Blueprint) -> v1::ModelLimits {
    let settings = blueprint.settings();
    v1::ModelLimits {
        memory_bytes: blueprint.memory().budget,
        context: settings.context as u64,
        batch: settings.sessions as u64,
        sessions: settings.open as u64,
        rows: settings.rows as u64,
        no_prefetch: !blueprint.memory().prefetch,
        resident_bytes: match blueprint.memory().overrides.keep {
            Keep::AtMost(bytes) => bytes,
            _ => 0,
        },
        kv_dtype: v1::KvDtype::in_use(blueprint.kv_dtype()).into(),
    }
}

/// Memory of a blueprint, by purpose, as a message.
pub(crate) fn memory(blueprint: &djinn_engine::Blueprint) -> v1::ModelMemory {
    let footprint = blueprint.footprint();
    v1::ModelMemory {
        resident_bytes: footprint.resident,
        ring_bytes: footprint.ring,
        experts_bytes: footprint.pool,
        kv_bytes: footprint.kv,
        activations_bytes: footprint.activations,
        total_bytes: footprint.total(),
        host_bytes: blueprint.host_bytes(),
        streamed_bytes: blueprint.plan().ring.streamed_bytes(),
        scratch_bytes: footprint.scratch,
        driver_bytes: footprint.driver,
    }
}

/// Memory of a model whose weights and KV pages share device memory, at this moment.
pub(crate) fn memory_now(memory: v1::ModelMemory, split: &MemorySplit) -> v1::ModelMemory {
    match split.frames {
        // The engine thread has published nothing yet.
        0 => memory,
        _ => v1::ModelMemory {
            resident_bytes: split.resident_bytes,
            kv_bytes: split.kv_bytes,
            streamed_bytes: split.streamed_bytes,
            ..memory
        },
    }
}

/// Dimensions of a model as a message.
pub(crate) fn dims(dims: &Dims) -> v1::Dims {
    v1::Dims {
        blocks: dims.blocks as u64,
        d_model: dims.d_model as u64,
        heads: dims.heads as u64,
        kv_heads: dims.kv_heads as u64,
        d_head: dims.d_head as u64,
        d_mlp: dims.d_mlp as u64,
        vocab: dims.vocab as u64,
        context: dims.context as u64,
    }
}
