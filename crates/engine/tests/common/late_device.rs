//! A CPU device whose compute events are late, as those of a card are.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use djinn_device::{
    Attention, AttentionOps, Backend, ChoiceOps, Device, DeviceError, DeviceInfo, DeviceLimits,
    Edit, ElementwiseOps, Event, Fill, FusedOps, HostRows, HostSlab, KvLayer, LookupOps,
    NormParams, PassLimits, Phase, ProbeOps, ProductOps, Reduction, RopeOps, Rotation, Rows, Span,
    Stream, Streams, Transfers, View, Weight, cpu::CpuBackend,
};
use djinn_types::{Activation, DType, Tier};

type Result<T> = std::result::Result<T, DeviceError>;

/// Number of times that an event of the compute stream is reported as not past.
pub const DELAY: usize = 3;

/// A CPU backend that opens a [`LateDevice`].
#[derive(Debug)]
pub struct LateBackend(pub CpuBackend);

/// A device that reports compute events as past only after [`DELAY`] queries.
struct LateDevice {
    inner: Arc<dyn Device>,
    left: AtomicUsize,
}

impl Transfers for LateDevice {
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        self.inner.load(dst, fill)
    }

    fn release_staging(&self) {
        self.inner.release_staging();
    }

    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        self.inner.host_slab(bytes)
    }

    fn copy_in(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        self.inner.copy_in(stream, src, from, dst)
    }

    fn copy_in_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        self.inner.copy_in_rows(stream, src, rows)
    }

    fn copy_out(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        self.inner.copy_out(stream, src, dst, to)
    }

    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        self.inner.copy(src, dst)
    }

    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        self.inner.upload(stream, dst, src)
    }

    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        self.inner.download(src, dst)
    }

    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        self.inner.download_ids(src, dst)
    }
}

impl Streams for LateDevice {
    fn record(&self, stream: Stream) -> Result<Event> {
        if stream == Stream::Compute {
            self.left.store(DELAY, Ordering::Relaxed);
        }
        self.inner.record(stream)
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        self.inner.wait(stream, event)
    }

    fn is_past(&self, event: &Event) -> Result<bool> {
        let late = |left: usize| left.checked_sub(1);
        match self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, late)
        {
            Ok(_) => Ok(false),
            Err(_) => self.inner.is_past(event),
        }
    }

    fn wait_here(&self, event: &Event) -> Result<()> {
        self.inner.wait_here(event)
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        self.inner.seconds_between(from, to)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.inner.synchronize(stream)
    }
}

impl LookupOps for LateDevice {
    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()> {
        self.inner.gather(table, ids, out, accumulate)
    }

    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        self.inner.scatter_add(src, ids, weights, out)
    }

    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()> {
        self.inner.split(x, first, stride, width, out)
    }
}

impl ElementwiseOps for LateDevice {
    fn norm(&self, params: NormParams, x: View, out: View) -> Result<()> {
        self.inner.norm(params, x, out)
    }

    fn activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        self.inner.activate(f, x, out)
    }

    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        self.inner.gate(f, gate, up, out)
    }

    fn add(&self, x: View, out: View) -> Result<()> {
        self.inner.add(x, out)
    }
}

impl ChoiceOps for LateDevice {
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()> {
        self.inner.route(logits, renormalise, ids, weights)
    }

    fn sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        self.inner.sample(x, draws, ids)
    }
}

impl ProbeOps for LateDevice {
    fn edit(&self, x: View, edit: Edit) -> Result<()> {
        self.inner.edit(x, edit)
    }

    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        self.inner.reduce(x, how, out)
    }
}

impl ProductOps for LateDevice {
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        phase: Phase,
    ) -> Result<()> {
        self.inner.linear(x, weight, bias, out, phase)
    }
}

impl RopeOps for LateDevice {
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()> {
        self.inner.rope_table(positions, frequencies, scale, out)
    }

    fn rope(&self, x: View, rotation: Rotation) -> Result<()> {
        self.inner.rope(x, rotation)
    }
}

impl AttentionOps for LateDevice {
    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        self.inner.append(k, v, rows, kv)
    }

    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.inner.attend(q, rows, kv, how, out)
    }

    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.inner.pattern(q, rows, kv, how, out)
    }

    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.inner.mix(pattern, rows, kv, how, out)
    }
}

impl FusedOps for LateDevice {}

impl Device for LateDevice {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
}

impl Backend for LateBackend {
    fn name(&self) -> String {
        self.0.name()
    }

    fn detail(&self) -> String {
        self.0.detail()
    }

    fn kv_dtype(&self, weights: DType) -> DType {
        self.0.kv_dtype(weights)
    }

    fn tier(&self) -> Tier {
        self.0.tier()
    }

    fn is_host_memory(&self) -> bool {
        self.0.is_host_memory()
    }

    fn overhead(&self) -> u64 {
        self.0.overhead()
    }

    fn host_tables(&self, host_bytes: u64) -> u64 {
        self.0.host_tables(host_bytes)
    }

    fn graph_bytes(&self, sessions: usize) -> u64 {
        self.0.graph_bytes(sessions)
    }

    fn scratch_bytes(&self, limits: PassLimits) -> u64 {
        self.0.scratch_bytes(limits)
    }

    fn limits(&self, kv_dtype: DType, d_head: usize) -> DeviceLimits {
        self.0.limits(kv_dtype, d_head)
    }

    fn max_piece_bytes(&self) -> u64 {
        self.0.max_piece_bytes()
    }

    fn check(&self, slab_bytes: u64) -> Result<()> {
        self.0.check(slab_bytes)
    }

    fn free_memory(&self) -> Result<u64> {
        self.0.free_memory()
    }

    fn open(&self, slab_bytes: u64, limits: PassLimits) -> Result<Arc<dyn Device>> {
        let inner = self.0.open(slab_bytes, limits)?;
        let left = AtomicUsize::new(0);
        Ok(Arc::new(LateDevice { inner, left }))
    }

    fn measure_bandwidth(&self, bytes: u64) -> Result<f64> {
        self.0.measure_bandwidth(bytes)
    }
}
