//! Turns on the device: the model gives its memory to another one, and returns when a session has
//! tokens to run.

use std::time::{Duration, Instant};

use djinn_engine::EngineError;

use super::worker::{FAILED_PASSES_MAX, Worker};

/// Time after which a model that could not return to the device tries again.
const RETRY: Duration = Duration::from_secs(1);

impl Worker {
    /// Leaves the device if another model waits for it, and returns to it if a session has tokens to
    /// run and it is this model's turn.
    pub(super) fn share_device(&mut self) {
        if !self.engine.is_swapped_out() {
            if self.reservation.must_yield() {
                self.leave_device();
            }
        } else if !self.engine.has_work() {
            // A session that made the model wait for its turn has ended.
            if self.waits_for_device {
                self.waits_for_device = false;
                self.reservation.give_back();
            }
        } else if Instant::now() >= self.returns_from {
            self.waits_for_device = true;
            if self.reservation.try_take(self.engine.footprint().total()) {
                self.waits_for_device = false;
                self.return_to_device();
            }
        }
    }

    fn leave_device(&mut self) {
        let began = Instant::now();
        match self.engine.swap_out() {
            Ok(()) => {
                self.totals.swaps += 1;
                tracing::info!(
                    model = self.name(),
                    seconds = began.elapsed().as_secs_f64(),
                    "the model left the device for another one"
                );
            }
            // Running sessions have no room in host memory. The model leaves when they have ended.
            Err(EngineError::NoRoomToSwap { .. }) => return,
            Err(error) => {
                tracing::error!(model = self.name(), %error, "leaving the device failed");
                self.stop_if_lost(&error);
            }
        }
        if self.engine.is_swapped_out() {
            self.shared.set_swapped_out(true);
            self.has_news = true;
            self.reservation.give_back();
        }
    }

    fn return_to_device(&mut self) {
        let began = Instant::now();
        if let Err(error) = self.engine.swap_in(&mut |_| {}) {
            tracing::error!(model = self.name(), %error, "returning to the device failed");
            self.reservation.give_back();
            self.returns_from = Instant::now() + RETRY;
            self.failed_passes += 1;
            self.stops |= self.failed_passes >= FAILED_PASSES_MAX;
            self.stop_if_lost(&error);
            return;
        }
        let took = began.elapsed();
        self.reservation.begin_turn(took);
        self.shared.set_swapped_out(false);
        self.has_news = true;
        tracing::info!(
            model = self.name(),
            seconds = took.as_secs_f64(),
            "the model returned to the device"
        );
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
