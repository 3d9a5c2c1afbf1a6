//! A card that this process uses: context, kernels, and accounts of its memory.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;

use super::blas::Blas;
use super::context::{CardContext, FoundCard};
use super::driver::Version;
use super::kernels::Kernels;
use super::memory_ledger::MemoryLedger;
use super::nvml::Nvml;
use crate::{DeviceError, Result, host};

/// A card in use by this process: a context, and the kernels compiled for the card. All devices
/// on the card share one `Card`.
pub struct Card {
    // Fields drop in this order. Kernels and library live in the context.
    kernels: Kernels,
    /// cuBLASLt; `None` if the library is missing.
    pub(super) blas: Option<Blas>,
    context: CardContext,
    multiprocessors: usize,
    /// Bytes that were in use before the card was opened, if no other process used it.
    before: Option<u64>,
    pub(super) ledger: Arc<MemoryLedger>,
}

const MULTIPROCESSORS: sys::CUdevice_attribute =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;

/// Usual number of bytes of a context, for systems that do not report it.
const USUAL_BYTES: u64 = 640 << 20;
/// Least number of bytes of a context.
const LEAST_BYTES: u64 = 64 << 20;
/// Bytes that the driver allocates later, when a model first runs. The largest measured value is
/// 34 MiB.
const LATER_BYTES: u64 = 48 << 20;

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
            multiprocessors: context.attribute(MULTIPROCESSORS)?.max(1) as usize,
            context,
            before: None,
            ledger: Arc::new(MemoryLedger::new(USUAL_BYTES)),
        };
        if let (Some(before), Some(after)) = (before, used()) {
            let alone = card.is_alone();
            card.before = alone.then_some(before);
            card.ledger = Arc::new(MemoryLedger::new(overhead(before, after, alone)));
        }
        Ok(Arc::new(card))
    }

    /// Number of processes that compute on the card; `None` if the system does not report it.
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
        let known: Vec<String> = host::neighbours().iter().map(ToString::to_string).collect();
        let others = match others.is_empty() || known.is_empty() {
            true => others,
            false => format!("{others} (this user runs {})", known.join(", ")),
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
    /// libraries. A memory budget includes these bytes. They grow when a model first runs and do
    /// not shrink when the model is unloaded, so this call measures them again whenever this
    /// process has no slab and is alone on the card.
    pub fn overhead(&self) -> u64 {
        self.ledger.driver_bytes(|| {
            let (before, now) = (self.before?, self.used()?);
            self.is_alone().then(|| overhead(before, now, true))
        })
    }

    /// Bytes of the card's memory in use by all processes; `None` if the system does not report
    /// the number.
    pub fn used(&self) -> Option<u64> {
        Nvml::get()?.used(self.bus_id())
    }

    /// Number of multiprocessors.
    pub(super) fn multiprocessors(&self) -> usize {
        self.multiprocessors
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

/// Bytes that a process took between two readings of the memory used by all processes. Other
/// processes may have allocated or freed memory in between.
fn overhead(before: u64, after: u64, alone: bool) -> u64 {
    let taken = after.saturating_sub(before);
    match alone || (LEAST_BYTES..=USUAL_BYTES).contains(&taken) {
        true => taken + LATER_BYTES,
        false => USUAL_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::{LATER_BYTES, USUAL_BYTES, overhead};

    #[test]
    fn memory_of_other_processes_is_not_counted() {
        let (gib, mib) = (1u64 << 30, 1u64 << 20);
        let ours = 300 * mib + LATER_BYTES;
        for alone in [true, false] {
            assert_eq!(overhead(gib, gib + 300 * mib, alone), ours);
        }
        assert_eq!(overhead(gib, 9 * gib, false), USUAL_BYTES);
        assert_eq!(overhead(9 * gib, gib, false), USUAL_BYTES);
        assert_eq!(overhead(0, 2 * gib, true), 2 * gib + LATER_BYTES);
    }
}
