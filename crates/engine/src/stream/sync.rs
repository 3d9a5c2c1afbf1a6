//! Locks: the system's, or in this crate's unit tests a model checker's.

#[cfg(test)]
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// Waits for a condition, whoever panicked meanwhile.
pub(super) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
