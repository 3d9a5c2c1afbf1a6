//! Backends and devices that fail or hang when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use djinn_types::{Activation, DType, Tier};

use crate::cuda::Card;
use crate::fault::{Fault, FaultSwitch, trapped};
use crate::{
    Attention, AttentionOps, Backend, ChoiceOps, Device, DeviceInfo, DeviceLimits, Edit,
    ElementwiseOps, Event, Fill, FusedOps, HostRows, HostSlab, KvLayer, LookupOps, NormParams,
    PassLimits, Phase, ProbeOps, ProductOps, Projection, Qkv, Reduction, Result, RopeOps, Rotation,
    Rows, Span, Stream, Streams, Transfers, View, Weight,
};

/// Breaks a device now: enqueues a kernel that fails or does not end. A CPU fails or blocks in this
/// call. A hang ends when the switch is cleared.
pub fn break_device(device: &dyn Device, fault: Fault, switch: &FaultSwitch) -> Result<()> {
    if fault == Fault::Hang {
        switch.set(fault);
    }
    device.prepare_faults()?;
    device.inject(fault, switch)
}

/// A backend whose devices break when a switch is set.
#[derive(Clone, Debug)]
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    switch: FaultSwitch,
}

impl FaultyBackend {
    /// Wraps a backend. The switch belongs to all devices of the backend.
    pub fn new(inner: Arc<dyn Backend>, switch: FaultSwitch) -> Self {
        FaultyBackend { inner, switch }
    }
}

impl Backend for FaultyBackend {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn detail(&self) -> String {
        self.inner.detail()
    }

    fn phases_agree(&self) -> bool {
        self.inner.phases_agree()
    }

    fn tier(&self) -> Tier {
        self.inner.tier()
    }

    fn is_host_memory(&self) -> bool {
        self.inner.is_host_memory()
    }

    fn overhead(&self) -> u64 {
        self.inner.overhead()
    }

    fn host_tables(&self, host_bytes: u64) -> u64 {
        self.inner.host_tables(host_bytes)
    }

    fn graph_bytes(&self, sessions: usize) -> u64 {
        self.inner.graph_bytes(sessions)
    }

    fn scratch_bytes(&self, limits: PassLimits) -> u64 {
        self.inner.scratch_bytes(limits)
    }

    fn limits(&self, kv_dtype: DType, d_head: usize) -> DeviceLimits {
        self.inner.limits(kv_dtype, d_head)
    }

    fn max_piece_bytes(&self) -> u64 {
        self.inner.max_piece_bytes()
    }

    fn check(&self, slab_bytes: u64) -> Result<()> {
        self.inner.check(slab_bytes)
    }

    fn free_memory(&self) -> Result<u64> {
        self.inner.free_memory()
    }

    fn open(&self, slab_bytes: u64, limits: PassLimits) -> Result<Arc<dyn Device>> {
        let inner = self.inner.open(slab_bytes, limits)?;
        inner.prepare_faults()?;
        Ok(Arc::new(FaultyDevice {
            inner,
            switch: self.switch.clone(),
            is_broken: AtomicBool::new(false),
            is_hung: AtomicBool::new(false),
        }))
    }

    fn measure_bandwidth(&self, bytes: u64) -> Result<f64> {
        self.inner.measure_bandwidth(bytes)
    }

    fn card(&self) -> Option<&Arc<Card>> {
        self.inner.card()
    }
}

/// A device that breaks at the next operation after its switch is set.
///
/// A CPU that took a trap fails at every later call, as a card does. A CPU that hangs blocks the
/// thread that runs the operation. A card keeps accepting work and blocks the thread that waits.
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    switch: FaultSwitch,
    /// Whether the device took a trap in the calling thread.
    is_broken: AtomicBool,
    /// Whether the current hang is already on the stream.
    is_hung: AtomicBool,
}

impl FaultyDevice {
    /// Fails if the device took a trap.
    fn check(&self) -> Result<&dyn Device> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => Err(trapped()),
            false => Ok(&*self.inner),
        }
    }

    /// Injects the fault of the switch, before an operation of a pass.
    fn strike(&self) -> Result<&dyn Device> {
        let device = self.check()?;
        let fault = match self.switch.get() {
            None => {
                self.is_hung.store(false, Ordering::SeqCst);
                None
            }
            Some(Fault::Trap) => self.switch.take(Fault::Trap).then_some(Fault::Trap),
            Some(Fault::Hang) => {
                let is_first = !self.is_hung.swap(true, Ordering::SeqCst);
                is_first.then_some(Fault::Hang)
            }
        };
        if let Some(fault) = fault {
            let struck = device.inject(fault, &self.switch);
            struck.inspect_err(|_| self.is_broken.store(true, Ordering::SeqCst))?;
        }
        Ok(device)
    }
}

