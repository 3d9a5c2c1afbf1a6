//! A card as a device: its slab, its streams, and the state of its launches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::blas::Blas;
use super::card::Card;
use super::event::Events;
use super::graph::Graphs;
use super::memory::{CudaStream, DeviceMemory};
use super::pinned::Pinned;
use super::scratch::Scratch;
use super::shadow::LaunchState;
use crate::check::OpCheck;
use crate::{ALIGN, Device, DeviceInfo, PassLimits, Result, Stream};

/// A card as a device.
pub struct CudaDevice {
    // Fields drop in this order.
    pub(super) graphs: Mutex<Graphs>,
    pub(super) slab: DeviceMemory,
    /// Bytes of `slab` that belong to the caller. Scratch memory follows these bytes.
    pub(super) slab_bytes: u64,
    pub(super) scratch: Scratch,
    /// Pinned word into which kernels write faults.
    pub(super) fault: Pinned,
    pub(super) compute: Arc<CudaStream>,
    pub(super) copy: Arc<CudaStream>,
    pub(super) page_in: Arc<CudaStream>,
    pub(super) page_out: Arc<CudaStream>,
    /// Pinned staging buffers of loads and downloads, one for each concurrent caller.
    pub(super) staging: Mutex<Vec<Pinned>>,
    pub(super) events: Arc<Events>,
    pub(super) launches: Mutex<LaunchState>,
    #[cfg(any(test, feature = "faults"))]
    pub(super) faults: std::sync::OnceLock<super::faults::FaultKernels>,
    pub(super) card: Arc<Card>,
}

impl CudaDevice {
    /// Allocates a slab of the card's memory, followed by the scratch memory of operations.
    pub fn new(card: &Arc<Card>, slab_bytes: u64, limits: PassLimits) -> Result<Self> {
        let scratch = Scratch(limits);
        let slab_end = slab_bytes.next_multiple_of(ALIGN);
        Ok(CudaDevice {
            graphs: Mutex::default(),
            slab: DeviceMemory::new(card, slab_end + scratch.bytes())?,
            slab_bytes,
            scratch,
            fault: Pinned::new(4)?,
            compute: Arc::new(CudaStream::new(card, false)?),
            copy: Arc::new(CudaStream::new(card, true)?),
            page_in: Arc::new(CudaStream::new(card, false)?),
            page_out: Arc::new(CudaStream::new(card, false)?),
            staging: Mutex::default(),
            events: Events::new(card),
            launches: Mutex::default(),
            #[cfg(any(test, feature = "faults"))]
            faults: std::sync::OnceLock::new(),
            card: Arc::clone(card),
        })
    }

    pub(super) fn op(&self, name: &'static str) -> OpCheck {
        OpCheck {
            name,
            base: std::ptr::without_provenance_mut(self.slab.address() as usize),
            slab_bytes: if self.slab.address() == 0 {
                0
            } else {
                self.slab_bytes
            },
        }
    }

    pub(super) fn queue(&self, stream: Stream) -> &CudaStream {
        match stream {
            Stream::Compute => &self.compute,
            Stream::Copy => &self.copy,
            Stream::PageIn => &self.page_in,
            Stream::PageOut => &self.page_out,
        }
    }

    /// Address of a byte of the scratch memory behind the slab.
    pub(super) fn scratch_at(&self, offset: u64) -> u64 {
        self.slab.address() + self.slab_bytes.next_multiple_of(ALIGN) + offset
    }
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.card.label(),
            detail: self.card.name().to_owned(),
            slab_bytes: self.slab_bytes,
        }
    }

    fn arithmetic(&self) -> String {
        // The driver compiles the kernels, and the library chooses algorithms.
        let driver = std::fs::read_to_string("/proc/driver/nvidia/version");
        // A version that is unknown equals no other.
        let driver = driver.unwrap_or_else(|_| format!("driver seen at {:?}", SystemTime::now()));
        let driver = driver.lines().next().unwrap_or_default();
        let library = self.card.blas.as_ref().map_or(0, Blas::version);
        format!("{}, {driver}, cuBLASLt {library}", self.card.name())
    }

    fn release_memory(&self) -> Result<()> {
        self.finish()?;
        for stream in Stream::ALL {
            self.queue(stream).wait()?;
        }
        self.state().forget();
        // Recordings contain addresses in the slab.
        *self.graphs.lock().unwrap_or_else(PoisonError::into_inner) = Graphs::default();
        self.slab.free();
        Ok(())
    }

    fn restore_memory(&self) -> Result<()> {
        self.slab.allocate(&self.card)
    }

    #[cfg(any(test, feature = "faults"))]
    fn prepare_faults(&self) -> Result<()> {
        if self.faults.get().is_none() {
            self.card.enter()?;
            let kernels = super::faults::FaultKernels::load()?;
            // Another thread may have loaded them first.
            let _ = self.faults.set(kernels);
        }
        Ok(())
    }

    #[cfg(any(test, feature = "faults"))]
    fn inject(&self, fault: crate::fault::Fault, switch: &crate::fault::FaultSwitch) -> Result<()> {
        self.prepare_faults()?;
        self.state().forget();
        self.card.enter()?;
        match self.faults.get() {
            Some(kernels) => kernels.launch(fault, switch, self.compute.stream),
            None => Ok(()),
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // The streams must finish before the memory is freed.
        let _ = self.card.enter();
        for stream in Stream::ALL {
            let _ = self.queue(stream).wait();
        }
    }
}
