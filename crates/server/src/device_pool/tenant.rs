//! Interface of a model to the pool.

use std::time::Instant;

/// A model that uses the device.
pub trait Tenant: Send + Sync {
    /// Name of the model.
    fn name(&self) -> &str;
    /// Whether the model has nothing to run and no request waits for it.
    fn is_idle(&self) -> bool;
    /// Time of the last request that used the model.
    fn last_used(&self) -> Instant;
    /// Makes the thread of the model look at its reservation.
    fn wake(&self);
}
