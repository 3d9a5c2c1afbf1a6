//! A model to load, with everything that its load depends on, and the errors of a load for lack of memory.

use std::{sync::Arc, time::Duration};

use djinn_engine::EngineError;

use crate::{
    ServeError,
    config::{LoadOptions, ServerConfig},
    device_pool::DevicePool,
    fatal::FatalSignal,
    metrics::Metrics,
    preset::Preset,
};

/// A configured model that is loaded later and shares the free memory.
#[derive(Clone)]
pub(super) struct Sharer {
    /// Name of the model on this server.
    pub name: String,
    /// Folder or shape, as resolved.
    pub reference: String,
    /// Load options.
    pub layout: LoadOptions,
    /// Bytes of the model's weights; zero if it cannot be opened.
    pub weight_bytes: u64,
}

/// A model to load, and the settings of the load.
#[derive(Clone)]
pub(super) struct ModelLoader {
    /// Name of the model on this server.
    pub name: String,
    /// Folder or shape, as resolved.
    pub reference: String,
    /// Load options.
    pub layout: LoadOptions,
    /// Bytes of device memory that no other model holds.
    pub free: u64,
    /// Configured models that are loaded later and share the free memory.
    pub sharers: Vec<Sharer>,
    /// Bytes of host memory that other models hold.
    pub host_taken: u64,
    /// Longest time that the load waits for device memory; `None` for no limit.
    pub patience: Option<Duration>,
    /// Whether the server has no other model.
    pub is_alone: bool,
    /// Memory of the device, which models use in turns.
    pub pool: Arc<DevicePool>,
    /// Configuration of the server.
    pub config: Arc<ServerConfig>,
    /// Metrics of the server.
    pub metrics: Arc<Metrics>,
    /// Raised when the device is lost.
    pub fatal: FatalSignal,
    /// Settings of the program that starts a server in its process.
    pub preset: Option<Arc<Preset>>,
}

/// Whether loading failed only for lack of memory.
pub(super) fn is_memory_shortage(error: &ServeError) -> bool {
    let ServeError::Engine(error) = error else {
        return matches!(error, ServeError::Busy(_));
    };
    matches!(
        error,
        EngineError::Plan(_)
            | EngineError::ContextMemory(_)
            | EngineError::HostBudget { .. }
            | EngineError::HostMemory { .. }
            | EngineError::SpillNeedsHost { .. }
            | EngineError::WindowNeedsHost { .. }
            | EngineError::OutOfPages(_)
            | EngineError::SessionTooLarge { .. }
    )
}

/// Whether loading failed for lack of host memory.
pub(super) fn is_host_shortage(error: &ServeError) -> bool {
    matches!(
        error,
        ServeError::Engine(
            EngineError::HostBudget { .. }
                | EngineError::HostMemory { .. }
                | EngineError::WindowNeedsHost { .. }
        )
    )
}
