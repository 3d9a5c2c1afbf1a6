//! Ctrl-C while an answer comes: it ends the answer, not the conversation.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Whether somebody has heard enough.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Nobody can.
    pub fn never() -> Self {
        Interrupt(Arc::default())
    }

    /// Whoever presses Ctrl-C. From now on that does not end the process.
    pub fn by_key() -> Result<Self, Failure> {
        let deaf = |error: io::Error| Failure::Message(format!("no way to hear Ctrl-C: {error}"));
        let flag = Arc::new(AtomicBool::new(false));
        let pressed = Arc::clone(&flag);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(deaf)?;
        // Before a line is read: whoever reads lines puts back what it found.
        let entered = runtime.enter();
        let mut presses = signal(SignalKind::interrupt()).map_err(deaf)?;
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
            .map_err(deaf)?;
        Ok(Interrupt(flag))
    }

    /// Forgets what was pressed before.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether it was pressed since.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
