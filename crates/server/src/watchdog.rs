//! Watchdog: notices an engine thread that hangs in the device, and ends the process.
//!
//! A kernel that never ends cannot be interrupted, and after some errors of a device no call of this process
//! to it succeeds. Sessions in the state folder are on disk, so a new process continues them. The process
//! manager starts it, because the old one ends with an error.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::app::App;

/// Interval at which the watchdog looks at the engine threads.
const POLL: Duration = Duration::from_millis(250);

/// Starts a thread that raises the signal when an engine thread has not finished its pass within `limit`, or
/// a swap makes no progress.
/// The thread ends with the server.
pub fn start(app: &Arc<App>, limit: Duration) {
    let app = Arc::downgrade(app);
    let watch = move || {
        while let Some(app) = Weak::upgrade(&app) {
            for model in app.models.loaded() {
                if model.is_stalled(limit) {
                    app.fatal.raise(format!(
                        "The engine of {} has not finished its pass or swap for {:.0} s: the device hangs",
                        model.name,
                        model.busy_for().as_secs_f64()
                    ));
                }
            }
            drop(app);
            std::thread::sleep(POLL);
        }
    };
    let thread = std::thread::Builder::new().name("watchdog".to_owned());
    if let Err(error) = thread.spawn(watch) {
        tracing::error!(%error, "the watchdog cannot start");
    }
}
