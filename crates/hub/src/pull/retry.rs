//! Trying again: what passes is tried a bounded number of times, what does not pass is not.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::HubError;

/// A wait never grows beyond this by itself.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A server may ask for a longer one, up to this: the hub counts requests over five minutes.
const ASKED_MAX: Duration = Duration::from_secs(300);

/// How often, and after how long, to try again.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Tries in a row that bring nothing, before giving up.
    pub tries: u32,
    /// The wait after the first; each further one is twice as long.
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

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may work the next time.
    Passing {
        /// What to report when it never does.
        error: HubError,
        /// How long the server asked to wait.
        after: Option<Duration>,
        /// Whether the try brought enough to count as none failed.
        advanced: bool,
    },
    /// It will not work.
    Final(HubError),
}

impl Failure {
    pub(super) fn passing(error: HubError) -> Self {
        Self::Passing {
            error,
            after: None,
            advanced: false,
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl Retry {
    /// Tries until it works, fails for good, brings nothing for too long, or `halt` is set.
    pub(super) fn run<T>(
        &self,
        halt: &Halt,
        on_wait: impl Fn(&HubError, Duration),
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut failed = 0;
        loop {
            let (error, after) = match attempt() {
                Ok(done) => return Ok(done),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing {
                    error,
                    after,
                    advanced,
                }) => {
                    failed = if advanced { 1 } else { failed + 1 };
                    (error, after)
                }
            };
            if failed >= self.tries || halt.is_set() {
                return Err(error);
            }
            let wait = after.map_or_else(|| self.wait(failed), |asked| asked.min(ASKED_MAX));
            on_wait(&error, wait);
            if halt.sleep(wait) {
                return Err(error);
            }
        }
    }

    fn wait(&self, failed: u32) -> Duration {
        let doubled = self.backoff.saturating_mul(1 << (failed - 1).min(16));
        doubled.min(BACKOFF_MAX)
    }
}

/// The first failure among several workers, which tells the others to stop.
#[derive(Debug, Default)]
pub(super) struct Halt {
    first: Mutex<Option<HubError>>,
    bell: Condvar,
}

impl Halt {
    pub(super) fn set(&self, error: HubError) {
        self.lock().get_or_insert(error);
        self.bell.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// The first failure, if there was one, handed over once.
    pub(super) fn outcome(&self) -> Result<(), HubError> {
        self.lock().take().map_or(Ok(()), Err)
    }

    /// Waits that long, or until it is set; says whether it is.
    fn sleep(&self, wait: Duration) -> bool {
        let waited = self
            .bell
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
    use std::time::Instant;

    const QUICK: Retry = Retry {
        tries: 3,
        backoff: Duration::ZERO,
    };

    fn passing(advanced: bool) -> Failure {
        Failure::Passing {
            error: HubError::NoHome,
            after: None,
            advanced,
        }
    }

    /// Runs attempts that all fail this way, up to a hundred, and counts them.
    fn tries(failure: impl Fn(u32) -> Failure) -> u32 {
        let mut count = 0;
        let result: Result<(), HubError> = QUICK.run(
            &Halt::default(),
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
    fn gives_up_after_tries_that_bring_nothing() {
        assert_eq!(tries(|_| Failure::Final(HubError::NoHome)), 1);
        assert_eq!(tries(|_| passing(false)), 3);
        assert_eq!(tries(|_| passing(true)), 100);
        assert_eq!(tries(|count| passing(count == 2)), 4);
    }

    #[test]
    fn waits_twice_as_long_each_time_up_to_a_limit() {
        let waits: Vec<u64> = [1, 2, 3, 8, 40]
            .map(|failed| Retry::default().wait(failed).as_millis() as u64)
            .to_vec();
        assert_eq!(waits, [500, 1000, 2000, 30_000, 30_000]);
    }

    #[test]
    fn a_failure_elsewhere_ends_the_wait() {
        let halt = Halt::default();
        let slow = Retry {
            tries: 3,
            backoff: Duration::from_secs(20),
        };
        let began = Instant::now();
        let result: Result<(), HubError> = slow.run(
            &halt,
            |_, _| halt.set(HubError::NoHome),
            || Err(passing(false)),
        );
        assert!(result.is_err());
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(halt.outcome().is_err());
        assert!(halt.outcome().is_ok());
    }
}
