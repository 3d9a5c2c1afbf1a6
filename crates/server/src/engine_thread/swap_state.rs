//! State of a model's turns on the device.

use std::time::{Duration, Instant};

/// Time after which a model that could not leave the device, or return to it, tries again.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Longest time after which a model that found too little memory on the device tries again.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// State of a model's turns on the device.
pub(super) struct SwapState {
    /// Time before which the model does not try to leave or to return, after it could not.
    pub retry_at: Instant,
    /// Time to wait when the device has too little memory once more.
    pub backoff: Duration,
    /// Whether the model waits for its turn on the device.
    pub is_waiting: bool,
    /// Whether the model was asked to leave the device, and host memory has no room for its KV pages.
    pub is_stuck: bool,
    /// Time at which the model last left the device.
    pub left: Instant,
    /// Longest time that a request waits for the model to return to the device.
    pub queue_wait: Duration,
}

impl SwapState {
    /// Creates the state of a model that is on the device.
    pub fn new(queue_wait: Duration) -> Self {
        let now = Instant::now();
        SwapState {
            retry_at: now,
            backoff: RETRY,
            is_waiting: false,
            is_stuck: false,
            left: now,
            queue_wait,
        }
    }

    /// Returns the time to wait after a failed return: longer each time while the device has too little
    /// memory.
    pub fn next_backoff(&mut self, is_shortage: bool) -> Duration {
        if !is_shortage {
            return RETRY;
        }
        let next = (2 * self.backoff).min(RETRY_MAX);
        std::mem::replace(&mut self.backoff, next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{RETRY, RETRY_MAX, SwapState};

    #[test]
    fn a_model_tries_less_often_while_the_device_has_too_little_memory() {
        let mut swap = SwapState::new(Duration::ZERO);
        let waits = [(); 7].map(|()| swap.next_backoff(true).as_secs());
        assert_eq!(
            waits,
            [1, 2, 4, 8, 16, RETRY_MAX.as_secs(), RETRY_MAX.as_secs()]
        );
        assert_eq!(
            swap.next_backoff(false),
            RETRY,
            "other failures do not last"
        );
    }
}
