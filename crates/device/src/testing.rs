//! Devices for tests: a CPU with late copies and events, as on a card.
//!
//! On a CPU every copy is done when its call returns, and every event is past as soon as it is
//! recorded. Code that forgets to wait still works. A [`LateDevice`] computes on the CPU but
//! delays the copies and events that a card delays. It also logs the names of its operations, so
//! a test can see which operations were fused.

/// Calls a macro with all operations of a device. The devices of this module forward each of them.
macro_rules! all_operations {
    ($forward:ident) => {
        $forward! {
            LookupOps {
                fn gather(table: View, ids: View, out: View, accumulate: bool);
                fn scatter_add(src: View, ids: View, weights: View, out: View);
                fn split(x: View, first: usize, stride: usize, width: usize, out: View);
            }
            ElementwiseOps {
                fn norm(params: NormParams, x: View, out: View);
                fn activate(f: Activation, x: View, out: View);
                fn gate(f: Activation, gate: View, up: View, out: View);
                fn add(x: View, out: View);
            }
            ChoiceOps {
                fn route(logits: View, renormalise: bool, ids: View, weights: View);
                fn sample(x: View, draws: View, ids: View);
            }
            ProbeOps {
                fn edit(x: View, edit: Edit);
                fn reduce(x: View, how: Reduction, out: View);
            }
            ProductOps {
                fn linear(x: View, weight: Weight, bias: Option<View>, out: View, phase: Phase);
            }
            RopeOps {
                fn rope_table(positions: View, frequencies: View, scale: f32, out: View);
                fn rope(x: View, rotation: Rotation);
            }
            AttentionOps {
                fn append(k: View, v: View, rows: Rows, kv: KvLayer);
                fn attend(q: View, rows: Rows, kv: KvLayer, how: Attention, out: View);
                fn pattern(q: View, rows: Rows, kv: KvLayer, how: Attention, out: View);
                fn mix(pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View);
            }
            FusedOps {
                fn linear_group(x: View, parts: &[Projection], phase: Phase);
                fn linear_gated(
                    x: View,
                    gate: Projection,
                    up: Projection,
                    f: Activation,
                    out: View,
                    phase: Phase
                );
                fn add_norm(addend: View, x: View, params: NormParams, out: View);
                fn rope_append(qkv: Qkv, rotation: Rotation, rows: Rows, kv: KvLayer);
                fn rope_append_attend(
                    qkv: Qkv,
                    rotation: Rotation,
                    rows: Rows,
                    kv: KvLayer,
                    how: Attention,
                    out: View
                );
            }
        }
    };
}

#[cfg(any(test, feature = "faults"))]
mod faulty;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use djinn_types::{Activation, DType, Tier};

use crate::cpu::{CpuBackend, CpuDevice, CpuOptions};
use crate::{
    Attention, AttentionOps, Backend, ChoiceOps, Device, DeviceError, DeviceInfo, DeviceLimits,
    Edit, ElementwiseOps, Event, Fill, FusedOps, HostRows, HostSlab, KvLayer, LookupOps,
    NormParams, PassLimits, Phase, ProbeOps, ProductOps, Projection, Qkv, Reduction, Result,
    RopeOps, Rotation, Rows, Span, Stream, Streams, Transfers, View, Weight,
};

#[cfg(any(test, feature = "faults"))]
pub use self::faulty::{FaultyBackend, FaultyDevice, break_device};
#[cfg(any(test, feature = "faults"))]
pub use crate::fault::{Fault, FaultSwitch};

/// Names of operations in the order of their calls.
type OpLog = Arc<Mutex<Vec<&'static str>>>;

/// Number of copies of rows until one fails; 0 if none fails.
type CopyFault = Arc<AtomicU32>;

/// Faults of the memory of all devices of a backend. All clones are the same faults.
#[derive(Clone, Debug, Default)]
pub struct MemoryFaults {
    /// Number of the next attempts to give memory back that fail.
    pub release: Arc<AtomicU32>,
    /// Number of the next attempts to allocate memory again for which the device has too little.
    pub restore: Arc<AtomicU32>,
}

impl MemoryFaults {
    /// Counts an attempt. Returns whether it fails.
    fn strikes(left: &AtomicU32) -> bool {
        let count = |left: u32| left.checked_sub(1);
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count)
            .is_ok()
    }
}

