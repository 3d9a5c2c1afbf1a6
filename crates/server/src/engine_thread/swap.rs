//! Turns on the device: the model gives its memory to another one, and returns when a session has
//! tokens to run.

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use djinn_engine::{EngineError, SessionId, SwapRoom};

use super::{
    event::SessionEvent,
    swap_state::RETRY,
    worker::{FAILED_PASSES_MAX, Worker},
};
use crate::ServeError;

impl Worker {
    /// Leaves the device if another model waits for it, and returns to it if a session has tokens to
    /// run and it is this model's turn.
    pub(super) fn share_device(&mut self) {
        let may_try = Instant::now() >= self.swap.retry_at;
        if self.engine.is_swapped_out() {
            self.end_late_sessions();
        }
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
        } else if may_try {
            self.try_to_return();
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
            if !self.shared.is_swapped_out() {
                self.swap.left = began;
                self.shared.set_swapped_out(true);
            }
            self.has_news = true;
            if !self.engine.holds_device_memory() {
                self.reservation.give_back();
            }
        }
    }

    /// Makes room for leaving the device: no session begins a turn while others run that keep the model
    /// there.
    fn drain(&mut self) {
        let room = self.engine.swap_room();
        let helps = room == SwapRoom::AfterTurns;
        self.engine
            .set_draining(helps && self.reservation.has_waiters());
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

    /// Tries again later, unless the thread has to end. Too little memory is no failure of the model:
    /// another process may use it.
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
        if self.failed_passes >= FAILED_PASSES_MAX {
            self.stop_failed();
        }
        self.stop_if_lost(error);
    }

    /// Ends sessions that have waited too long for the model to return and have run nothing. A kept session
    /// with earlier turns stays, and only its request ends.
    fn end_late_sessions(&mut self) {
        let (now, left, wait) = (Instant::now(), self.swap.left, self.swap.queue_wait);
        let mut late: Vec<(SessionId, bool)> = Vec::new();
        for (&id, subscriber) in &self.subscribers {
            let is_late = now.saturating_duration_since(subscriber.since.max(left)) >= wait;
            let session = match self.engine.view(id) {
                Some(session) if is_late && subscriber.is_listening() => session,
                _ => continue,
            };
            let has_run_nothing = session.has_run_nothing();
            if session.awaits_first_pass() && (has_run_nothing || session.is_kept()) {
                late.push((id, has_run_nothing));
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
            self.stop_failed();
        }
    }

    fn name(&self) -> &str {
        self.reservation.name()
    }
}
