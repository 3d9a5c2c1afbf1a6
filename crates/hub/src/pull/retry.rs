//! Retries: a transient failure is retried a limited number of times, a permanent one is not.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::HubError;

/// Longest delay of the exponential backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest delay that a server may request. The hub counts requests over five minutes.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Number of retries and the delay between them.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Number of consecutive attempts without progress before the pull fails.
    pub tries: u32,
    /// Delay after the first failed attempt; each further delay is twice as long.
    pub backoff: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            tries: 6,
            backoff: Duration::from_millis(500),
        }
    }
}

/// Failure of an attempt.
#[derive(Debug)]
pub(super) enum FetchFailure {
    /// Failure that another attempt may solve.
    Transient {
        /// Error to report if all attempts fail.
        error: HubError,
        /// Delay that the server requests.
        after: Option<Duration>,
        /// Whether the attempt made enough progress not to count as failed.
        advanced: bool,
    },
    /// Failure that no further attempt can solve.
    Permanent(HubError),
}

impl FetchFailure {
    pub(super) fn transient(error: HubError) -> Self {
        Self::Transient {
            error,
            after: None,
            advanced: false,
        }
    }
}

impl From<HubError> for FetchFailure {
    fn from(error: HubError) -> Self {
        Self::Permanent(error)
    }
}

impl Retry {
    /// Runs `attempt` until it succeeds, fails permanently, makes no progress in too many
    /// attempts, or `abort` is set.
    pub(super) fn run<T>(
        &self,
        abort: &AbortSignal,
        on_wait: impl Fn(&HubError, Duration),
        mut attempt: impl FnMut() -> Result<T, FetchFailure>,
    ) -> Result<T, HubError> {
        let mut failed = 0;
        loop {
            let (error, after) = match attempt() {
                Ok(done) => return Ok(done),
                Err(FetchFailure::Permanent(error)) => return Err(error),
                Err(FetchFailure::Transient {
                    error,
                    after,
                    advanced,
                }) => {
                    failed = if advanced { 1 } else { failed + 1 };
                    (error, after)
                }
            };
            if failed >= self.tries || abort.is_set() {
                return Err(error);
            }
            let wait = after.map_or_else(|| self.wait(failed), |asked| asked.min(RETRY_AFTER_MAX));
            on_wait(&error, wait);
            if abort.sleep(wait) {
                return Err(error);
            }
        }
    }

    fn wait(&self, failed: u32) -> Duration {
        let doubled = self.backoff.saturating_mul(1 << (failed - 1).min(16));
        doubled.min(BACKOFF_MAX)
    }
}

/// First failure of several workers. The failure stops the other workers.
#[derive(Debug, Default)]
pub(super) struct AbortSignal {
    first: Mutex<Option<HubError>>,
    changed: Condvar,
}

impl AbortSignal {
    pub(super) fn set(&self, error: HubError) {
        self.lock().get_or_insert(error);
        self.changed.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes the first failure, if any.
    pub(super) fn outcome(&self) -> Result<(), HubError> {
        self.lock().take().map_or(Ok(()), Err)
    }

    /// Waits for a duration, or until the signal is set; returns whether it is set.
    fn sleep(&self, wait: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), wait, |first| first.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<HubError>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Retry = Retry {
        tries: 3,
        backoff: Duration::ZERO,
    };

    fn transient(advanced: bool) -> FetchFailure {
        FetchFailure::Transient {
            error: HubError::NoHome,
            after: None,
            advanced,
        }
    }

    /// Runs attempts that fail in the given way, at most a hundred, and counts them.
    fn tries(failure: impl Fn(u32) -> FetchFailure) -> u32 {
        let mut count = 0;
        let result: Result<(), HubError> = QUICK.run(
            &AbortSignal::default(),
            |_, _| {},
            || {
                count += 1;
                if count == 100 {
                    Ok(())
                } else {
                    Err(failure(count))
                }
            },
        );
        assert_eq!(result.is_ok(), count == 100);
        count
    }

    #[test]
    fn gives_up_after_attempts_without_progress() {
        assert_eq!(tries(|_| FetchFailure::Permanent(HubError::NoHome)), 1);
        assert_eq!(tries(|_| transient(false)), 3);
        assert_eq!(tries(|_| transient(true)), 100);
        assert_eq!(tries(|count| transient(count == 2)), 4);
    }

    #[test]
    fn delays_double_up_to_a_limit() {
        let waits: Vec<u64> = [1, 2, 3, 8, 40]
            .map(|failed| Retry::default().wait(failed).as_millis() as u64)
            .to_vec();
        assert_eq!(waits, [500, 1000, 2000, 30_000, 30_000]);
    }

    #[test]
    fn a_failure_of_another_worker_ends_the_delay() {
        let abort = AbortSignal::default();
        let slow = Retry {
            tries: 3,
            backoff: Duration::from_secs(600),
        };
        let mut attempts = 0;
        let result: Result<(), HubError> = slow.run(
            &abort,
            |_, _| abort.set(HubError::NoHome),
            || {
                attempts += 1;
                Err(transient(false))
            },
        );
        assert!(result.is_err());
        assert_eq!(attempts, 1, "no attempt follows the signal");
        assert!(abort.outcome().is_err());
        assert!(abort.outcome().is_ok());
    }
}