/// A backend that opens [`LateDevice`]s.
#[derive(Clone, Debug)]
pub struct LateBackend {
    cpu: CpuBackend,
    seed: u64,
    polls: u32,
    ops: OpLog,
    copy_fault: CopyFault,
    memory_faults: MemoryFaults,
}

impl LateBackend {
    /// Creates a backend on one thread. The seed and the event's number decide for how many
    /// polls, `polls` at most, an event is not past.
    pub fn new(seed: u64, polls: u32) -> Self {
        LateBackend {
            cpu: CpuBackend {
                threads: Some(1),
                isa: None,
            },
            seed,
            polls,
            ops: OpLog::default(),
            copy_fault: CopyFault::default(),
            memory_faults: MemoryFaults::default(),
        }
    }

    /// Returns the faults of the memory of its devices, for a test to set.
    pub fn memory_faults(&self) -> MemoryFaults {
        self.memory_faults.clone()
    }

    /// Lets the copy of rows after the next `copies` copies fail. Later copies succeed.
    pub fn fail_copy_after(&self, copies: u32) {
        self.copy_fault.store(copies + 1, Ordering::SeqCst);
    }

    /// Takes the names of the operations that ran on the opened devices since the last call.
    pub fn take_ops(&self) -> Vec<&'static str> {
        std::mem::take(&mut *lock(&self.ops))
    }
}

impl Backend for LateBackend {
    fn name(&self) -> String {
        "late".to_owned()
    }

    fn detail(&self) -> String {
        String::new()
    }

    fn phases_agree(&self) -> bool {
        self.cpu.phases_agree()
    }

    fn tier(&self) -> Tier {
        Tier::Host
    }

    fn is_host_memory(&self) -> bool {
        self.cpu.is_host_memory()
    }

    fn overhead(&self) -> u64 {
        0
    }

    fn host_tables(&self, _: u64) -> u64 {
        0
    }

    fn graph_bytes(&self, _: usize) -> u64 {
        0
    }

    fn scratch_bytes(&self, _: PassLimits) -> u64 {
        0
    }

    fn limits(&self, _: DType, _: usize) -> DeviceLimits {
        DeviceLimits::NONE
    }

    fn max_piece_bytes(&self) -> u64 {
        self.cpu.max_piece_bytes()
    }

    fn check(&self, slab_bytes: u64) -> Result<()> {
        self.cpu.check(slab_bytes)
    }

    fn free_memory(&self) -> Result<u64> {
        self.cpu.free_memory()
    }

    fn open(&self, slab_bytes: u64, _: PassLimits) -> Result<Arc<dyn Device>> {
        let options = CpuOptions {
            threads: self.cpu.threads,
            slab_bytes,
            isa: self.cpu.isa,
        };
        let mut device = LateDevice::new(options, self.seed, self.polls)?;
        device.ops = Arc::clone(&self.ops);
        device.copy_fault = Arc::clone(&self.copy_fault);
        device.memory_faults = self.memory_faults.clone();
        Ok(Arc::new(device))
    }

    fn measure_bandwidth(&self, bytes: u64) -> Result<f64> {
        self.cpu.measure_bandwidth(bytes)
    }
}

/// A CPU device with late copies and events.
///
/// A copy into the slab overwrites its destination with NaN at once and lands when the caller
/// waits for an event recorded after it, or finds that event past. An event is not past for
/// a number of polls that the seed decides. Operations run at once.
pub struct LateDevice {
    cpu: CpuDevice,
    seed: u64,
    polls: u32,
    /// Number of events so far.
    events: AtomicU64,
    pending: Mutex<PendingCopies>,
    ops: OpLog,
    copy_fault: CopyFault,
    memory_faults: MemoryFaults,
}

/// Copies that have not landed.
#[derive(Default)]
struct PendingCopies {
    /// Number of copies so far.
    count: u64,
    copies: VecDeque<PendingCopy>,
}

/// A copy into the slab that has not landed.
struct PendingCopy {
    number: u64,
    stream: Stream,
    dst: Span,
    bytes: Vec<u8>,
}