impl Device for FaultyDevice {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn release_memory(&self) -> Result<()> {
        self.check()?.release_memory()
    }

    fn restore_memory(&self) -> Result<()> {
        self.check()?.restore_memory()
    }
}

impl Transfers for FaultyDevice {
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        self.check()?.load(dst, fill)
    }

    fn release_staging(&self) {
        self.inner.release_staging();
    }

    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        self.check()?.host_slab(bytes)
    }

    fn copy_in(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        self.check()?.copy_in(stream, src, from, dst)
    }

    fn copy_in_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        self.check()?.copy_in_rows(stream, src, rows)
    }

    fn copy_out(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        self.check()?.copy_out(stream, src, dst, to)
    }

    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        self.check()?.copy(src, dst)
    }

    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        self.check()?.upload(stream, dst, src)
    }

    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        self.check()?.download(src, dst)
    }

    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        self.check()?.download_ids(src, dst)
    }
}

impl Streams for FaultyDevice {
    fn record(&self, stream: Stream) -> Result<Event> {
        self.check()?.record(stream)
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        self.check()?.wait(stream, event)
    }

    fn is_past(&self, event: &Event) -> Result<bool> {
        self.check()?.is_past(event)
    }

    fn wait_here(&self, event: &Event) -> Result<()> {
        self.check()?.wait_here(event)
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        self.check()?.seconds_between(from, to)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.check()?.synchronize(stream)
    }

    fn replay(&self, number: u64, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.strike()?.replay(number, work)
    }
}

/// Forwards operations to the inner device, after the fault of the switch.
macro_rules! struck {
    ($($ops:ident { $(fn $name:ident($($argument:ident: $kind:ty),*);)* })*) => {
        $(impl $ops for FaultyDevice {
            $(fn $name(&self, $($argument: $kind),*) -> Result<()> {
                self.strike()?.$name($($argument),*)
            })*
        })*
    };
}

all_operations!(struck);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use djinn_types::DType;

    use super::{Fault, FaultSwitch, FaultyBackend, break_device};
    use crate::cpu::CpuBackend;
    use crate::{Backend, Device, PassLimits, Stream, View};

    fn faulty() -> (FaultyBackend, FaultSwitch) {
        let switch = FaultSwitch::default();
        let cpu = CpuBackend {
            threads: Some(1),
            isa: None,
        };
        (FaultyBackend::new(Arc::new(cpu), switch.clone()), switch)
    }

    fn open(backend: &FaultyBackend) -> Arc<dyn Device> {
        backend.open(1 << 12, PassLimits::default()).unwrap()
    }

    fn views() -> [View; 2] {
        [0, 256].map(|offset| View::new(offset, DType::F32, 1, 4))
    }

    #[test]
    fn a_trap_breaks_one_device_for_good() {
        let (backend, switch) = faulty();
        let (device, [x, y]) = (open(&backend), views());
        device.add(x, y).unwrap();
        switch.set(Fault::Trap);
        device.synchronize(Stream::Compute).unwrap();
        let error = device.add(x, y).unwrap_err();
        assert!(error.is_sticky(), "{error}");
        assert_eq!(switch.get(), None, "the device has taken the trap");
        assert!(device.add(x, y).unwrap_err().is_sticky());
        assert!(device.record(Stream::Copy).unwrap_err().is_sticky());
        assert!(device.download(x, &mut [0.0; 4]).unwrap_err().is_sticky());
        drop(device);
        open(&backend).add(x, y).unwrap();
    }

    #[test]
    fn a_hang_lasts_until_the_switch_is_cleared() {
        let (backend, switch) = faulty();
        let (device, [x, y]) = (open(&backend), views());
        switch.set(Fault::Hang);
        let (done, is_done) = channel();
        let pass = Arc::clone(&device);
        let thread = std::thread::spawn(move || done.send(pass.add(x, y).is_ok()));
        assert!(is_done.recv_timeout(Duration::from_millis(50)).is_err());
        // Health checks do not wait for the pass.
        assert!(!device.info().name.is_empty());
        backend.free_memory().unwrap();
        assert_eq!(backend.overhead(), 0);
        switch.clear();
        assert_eq!(is_done.recv(), Ok(true));
        thread.join().unwrap().unwrap();
        device.add(x, y).unwrap();
    }

    #[test]
    fn a_plain_device_can_be_broken() {
        let cpu = CpuBackend::default();
        let device = cpu.open(1 << 12, PassLimits::default()).unwrap();
        let broken = break_device(&*device, Fault::Trap, &FaultSwitch::default());
        assert!(broken.unwrap_err().is_sticky());
    }
}
