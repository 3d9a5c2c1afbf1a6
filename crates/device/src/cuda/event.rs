//! A pool of driver events.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use crate::Result;

/// Pool of unused events.
pub(super) struct Events {
    spare: Mutex<Vec<EventHandle>>,
    card: Arc<Card>,
}

#[derive(Clone, Copy)]
struct EventHandle(sys::CUevent);

// SAFETY: the field is a handle of the driver, which allows its use from any thread.
unsafe impl Send for EventHandle {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for EventHandle {}

/// An event in use. It returns to its pool on drop.
pub(super) struct Mark {
    handle: EventHandle,
    home: Arc<Events>,
}

impl Mark {
    pub(super) fn event(&self) -> sys::CUevent {
        self.handle.0
    }
}

impl Events {
    pub(super) fn new(card: &Arc<Card>) -> Arc<Self> {
        Arc::new(Events {
            spare: Mutex::default(),
            card: Arc::clone(card),
        })
    }

    /// Takes an unused event, or creates one.
    pub(super) fn take(self: &Arc<Self>) -> Result<Mark> {
        let spare = self.lock().pop();
        let handle = match spare {
            Some(handle) => handle,
            None => {
                let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
                EventHandle(result::event::create(flags).context("creating an event")?)
            }
        };
        let home = Arc::clone(self);
        Ok(Mark { handle, home })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<EventHandle>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.home.lock().push(self.handle);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.card.enter();
        for handle in self.lock().drain(..) {
            // SAFETY: created once, and not in use.
            let _ = unsafe { result::event::destroy(handle.0) };
        }
    }
}
