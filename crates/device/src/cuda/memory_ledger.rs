//! Accounts of a card's memory: bytes that this process allocated, and bytes that the driver
//! keeps for itself. The driver's bytes can be measured only while nothing is allocated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Accounts of one card.
pub(super) struct MemoryLedger {
    /// Bytes of context, kernels and libraries, as last measured.
    driver: AtomicU64,
    /// Bytes that are allocated. The lock is held during an allocation, so that no measurement sees
    /// half of it.
    allocated: Mutex<u64>,
}

impl MemoryLedger {
    pub(super) fn new(driver: u64) -> Self {
        MemoryLedger {
            driver: AtomicU64::new(driver),
            allocated: Mutex::new(0),
        }
    }

    /// Bytes that the driver keeps: measured now if nothing is allocated, otherwise the last
    /// measured value. Never waits: an allocation or a deallocation may wait for a card that has
    /// stopped, and health checks need this number.
    pub(super) fn driver_bytes(&self, measure: impl FnOnce() -> Option<u64>) -> u64 {
        let allocated = match self.allocated.try_lock() {
            Ok(allocated) => Some(allocated),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(0) = allocated.as_deref()
            && let Some(driver) = measure()
        {
            self.driver.store(driver, Ordering::Relaxed);
        }
        self.driver.load(Ordering::Relaxed)
    }

    /// Runs an allocation, and adds its bytes to the account if it succeeds.
    pub(super) fn allocate<T, E>(
        &self,
        bytes: u64,
        allocate: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut allocated = self.lock();
        let memory = allocate()?;
        *allocated += bytes;
        Ok(memory)
    }

    /// Runs a deallocation, and subtracts its bytes from the account.
    pub(super) fn free(&self, bytes: u64, free: impl FnOnce()) {
        let mut allocated = self.lock();
        free();
        *allocated = allocated.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.allocated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::MemoryLedger;

    #[test]
    fn the_driver_is_measured_only_while_nothing_is_allocated() {
        let ledger = MemoryLedger::new(300);
        let no = ledger.allocate(50, || Err::<(), _>("no memory"));
        assert_eq!(no, Err("no memory"));
        assert_eq!(ledger.driver_bytes(|| Some(334)), 334);
        assert_eq!(ledger.driver_bytes(|| None), 334);
        let address = ledger.allocate(50, || Ok::<_, ()>(7)).unwrap();
        assert_eq!(address, 7);
        assert_eq!(ledger.driver_bytes(|| panic!("not measured now")), 334);
        ledger.free(50, || ());
        assert_eq!(ledger.driver_bytes(|| Some(340)), 340);
    }

    #[test]
    fn a_measurement_does_not_wait_for_an_allocation() {
        let ledger = MemoryLedger::new(300);
        ledger.free(0, || {
            assert_eq!(ledger.driver_bytes(|| panic!("not measured now")), 300);
        });
        assert_eq!(ledger.driver_bytes(|| Some(310)), 310);
    }

    #[test]
    fn no_measurement_sees_half_an_allocation() {
        let (ledger, used) = (MemoryLedger::new(0), AtomicU64::new(0));
        let allocate = || {
            for bytes in 1..=2000 {
                let take = || {
                    used.fetch_add(bytes, Ordering::Relaxed);
                    Ok::<_, ()>(())
                };
                ledger.allocate(bytes, take).unwrap();
                ledger.free(bytes, || {
                    used.fetch_sub(bytes, Ordering::Relaxed);
                });
            }
        };
        let measure = || {
            for _ in 0..2000 {
                let seen = ledger.driver_bytes(|| Some(used.load(Ordering::Relaxed)));
                assert_eq!(seen, 0);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(allocate);
            scope.spawn(allocate);
            scope.spawn(measure);
        });
    }
}
