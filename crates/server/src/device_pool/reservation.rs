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

    /// Reserves `needed` bytes for a load, waits until others have yielded them, and plans the load then.
    /// The plan may need more bytes than expected: then this call waits for those, and plans again.
    /// Returns the plan, with its bytes reserved. Fails after `patience`; `None` waits without limit.
    pub fn reserve<T>(
        &self,
        mut needed: u64,
        patience: Option<Duration>,
        mut plan: impl FnMut() -> Result<(u64, T), ServeError>,
    ) -> Result<T, ServeError> {
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            self.wait_for(needed, until)?;
            let planned = plan().inspect_err(|_| self.give_back());
            let (bytes, planned) = planned?;
            if bytes <= needed {
                self.resize(bytes);
                return Ok(planned);
            }
            self.give_back();
            needed = bytes;
        }
    }

    /// Waits for memory until a time, and fails then with the models that hold the memory.
    fn wait_for(&self, bytes: u64, until: Option<Instant>) -> Result<(), ServeError> {
        while !self.try_take(bytes) {
            if self.pool.is_closed() {
                self.give_back();
                return Err(ServeError::unavailable("The server is shutting down"));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                self.give_back();
                return Err(self.is_busy(bytes));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Error of a model that waited too long for memory. Names the models that hold it.
    pub fn is_busy(&self, bytes: u64) -> ServeError {
        let holders = self.pool.holders();
        ServeError::busy(format!(
            "{} needs {} of the {} of device memory, but {}; retry later, or lower memory limits (memory=)",
            self.tenant.name(),
            Size(bytes),
            Size(self.pool.total),
            holders.unwrap_or_else(|| "other models wait for it".to_owned()),
        ))
    }

    /// Reserves memory if it is this model's turn and the memory is free. Otherwise the model waits in
    /// the queue, and is woken when it is worth trying again.
    pub fn try_take(&self, bytes: u64) -> bool {
        let bytes = bytes.min(self.pool.total);
        self.pool.change(|turns| {
            turns.request(self.id, &self.tenant, bytes);
        });
        self.pool.lock().is_holder(self.id)
    }

    /// Sets the bytes that the model holds.
    pub fn resize(&self, bytes: u64) {
        self.pool
            .change(|turns| turns.resize(self.id, &self.tenant, bytes, Instant::now()));
    }

    /// Plans a load with the bytes of host memory that other models hold, and holds the bytes of the plan
    /// until the reservation is dropped. No other load is planned meanwhile.
    pub fn plan_host<T>(
        &self,
        plan: impl FnOnce(u64) -> Result<(u64, T), ServeError>,
    ) -> Result<T, ServeError> {
        let mut host = self.pool.lock_host();
        let (bytes, planned) = plan(host.bytes_except(self.id))?;
        host.set(self.id, self.tenant.name(), bytes);
        Ok(planned)
    }

    /// Begins the model's turn on the device. Until then, the pool does not ask it to yield.
    pub fn begin_turn(&self) {
        self.pool
            .change(|turns| turns.begin_turn(self.id, Instant::now()));
    }

    /// Whether another model waits for this model's memory.
    pub fn must_yield(&self) -> bool {
        self.pool.lock().must_yield(self.id)
    }

    /// Whether a model waits for memory, of this model or another one.
    pub fn has_waiters(&self) -> bool {
        self.pool.lock().has_waiters()
    }

    /// Reports that the model cannot yield. Others are asked instead.
    pub fn cannot_yield(&self) {
        self.pool.change(|turns| turns.cannot_yield(self.id));
    }

    /// Reports that the model can yield again.
    pub fn can_yield(&self) {
        self.pool.change(|turns| turns.can_yield(self.id));
    }

    /// Frees the device memory, or stops waiting for it.
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
        self.pool.lock_host().remove(self.id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::{DevicePool, Reservation, Tenant};
    use crate::{ErrorCode, ServeError};

    const NO_PATIENCE: Option<Duration> = Some(Duration::ZERO);

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

    fn reserve(reservation: &Reservation, bytes: u64) -> Result<(), ServeError> {
        reservation.reserve(bytes, NO_PATIENCE, || Ok((bytes, ())))
    }

    #[test]
    fn an_error_names_the_models_that_hold_the_memory() {
        let pool = DevicePool::new(100_000_000);
        let of = |name| Reservation::new(&pool, Arc::new(Busy(name)));
        let (first, second) = (of("first"), of("second"));
        reserve(&first, 60_000_000).expect("is free");
        let error = reserve(&second, 50_000_000).expect_err("is held");
        assert_eq!(error.code(), ErrorCode::Limited);
        let text = error.to_string();
        assert!(
            text.contains("second needs 50.0 MB of the 100.0 MB"),
            "{text}"
        );
        assert!(text.contains("first holds 60.0 MB"), "{text}");
        drop(first);
        reserve(&second, 50_000_000).expect("is free again");
        assert_eq!((pool.reserved(), pool.free()), (50_000_000, 50_000_000));
    }

    #[test]
    fn a_plan_that_grows_waits_for_the_bytes_that_it_needs_more() {
        let pool = DevicePool::new(100);
        let of = |name| Reservation::new(&pool, Arc::new(Busy(name)));
        let (first, second) = (of("first"), of("second"));
        reserve(&first, 30).unwrap();
        let refused = second.reserve(60, NO_PATIENCE, || Ok((80, ())));
        assert_eq!(refused.unwrap_err().code(), ErrorCode::Limited);
        assert_eq!(pool.reserved(), 30, "the second one holds nothing");
        let mut plans = [60, 70, 70].into_iter();
        second
            .reserve(50, NO_PATIENCE, || Ok((plans.next().unwrap(), ())))
            .unwrap();
        assert_eq!(pool.reserved(), 100);
        assert_eq!(plans.len(), 0, "every plan that grew was drawn again");
    }

    #[test]
    fn a_pool_that_closes_ends_the_waits() {
        let pool = DevicePool::new(100);
        let of = |name| Reservation::new(&pool, Arc::new(Busy(name)));
        let (first, second) = (of("first"), of("second"));
        reserve(&first, 80).unwrap();
        pool.close();
        let refused = second.reserve(80, None, || Ok((80, ())));
        assert_eq!(refused.unwrap_err().code(), ErrorCode::Unavailable);
    }

    #[test]
    fn host_memory_counts_until_the_reservation_is_dropped() {
        let pool = DevicePool::new(100);
        let of = |name| Reservation::new(&pool, Arc::new(Busy(name)));
        let (first, second) = (of("first"), of("second"));
        first
            .plan_host(|taken| Ok((7, assert_eq!(taken, 0))))
            .unwrap();
        second
            .plan_host(|taken| Ok((5, assert_eq!(taken, 7))))
            .unwrap();
        first.give_back();
        assert_eq!(pool.host_bytes_of_others("second"), 7);
        drop(first);
        assert_eq!(pool.host_bytes_of_others("second"), 0);
        assert_eq!(pool.host_bytes_of_others("first"), 5);
    }
}
