//! Ctrl-C as a request that a program handles, instead of a signal that ends the process.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};

use crate::output::Failure;

/// Interval at which [`Interrupt::pressed`] checks for Ctrl-C.
const POLL: Duration = Duration::from_millis(50);

/// Whether the user pressed Ctrl-C.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Interrupt that never happens. Ctrl-C ends the process as usual.
    pub fn never() -> Self {
        Interrupt(Arc::default())
    }

    /// Listens for Ctrl-C, which no longer ends the process.
    pub fn by_key() -> Result<Self, Failure> {
        let fault =
            |error: io::Error| Failure::Message(format!("cannot listen for Ctrl-C: {error}"));
        let flag = Arc::new(AtomicBool::new(false));
        let pressed = Arc::clone(&flag);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(fault)?;
        // The handler is installed before a line editor starts, which restores the handler that it found.
        let entered = runtime.enter();
        let mut presses = signal(SignalKind::interrupt()).map_err(fault)?;
        drop(entered);
        let listen = move || {
            runtime.block_on(async {
                while presses.recv().await.is_some() {
                    pressed.store(true, Ordering::Release);
                }
            });
        };
        thread::Builder::new()
            .name("ctrl-c".to_owned())
            .spawn(listen)
            .map_err(fault)?;
        Ok(Interrupt(flag))
    }

    /// Forgets earlier presses.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Waits for Ctrl-C.
    pub async fn pressed(&self) {
        while !self.is_on() {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Whether the user pressed Ctrl-C since the last [`Interrupt::clear`].
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
