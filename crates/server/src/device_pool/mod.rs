//! Memory of the device, which models use in turns, and the host memory that they share.
//!
//! A model reserves the bytes of its plan before it loads. While they are not free, it waits in a
//! queue, and other models are asked to yield: idle models first, the least recently used one before
//! the others, then models that have had the device for a whole turn. The turn of a model begins when
//! it has arrived: when it is loaded, or has returned. The queue is served in order of arrival, so a
//! busy model delays another one by one turn at most, unless it cannot yield.

mod host_ledger;
mod reservation;
mod tenant;
mod turns;

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use djinn_types::Size;

use self::{
    host_ledger::HostLedger,
    turns::{TenantId, Turns},
};
pub use self::{reservation::Reservation, tenant::Tenant};

/// Memory that all models of a server share.
pub struct DevicePool {
    total: u64,
    turns: Mutex<Turns>,
    host: Mutex<HostLedger>,
    is_closed: AtomicBool,
}

impl DevicePool {
    /// Creates a pool of `total` bytes.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(DevicePool {
            total,
            turns: Mutex::default(),
            host: Mutex::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Ends the waits of all loads with an error, because the server ends.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Bytes of host memory that models other than `name` hold.
    pub fn host_bytes_of_others(&self, name: &str) -> u64 {
        self.lock_host().bytes_of_others(name)
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

    fn lock_host(&self) -> MutexGuard<'_, HostLedger> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue or the reservations, gives free memory to the models that wait, and
    /// wakes the models for which something changed.
    fn change<T>(&self, change: impl FnOnce(&mut Turns) -> T) -> T {
        let mut turns = self.lock();
        let result = change(&mut turns);
        let changed = turns.settle(self.total, Instant::now());
        drop(turns);
        changed.iter().for_each(|tenant| tenant.wake());
        result
    }

    fn remove(&self, id: TenantId) {
        self.change(|turns| turns.remove(id));
    }
}
