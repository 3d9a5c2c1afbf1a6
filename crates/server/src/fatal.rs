//! Signal that the process has to end, because it can serve no more.

use std::{sync::Arc, time::Duration};

use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::watch;

/// Exit code of a server that cannot continue because of its device; `EX_SOFTWARE` of sysexits.h.
pub const FATAL_EXIT_CODE: i32 = 70;
/// Time that the end of the process may take before the process kills itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Ends a process whose device is lost, with [`FATAL_EXIT_CODE`]. The driver's own cleanup may hang; then
/// the process kills itself.
pub fn exit_after_fatal(reason: &str) -> ! {
    eprintln!("djinn: {reason}");
    std::thread::spawn(|| {
        std::thread::sleep(EXIT_TIMEOUT);
        let _ = kill_process(getpid(), Signal::KILL);
    });
    std::process::exit(FATAL_EXIT_CODE)
}

/// Reason why the process has to end, once there is one.
#[derive(Clone)]
pub struct FatalSignal {
    sender: Arc<watch::Sender<Option<String>>>,
}

impl FatalSignal {
    /// Creates a signal that is not raised.
    pub fn new() -> Self {
        FatalSignal {
            sender: Arc::new(watch::Sender::new(None)),
        }
    }

    /// Raises the signal. The first reason counts.
    pub fn raise(&self, reason: String) {
        self.sender.send_if_modified(|current| {
            let is_first = current.is_none();
            if is_first {
                tracing::error!(reason, "the process has to end");
                *current = Some(reason);
            }
            is_first
        });
    }

    /// Reason of a raised signal.
    pub fn reason(&self) -> Option<String> {
        self.sender.borrow().clone()
    }

    /// Waits until the signal is raised, and returns its reason.
    pub async fn raised(&self) -> String {
        let mut receiver = self.sender.subscribe();
        let raised = receiver.wait_for(Option::is_some).await;
        raised
            .ok()
            .and_then(|reason| reason.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::FatalSignal;

    #[tokio::test]
    async fn the_first_reason_counts() {
        let signal = FatalSignal::new();
        assert_eq!(signal.reason(), None);
        signal.raise("one".to_owned());
        signal.raise("two".to_owned());
        assert_eq!(signal.raised().await, "one");
    }
}