/// Record of an event of a [`LateDevice`].
struct LateEvent {
    stream: Stream,
    /// Copies on `stream` with a lower number precede the event.
    copies: u64,
    /// Polls that still find the event not past.
    polls: AtomicU32,
    at: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LateDevice {
    /// Opens a CPU with events that are not past for up to `polls` polls each.
    pub fn new(options: CpuOptions, seed: u64, polls: u32) -> Result<Self> {
        Ok(LateDevice {
            cpu: CpuDevice::new(options)?,
            seed,
            polls,
            events: AtomicU64::new(0),
            pending: Mutex::default(),
            ops: OpLog::default(),
            copy_fault: CopyFault::default(),
            memory_faults: MemoryFaults::default(),
        })
    }

    /// Fails if the next copy of rows is the one that a test lets fail.
    fn strike_copy(&self) -> Result<()> {
        let fault = &self.copy_fault;
        let count = |left: u32| left.checked_sub(1);
        match fault.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count) {
            Ok(1) => Err(DeviceError::Driver {
                what: "copying between host and card",
                code: 1,
                reason: "a test broke a copy".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Names of the operations that ran so far.
    pub fn ops(&self) -> Vec<&'static str> {
        lock(&self.ops).clone()
    }

    fn note(&self, op: &'static str) {
        lock(&self.ops).push(op);
    }

    /// Enqueues a copy into the slab, or runs it at once on the compute stream.
    fn enqueue(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        if stream == Stream::Compute {
            return self.cpu.copy_in(stream, src, from, dst);
        }
        let mut bytes = vec![0; dst.bytes as usize];
        let span = Span {
            offset: from,
            bytes: dst.bytes,
        };
        src.read(span, &mut bytes)?;
        self.cpu.upload(stream, dst, &vec![0xff; bytes.len()])?;
        let mut pending = lock(&self.pending);
        let number = pending.count;
        pending.count += 1;
        pending.copies.push_back(PendingCopy {
            number,
            stream,
            dst,
            bytes,
        });
        Ok(())
    }

    /// Lands the copies on a stream that have a number below `end`.
    fn land(&self, stream: Stream, end: u64) -> Result<()> {
        let mut pending = lock(&self.pending);
        let (due, later) = std::mem::take(&mut pending.copies)
            .into_iter()
            .partition(|copy| copy.stream == stream && copy.number < end);
        pending.copies = later;
        let due: VecDeque<PendingCopy> = due;
        due.iter()
            .try_for_each(|copy| self.cpu.upload(copy.stream, copy.dst, &copy.bytes))
    }

    fn event<'e>(&self, event: &'e Event) -> Result<&'e LateEvent> {
        event.mark().ok_or_else(|| DeviceError::Shape {
            op: "event",
            detail: "the event belongs to another device".into(),
        })
    }

    fn pass(&self, event: &Event) -> Result<()> {
        let event = self.event(event)?;
        event.polls.store(0, Ordering::Relaxed);
        self.land(event.stream, event.copies)
    }
}

impl Device for LateDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "late".to_owned(),
            ..self.cpu.info()
        }
    }

    fn release_memory(&self) -> Result<()> {
        let left = lock(&self.pending).copies.len();
        assert_eq!(
            left, 0,
            "copies are on their way into memory that is given back"
        );
        if MemoryFaults::strikes(&self.memory_faults.release) {
            let reason = "a test broke the release of memory";
            return Err(DeviceError::Setup(reason.to_owned()));
        }
        self.cpu.release_memory()
    }

    fn restore_memory(&self) -> Result<()> {
        if MemoryFaults::strikes(&self.memory_faults.restore) {
            return Err(DeviceError::NoMemory {
                bytes: self.cpu.info().slab_bytes,
                reason: "a test took the memory".to_owned(),
            });
        }
        self.cpu.restore_memory()
    }
}

impl Transfers for LateDevice {
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        self.cpu.load(dst, fill)
    }

    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        self.cpu.host_slab(bytes)
    }

    fn copy_in(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        self.enqueue(stream, src, from, dst)
    }

    fn copy_in_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        self.strike_copy()?;
        rows.each()
            .try_for_each(|(from, dst)| self.enqueue(stream, src, from, dst))
    }

    fn copy_out(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        self.cpu.copy_out(stream, src, dst, to)
    }

    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        self.cpu.copy(src, dst)
    }

    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        self.cpu.upload(stream, dst, src)
    }

    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        self.cpu.download(src, dst)
    }

    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        self.cpu.download_ids(src, dst)
    }
}

