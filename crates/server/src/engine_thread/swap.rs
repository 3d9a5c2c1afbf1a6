//! Turns on the device: the model gives its memory to another one, and returns when a session has
//! tokens to run.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_engine::{EngineError, SessionId, SwapRoom};

use super::{
    event::SessionEvent,
    worker::{FAILED_PASSES_MAX, Worker},
};
use crate::ServeError;

/// Time after which a model that could not leave the device, or return to it, tries again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time after which a model that found too little memory on the device tries again.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// State of a model's turns on the device.
pub(super) struct SwapState {
    /// Time before which the model does not try to leave or to return, after it could not.
    retry_at: Instant,
    /// Time to wait when the device has too little memory once more.
    backoff: Duration,
    /// Whether the model waits for its turn on the device.
    is_waiting: bool,
    /// Whether the model was asked to leave the device, and host memory has no room for its KV pages.
    is_stuck: bool,
    /// Time at which the model last left the device.
    left: Instant,
    /// Longest time that a request waits for the model to return to the device.
    queue_wait: Duration,
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
    fn next_backoff(&mut self, is_shortage: bool) -> Duration {
        if !is_shortage {
            return RETRY;
        }
        let next = (2 * self.backoff).min(RETRY_MAX);
        std::mem::replace(&mut self.backoff, next)
    }
}

impl Worker {
    /// Leaves the device if another model waits for it, and returns to it if a session has tokens to
    /// run and it is this model's turn.
    pub(super) fn share_device(&mut self) {
        let may_try = Instant::now() >= self.swap.retry_at;
        if self.swap.is_stuck {
            self.drain();
        } else if self.engine.holds_device_memory() && self.reservation.must_yield() {
            if may_try {
                self.leave_device();
            }
        } else if !self.engine.is_swapped_out() {
            // The model keeps the device.
        } else if !self.engine.has_work() {
            // A session that made the model wait for its turn has ended.
            if std::mem::take(&mut self.swap.is_waiting) {
                self.reservation.give_back();
            }
        } else {
            self.end_late_sessions();
            if may_try && self.engine.has_work() {
                self.try_to_return();
            }
        }
    }

    fn leave_device(&mut self) {
        let began = Instant::now();
        self.shared.heartbeat.begin_swap();
        let left = self.engine.swap_out();
        self.shared.heartbeat.end();
        match left {
            Ok(()) => {
                self.totals.swaps += 1;
                tracing::info!(
                    model = self.name(),
                    seconds = began.elapsed().as_secs_f64(),
                    "the model left the device for another one"
                );
            }
            // The model leaves when enough sessions have ended.
            Err(error @ EngineError::NoRoomToSwap { .. }) => {
                tracing::warn!(model = self.name(), %error, "the model stays on the device");
                self.totals.swaps_refused += 1;
                self.swap.is_stuck = true;
                self.reservation.cannot_yield();
                return self.drain();
            }
            Err(error) => {
                tracing::error!(model = self.name(), %error, "leaving the device failed");
                self.swap.retry_at = began + RETRY;
                self.stop_if_lost(&error);
            }
        }
        if self.engine.is_swapped_out() {
            self.swap.left = began;
            self.shared.set_swapped_out(true);
            self.has_news = true;
            if !self.engine.holds_device_memory() {
                self.reservation.give_back();
            }
        }
    }

    /// Makes room for leaving the device: no session begins a turn while others run that keep the model
    /// there.
    fn drain(&mut self) {
        let room = match self.reservation.has_waiters() {
            true => self.engine.swap_room(),
            false => SwapRoom::Now,
        };
        self.engine.set_draining(room == SwapRoom::AfterTurns);
        if room == SwapRoom::Now {
            self.swap.is_stuck = false;
            self.reservation.can_yield();
            if self.reservation.must_yield() {
                self.leave_device();
            }
        }
    }

    fn try_to_return(&mut self) {
        self.swap.is_waiting = true;
        if self.reservation.try_take(self.engine.footprint().total()) {
            self.swap.is_waiting = false;
            self.return_to_device();
        }
    }

    fn return_to_device(&mut self) {
        let began = Instant::now();
        let shared = Arc::clone(&self.shared);
        shared.heartbeat.begin_swap();
        let returned = self.engine.swap_in(&mut |_| {
            shared.heartbeat.begin_swap();
            match shared.is_stopping() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        shared.heartbeat.end();
        if let Err(error) = returned {
            return self.fail_return(&error);
        }
        self.swap.backoff = RETRY;
        self.reservation.begin_turn();
        self.shared.set_return_failure(None);
        self.shared.set_swapped_out(false);
        self.has_news = true;
        tracing::info!(
            model = self.name(),
            seconds = began.elapsed().as_secs_f64(),
            "the model returned to the device"
        );
    }

    /// Tries again later, unless the thread has to end. Too little memory is no failure of the model: another process may use it.
    fn fail_return(&mut self, error: &EngineError) {
        if self.shared.is_stopping() {
            self.stops = true;
            return;
        }
        tracing::error!(model = self.name(), %error, "returning to the device failed");
        if !self.engine.holds_device_memory() {
            self.reservation.give_back();
        }
        let is_shortage = error.is_device_memory_shortage();
        let wait = self.swap.next_backoff(is_shortage);
        self.swap.retry_at = Instant::now() + wait;
        let reason = format!("{} cannot return to the device: {error}", self.name());
        self.shared.set_return_failure(Some(reason));
        self.failed_passes += usize::from(!is_shortage);
        self.stops |= self.failed_passes >= FAILED_PASSES_MAX;
        self.stop_if_lost(error);
    }

    /// Ends sessions that have waited too long for the model to return and have run nothing. A kept session
    /// with earlier turns stays, and only its request ends.
    fn end_late_sessions(&mut self) {
        let (now, left, wait) = (Instant::now(), self.swap.left, self.swap.queue_wait);
        let mut late: Vec<(SessionId, bool)> = Vec::new();
        for (&id, subscriber) in &self.subscribers {
            let is_late = now.saturating_duration_since(subscriber.since.max(left)) >= wait;
            if let Some(session) = self.engine.view(id)
                && (is_late && subscriber.is_listening() && session.awaits_first_pass())
            {
                late.push((id, session.generated() == 0));
            }
        }
        self.has_news |= !late.is_empty();
        for (id, has_run_nothing) in late {
            let error = self.absence();
            let Some(subscriber) = self.subscribers.get_mut(&id) else {
                continue;
            };
            subscriber.send(SessionEvent::Interrupted(error));
            subscriber.disconnect();
            if has_run_nothing {
                self.end(id);
            }
        }
    }

    /// Error of a request that waited too long for the model to return to the device.
    fn absence(&self) -> ServeError {
        match self.shared.return_failure() {
            Some(reason) => ServeError::busy(format!("{reason}; retry later")),
            None => self.reservation.is_busy(self.engine.footprint().total()),
        }
    }

    /// Ends the thread and the process if no later pass can succeed.
    fn stop_if_lost(&mut self, error: &EngineError) {
        if error.is_fatal() {
            self.fatal.raise(format!("The device is lost: {error}"));
            self.stops = true;
        }
    }

    fn name(&self) -> &str {
        self.reservation.name()
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
