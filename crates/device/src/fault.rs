//! Faults that tests inject into a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::error::LAUNCH_FAILED;
use crate::{DeviceError, Result};

/// A fault of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A kernel fails, and the device is unusable from then on.
    Trap = 1,
    /// A kernel does not end, until the switch is cleared.
    Hang = 2,
}

/// Switch of the faults of a backend. All clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct FaultSwitch(Arc<AtomicU8>);

impl FaultSwitch {
    /// Uses a flag that a test shares with other parts: 0 for no fault, or the number of a
    /// [`Fault`].
    pub fn from_flag(flag: Arc<AtomicU8>) -> Self {
        FaultSwitch(flag)
    }

    /// Lets the fault strike at the next operation of a pass. One device takes a trap, and the
    /// switch is clear again then. A hang lasts until [`clear`](FaultSwitch::clear).
    pub fn set(&self, fault: Fault) {
        self.0.store(fault as u8, Ordering::SeqCst);
    }

    /// Takes the fault back. A device that hangs continues.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Returns the fault that strikes next, or that a device hangs in.
    pub fn get(&self) -> Option<Fault> {
        [Fault::Trap, Fault::Hang]
            .into_iter()
            .find(|&fault| self.0.load(Ordering::SeqCst) == fault as u8)
    }

    /// Clears a fault. Returns `false` if another thread cleared it first.
    pub(crate) fn take(&self, fault: Fault) -> bool {
        let (from, order) = (fault as u8, Ordering::SeqCst);
        self.0.compare_exchange(from, 0, order, order).is_ok()
    }

    /// Blocks the calling thread as long as the device hangs.
    pub(crate) fn wait_while_hanging(&self) {
        while self.get() == Some(Fault::Hang) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the error of a device that took a trap.
pub(crate) fn trapped() -> DeviceError {
    DeviceError::Driver {
        what: "running a kernel",
        code: LAUNCH_FAILED,
        reason: "a test broke the device".into(),
    }
}

/// Injects a fault into a device that computes in the calling thread.
pub(crate) fn strike_here(fault: Fault, switch: &FaultSwitch) -> Result<()> {
    match fault {
        Fault::Trap => Err(trapped()),
        Fault::Hang => {
            switch.wait_while_hanging();
            Ok(())
        }
    }
}
