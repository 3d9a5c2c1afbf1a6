//! A model's reservation in the pool.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use djinn_types::Size;

use super::{DevicePool, Tenant, TenantId};
use crate::ServeError;

/// Interval at which a load looks whether its memory is free.
const POLL: Duration = Duration::from_millis(5);

/// Memory of the device that a model reserves, waits for, or has given back. It is free again when the
/// reservation is dropped.
pub struct Reservation {
    pool: Arc<DevicePool>,
    tenant: Arc<dyn Tenant>,
    id: TenantId,
}

impl Reservation {
    /// Creates a reservation of no memory.
    pub fn new(pool: &Arc<DevicePool>, tenant: Arc<dyn Tenant>) -> Self {
        let id = pool.change(super::Turns::new_id);
        Reservation {
            pool: Arc::clone(pool),
            tenant,
            id,
        }
    }

    /// Reserves memory for a load, and waits until others have yielded it. Fails after `patience`, with
    /// the models that hold the memory.
    pub fn wait_for(&self, bytes: u64, patience: Duration) -> Result<(), ServeError> {
        let until = Instant::now() + patience;
        while !self.try_take(bytes) {
            if Instant::now() >= until {
                let holders = self.pool.holders();
                self.give_back();
                return Err(ServeError::busy(format!(
                    "{} needs {} of the {} of device memory, but {}; retry later, or lower memory limits \
                     (memory=)",
                    self.tenant.name(),
                    Size(bytes),
                    Size(self.pool.total),
                    holders.unwrap_or_else(|| "other models wait for it".to_owned()),
                )));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Reserves memory if it is this model's turn and the memory is free. Otherwise the model waits in
    /// the queue, and is woken when it is worth trying again.
    pub fn try_take(&self, bytes: u64) -> bool {
        let bytes = bytes.min(self.pool.total);
        self.pool
            .change(|turns| turns.request(self.id, &self.tenant, bytes));
        self.pool.lock().is_holder(self.id)
    }

    /// Sets the bytes that a loaded model holds.
    pub fn resize(&self, bytes: u64) {
        self.pool
            .change(|turns| turns.resize(self.id, &self.tenant, bytes));
    }

    /// Begins the model's turn on the device, to which it took `returned` to return.
    pub fn begin_turn(&self, returned: Duration) {
        self.pool
            .change(|turns| turns.begin_turn(self.id, returned, Instant::now()));
    }

    /// Whether another model waits for this model's memory.
    pub fn must_yield(&self) -> bool {
        self.pool.lock().must_yield(self.id)
    }

    /// Frees the memory, or stops waiting for it.
    pub fn give_back(&self) {
        self.pool.remove(self.id);
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        self.tenant.name()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::{DevicePool, Reservation, Tenant};
    use crate::ErrorCode;

    struct Busy(&'static str);

    impl Tenant for Busy {
        fn name(&self) -> &str {
            self.0
        }
        fn is_idle(&self) -> bool {
            false
        }
        fn last_used(&self) -> Instant {
            Instant::now()
        }
        fn wake(&self) {}
    }

    #[test]
    fn an_error_names_the_models_that_hold_the_memory() {
        let pool = DevicePool::new(100_000_000);
        let reserve = |name| Reservation::new(&pool, Arc::new(Busy(name)));
        let (first, second) = (reserve("first"), reserve("second"));
        first.wait_for(60_000_000, Duration::ZERO).expect("is free");
        let error = second
            .wait_for(50_000_000, Duration::ZERO)
            .expect_err("is held");
        assert_eq!(error.code(), ErrorCode::Limited);
        let text = error.to_string();
        assert!(
            text.contains("second needs 50.0 MB of the 100.0 MB"),
            "{text}"
        );
        assert!(text.contains("first holds 60.0 MB"), "{text}");
        drop(first);
        second
            .wait_for(50_000_000, Duration::ZERO)
            .expect("is free again");
        assert_eq!((pool.reserved(), pool.free()), (50_000_000, 50_000_000));
    }
}
