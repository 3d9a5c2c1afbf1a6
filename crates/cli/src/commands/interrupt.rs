//! Ctrl-C where it does not end the process at once: it ends an answer and not the conversation, and an
//! experiment that has something to give back.

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

use crate::failure::Failure;

/// How often it is looked at by who waits.
const LOOK: Duration = Duration::from_millis(50);

/// Whether somebody has had enough.
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

    /// Waits until it is pressed.
    pub async fn pressed(&self) {
        while !self.is_on() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether it was pressed since.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
