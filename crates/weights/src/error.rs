//! Errors of the plan and of the link.

use djinn_types::Size;

/// Failure to set up the link that weights stream over.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] djinn_device::DeviceError),
    /// The requested number of worker threads is 0 or above the limit.
    #[error("--workers {asked} is out of range: set it from 1 to {limit}")]
    WorkerCount {
        /// Requested number of worker threads.
        asked: usize,
        /// Largest number of worker threads.
        limit: usize,
    },
    /// The caller ended the load.
    #[error("loading the weights was cancelled; load the model again")]
    Cancelled,
    /// The operating system did not start the worker threads.
    #[error("the system did not start {count} link workers ({error}); lower --workers")]
    Workers {
        /// Requested number of worker threads.
        count: usize,
        /// Error of the operating system.
        error: std::io::Error,
    },
}

/// Memory budget, or override of the plan, that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The budget is smaller than the bytes that must be in memory at once.
    #[error(
        "--memory {} is too small: this model needs at least {} ({} for KV, activations and \
         small tensors, {} to stream weights through); raise --memory",
        Size(*budget), Size(*least).rounded_up(), Size(*fixed), Size(least - fixed)
    )]
    Budget {
        /// Bytes of the budget.
        budget: u64,
        /// Bytes of the smallest budget that works.
        least: u64,
        /// Bytes of `least` that are in use at all times.
        fixed: u64,
    },
    /// The user requires all weights to stay, and the budget is smaller.
    #[error(
        "--resident all needs {}, but --memory is {}; raise --memory or drop --resident all",
        Size(*whole).rounded_up(), Size(*budget)
    )]
    NotAll {
        /// Bytes of the budget.
        budget: u64,
        /// Bytes of the smallest budget in which all weights stay.
        whole: u64,
    },
    /// The requested ring does not hold the largest piece.
    #[error(
        "--ring {} is too small: the largest piece of the weights has {}; raise --ring to at \
         least this size",
        Size(*ring), Size(*least).rounded_up()
    )]
    RingTooSmall {
        /// Bytes of the requested ring.
        ring: u64,
        /// Bytes of the smallest ring that works.
        least: u64,
    },
    /// The requested ring does not fit into the budget.
    #[error(
        "--ring {} does not fit: --memory leaves {} for the ring; lower --ring or raise --memory",
        Size(*ring), Size(*most)
    )]
    RingTooLarge {
        /// Bytes of the requested ring.
        ring: u64,
        /// Bytes of the largest ring that works.
        most: u64,
    },
}
