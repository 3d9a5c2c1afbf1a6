//! Host memory that models hold.

use super::turns::TenantId;

/// Bytes of host memory of each model, from the plan of its load until its engine thread has ended.
#[derive(Default)]
pub(super) struct HostLedger {
    entries: Vec<HostEntry>,
}

struct HostEntry {
    id: TenantId,
    name: String,
    bytes: u64,
}

impl HostLedger {
    /// Bytes that reservations other than `id` hold.
    pub fn bytes_except(&self, id: TenantId) -> u64 {
        let others = self.entries.iter().filter(|entry| entry.id != id);
        others.map(|entry| entry.bytes).sum()
    }

    /// Bytes that models other than `name` hold.
    pub fn bytes_of_others(&self, name: &str) -> u64 {
        let others = self.entries.iter().filter(|entry| entry.name != name);
        others.map(|entry| entry.bytes).sum()
    }

    /// Sets the bytes of a reservation.
    pub fn set(&mut self, id: TenantId, name: &str, bytes: u64) {
        self.remove(id);
        let name = name.to_owned();
        self.entries.push(HostEntry { id, name, bytes });
    }

    /// Removes a reservation.
    pub fn remove(&mut self, id: TenantId) {
        self.entries.retain(|entry| entry.id != id);
    }
}