impl Streams for LateDevice {
    fn record(&self, stream: Stream) -> Result<Event> {
        let number = self.events.fetch_add(1, Ordering::Relaxed);
        let mut x = (self.seed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let polls = (x >> 33) % (u64::from(self.polls) + 1);
        Ok(Event::new(LateEvent {
            stream,
            copies: lock(&self.pending).count,
            polls: AtomicU32::new(polls as u32),
            at: Instant::now(),
        }))
    }

    fn wait(&self, _: Stream, event: &Event) -> Result<()> {
        // Later work on the waiting stream may read the copies, although the host has not seen
        // the event pass.
        let event = self.event(event)?;
        self.land(event.stream, event.copies)
    }

    fn is_past(&self, event: &Event) -> Result<bool> {
        let late = self.event(event)?;
        let left = late.polls.load(Ordering::Relaxed);
        if left > 0 {
            late.polls.store(left - 1, Ordering::Relaxed);
            return Ok(false);
        }
        self.pass(event).map(|()| true)
    }

    fn wait_here(&self, event: &Event) -> Result<()> {
        self.pass(event)
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        let (from, to) = (self.event(from)?.at, self.event(to)?.at);
        Ok(to.saturating_duration_since(from).as_secs_f64())
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.land(stream, u64::MAX)
    }
}

/// Forwards operations to the CPU and logs their names.
macro_rules! noted {
    ($($ops:ident { $(fn $name:ident($($argument:ident: $kind:ty),*);)* })*) => {
        $(impl $ops for LateDevice {
            $(fn $name(&self, $($argument: $kind),*) -> Result<()> {
                self.note(stringify!($name));
                self.cpu.$name($($argument),*)
            })*
        })*
    };
}

all_operations!(noted);

#[cfg(test)]
mod tests {
    use djinn_types::DType;

    use super::{LateBackend, LateDevice};
    use crate::cpu::CpuOptions;
    use crate::{Backend, PassLimits, Span, Stream, Streams, Transfers, View};

    fn device(polls: u32) -> LateDevice {
        let options = CpuOptions {
            threads: Some(1),
            slab_bytes: 1 << 12,
            isa: None,
        };
        LateDevice::new(options, 7, polls).unwrap()
    }

    fn filled(device: &LateDevice) -> crate::HostSlab {
        let host = device.host_slab(64).unwrap();
        let ones = &mut |bytes: &mut [u8]| {
            bytes.copy_from_slice(&1f32.to_le_bytes().repeat(bytes.len() / 4));
            Ok(())
        };
        let all = Span {
            offset: 0,
            bytes: 64,
        };
        host.fill(all, ones).unwrap();
        host.seal().unwrap();
        host
    }

    #[test]
    fn a_copy_lands_when_its_event_is_waited_for() {
        let device = device(3);
        let host = filled(&device);
        let view = View::new(128, DType::F32, 1, 4);
        let read = || {
            let mut numbers = [0.0; 4];
            device.download(view, &mut numbers).unwrap();
            numbers
        };
        let before = device.record(Stream::Copy).unwrap();
        device.copy_in(Stream::Copy, &host, 0, view.span()).unwrap();
        let after = device.record(Stream::Copy).unwrap();
        device.wait(Stream::Compute, &before).unwrap();
        assert!(read().iter().all(|x| x.is_nan()));
        device.wait(Stream::Compute, &after).unwrap();
        assert_eq!(read(), [1.0; 4]);
    }

    #[test]
    fn an_event_is_past_after_a_bounded_number_of_polls() {
        let device = device(5);
        let mut late = 0;
        for _ in 0..40 {
            let event = device.record(Stream::Compute).unwrap();
            let polls = (0..=5).take_while(|_| !device.is_past(&event).unwrap());
            late += polls.count();
            assert!(device.is_past(&event).unwrap());
        }
        assert!(late > 0);
        let event = device.record(Stream::PageIn).unwrap();
        device.wait_here(&event).unwrap();
        assert!(device.is_past(&event).unwrap());
    }

    #[test]
    fn operations_are_noted_by_the_backend() {
        let backend = LateBackend::new(1, 2);
        let device = backend.open(1 << 12, PassLimits::default()).unwrap();
        let [x, y] = [0, 256].map(|offset| View::new(offset, DType::F32, 1, 4));
        device.add(x, y).unwrap();
        device.linear_group(x, &[], crate::Phase::Prompt).unwrap();
        assert_eq!(backend.take_ops(), ["add", "linear_group"]);
        assert!(backend.take_ops().is_empty());
    }
}
