//! A card that this process uses: its context, its kernels, and its share of the memory.

use std::fmt;
use std::sync::Arc;

use super::blas::Blas;
use super::context::{CardContext, FoundCard};
use super::driver::Version;
use super::kernels::Kernels;
use super::memory_ledger::MemoryLedger;
use super::nvml::Nvml;
use crate::{DeviceError, Result};

/// A card in use by this process: a context, and the kernels compiled for the card. Opened
/// once and shared by all devices on the card.
pub struct Card {
    // Fields are dropped in this order; kernels and library live in the context.
    kernels: Kernels,
    /// cuBLASLt; `None` if the library is missing.
    pub(super) blas: Option<Blas>,
    context: CardContext,
    /// Bytes that were in use before the card was opened, if no other process used it.
    before: Option<u64>,
    pub(super) ledger: Arc<MemoryLedger>,
}

/// Bytes that a context usually takes, if the management library does not say.
const TAKEN_USUALLY: u64 = 640 << 20;
/// Bytes that every context takes at least.
const TAKEN_LEAST: u64 = 64 << 20;
/// Bytes that the driver allocates later, when a model first runs. Up to 34 MiB were seen.
const TAKEN_LATER: u64 = 48 << 20;

impl Card {
    /// Loads the driver and opens a card.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        let found = FoundCard::find(ordinal)?;
        let bus_id = found.bus_id.clone();
        let nvml = Nvml::get();
        let used = || nvml?.used(&bus_id);
        let before = used();
        let context = found.retain()?;
        let mut card = Card {
            kernels: Kernels::load(&context)?,
            blas: Blas::open(),
            context,
            before: None,
            ledger: Arc::new(MemoryLedger::new(TAKEN_USUALLY)),
        };
        if let (Some(before), Some(after)) = (before, used()) {
            let alone = card.is_alone();
            card.before = alone.then_some(before);
            card.ledger = Arc::new(MemoryLedger::new(taken(before, after, alone)));
        }
        Ok(Arc::new(card))
    }

    /// Number of processes that compute on the card, if the system says.
    fn processes(&self) -> Option<usize> {
        Nvml::get()?.processes(self.bus_id())
    }

    /// Returns whether this process is the only one that computes on the card.
    fn is_alone(&self) -> bool {
        self.processes() == Some(1)
    }

    /// Error for an allocation of `bytes` when only `free` bytes are free.
    pub fn too_little(&self, bytes: u64, free: u64) -> DeviceError {
        let others = match self.processes().unwrap_or(0).saturating_sub(1) {
            0 => String::new(),
            1 => ", where another process runs".to_owned(),
            n => format!(", where {n} other processes run"),
        };
        let reason = format!(
            "{:.2} GB are free on {} ({}){others}; lower --memory, or wait until more is free",
            free as f64 / 1e9,
            self.label(),
            self.name(),
        );
        DeviceError::NoMemory { bytes, reason }
    }

    /// Name of the card in flags and reports: `cuda:0`.
    pub fn label(&self) -> String {
        self.context.label()
    }

    /// Product name of the card.
    pub fn name(&self) -> &str {
        self.context.name()
    }

    /// Address of the card on the PCI bus.
    pub(super) fn bus_id(&self) -> &str {
        self.context.bus_id()
    }

    /// Free and total bytes of the card's memory.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.context.memory()
    }

    /// Bytes of the card's memory that this process uses before any slab: context, kernels,
    /// libraries. A memory budget covers them too. They grow when a model first runs and do
    /// not shrink when it is unloaded, so they are measured again whenever this process has
    /// no slab and is alone on the card.
    pub fn taken(&self) -> u64 {
        self.ledger.driver_bytes(|| {
            let (before, now) = (self.before?, self.used()?);
            self.is_alone().then(|| taken(before, now, true))
        })
    }

    /// Bytes of the card's memory in use by all processes, if the system says.
    pub fn used(&self) -> Option<u64> {
        Nvml::get()?.used(self.bus_id())
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Makes the card's context current for the calling thread.
    pub(super) fn enter(&self) -> Result<()> {
        self.context.enter()
    }

    /// Compute capability of the card.
    pub(super) fn capability(&self) -> Result<Version> {
        self.context.capability()
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Card({}, {})", self.label(), self.name())
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // Kernels and library are unloaded in the current context.
        let _ = self.enter();
    }
}

/// Bytes taken between two readings of the memory used by all processes. If there are other
/// processes, they may have allocated or freed memory in between.
fn taken(before: u64, after: u64, alone: bool) -> u64 {
    let taken = after.saturating_sub(before);
    match alone || (TAKEN_LEAST..=TAKEN_USUALLY).contains(&taken) {
        true => taken + TAKEN_LATER,
        false => TAKEN_USUALLY,
    }
}

#[cfg(test)]
mod tests {
    use super::{TAKEN_LATER, TAKEN_USUALLY, taken};

    #[test]
    fn memory_of_other_processes_is_not_counted() {
        let (gib, mib) = (1u64 << 30, 1u64 << 20);
        let ours = 300 * mib + TAKEN_LATER;
        for alone in [true, false] {
            assert_eq!(taken(gib, gib + 300 * mib, alone), ours);
        }
        assert_eq!(taken(gib, 9 * gib, false), TAKEN_USUALLY);
        assert_eq!(taken(9 * gib, gib, false), TAKEN_USUALLY);
        assert_eq!(taken(0, 2 * gib, true), 2 * gib + TAKEN_LATER);
    }
}
