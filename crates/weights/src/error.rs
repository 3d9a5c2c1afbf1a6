//! Errors of setting up the link.

use crate::MemorySettings;

/// An error of setting up the link that weights stream over.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] djinn_device::DeviceError),
    /// The requested number of worker threads is outside the allowed range.
    #[error(
        "{asked} link workers are not possible: the limit is {}; set --workers from 1 to {}",
        MemorySettings::WORKERS_MAX,
        MemorySettings::WORKERS_MAX
    )]
    WorkerCount {
        /// Requested number of worker threads.
        asked: usize,
    },
    /// The operating system did not start the worker threads.
    #[error("the system did not start {count} link workers: {error}; lower --workers")]
    Workers {
        /// Requested number of worker threads.
        count: usize,
        /// Error of the operating system.
        error: std::io::Error,
    },
}
