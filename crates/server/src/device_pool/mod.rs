//! Memory of the device, which models use in turns.
//!
//! A model reserves the bytes of its plan before it loads. While they are not free, it waits in a
//! queue, and other models are asked to yield: idle models first, the least recently used one before
//! the others, then models that have had the device for a whole turn. The queue is served in order of
//! arrival, so a busy model delays another one by one turn at most.

mod reservation;
mod tenant;
mod turns;

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use djinn_types::Size;

use self::turns::{TenantId, Turns};
pub use self::{reservation::Reservation, tenant::Tenant};

/// Memory of the device that all models of a server share.
pub struct DevicePool {
    total: u64,
    turns: Mutex<Turns>,
}

impl DevicePool {
    /// Creates a pool of `total` bytes.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(DevicePool {
            total,
            turns: Mutex::default(),
        })
    }

    /// Bytes of device memory that models reserve now.
    pub fn reserved(&self) -> u64 {
        self.lock().held()
    }

    /// Bytes of device memory that no model reserves.
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.reserved())
    }

    /// Names the models that hold memory, and how much: `a holds 2.00 GB, b holds 1.00 GB`. `None` if
    /// no model holds any.
    pub fn holders(&self) -> Option<String> {
        let mut text = String::new();
        for (name, bytes) in self.lock().holders() {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{name} holds {}", Size(bytes));
        }
        (!text.is_empty()).then_some(text)
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue or the reservations, gives free memory to the models that wait, and
    /// wakes the models for which something changed.
    fn change<T>(&self, change: impl FnOnce(&mut Turns) -> T) -> T {
        let mut turns = self.lock();
        let result = change(&mut turns);
        let concerned = turns.settle(self.total, Instant::now());
        drop(turns);
        concerned.iter().for_each(|tenant| tenant.wake());
        result
    }

    fn remove(&self, id: TenantId) {
        self.change(|turns| turns.remove(id));
    }
}
