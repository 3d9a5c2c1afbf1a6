//! Locks of the standard library, or of a model checker in unit tests of this crate.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(test)]
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// Waits for a condition. Ignores poisoning by a thread that panicked.
pub(super) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a condition until a timeout. Returns whether the time ran out. The model checker has
/// no clock, so its waits never time out.
pub(super) fn wait_for<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    #[cfg(test)]
    {
        let _ = timeout;
        (wait(condition, guard), false)
    }
    #[cfg(not(test))]
    {
        let waited = condition.wait_timeout(guard, timeout);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }
}
