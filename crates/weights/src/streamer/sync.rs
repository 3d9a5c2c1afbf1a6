//! Locks: the system's, or in this crate's unit tests a model checker's.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(test)]
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// Waits for a condition, whoever panicked meanwhile.
pub(super) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

/// The same, but not for ever; says whether time ran out. The model checker has no
/// clock: there time does not run out.
pub(super) fn wait_for<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    patience: Duration,
) -> (MutexGuard<'a, T>, bool) {
    #[cfg(test)]
    {
        let _ = patience;
        (wait(condition, guard), false)
    }
    #[cfg(not(test))]
    {
        let waited = condition.wait_timeout(guard, patience);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }
}
