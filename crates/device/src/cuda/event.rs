//! Events, made once and used again.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use crate::Result;

/// Events nobody holds any more.
pub(super) struct Events {
    spare: Mutex<Vec<Handle>>,
    card: Arc<Card>,
}

#[derive(Clone, Copy)]
struct Handle(sys::CUevent);

// SAFETY: a handle of the driver.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// One that is held. Goes back when it is no longer.
pub(super) struct Mark {
    handle: Handle,
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

    /// One that is not in use.
    pub(super) fn take(self: &Arc<Self>) -> Result<Mark> {
        let spare = self.lock().pop();
        let handle = match spare {
            Some(handle) => handle,
            None => {
                let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
                Handle(result::event::create(flags).context("making an event")?)
            }
        };
        let home = Arc::clone(self);
        Ok(Mark { handle, home })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Handle>> {
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
            // SAFETY: made once, and nobody holds it.
            let _ = unsafe { result::event::destroy(handle.0) };
        }
    }
}
