//! The CPU: a slab of memory, a pool of threads, and kernels for each instruction set.
//!
//! Everything runs inline: an operation, a copy or a load has happened when its call
//! returns. So an event is complete when it is recorded, and there is never anything
//! to wait for. Loads may come from other threads while one computes.

mod affinity;
mod attention;
mod attention_tile;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod backend;
mod bandwidth;
mod chain;
mod dot;
mod edit;
mod element;
mod elementwise;
mod isa;
mod lanes;
mod linear;
mod load;
mod lookup;
mod math;
mod norm;
mod panel;
mod pool;
mod reduce;
mod rope;
mod route;
mod row;
mod sample;
mod slab;
mod softmax;
mod split;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::{
    Attention, Device, DeviceError, DeviceInfo, Edit, Event, Fill, HostRows, HostSlab, KvLayer,
    Phase, Reduction, Result, Rows, Span, Stream, View, Weight, host,
};
use djinn_types::{Activation, NormKind, RopeStyle};

pub use backend::CpuBackend;
pub use isa::Isa;

use crate::check::Op;
use isa::Engine;
use pool::Pool;
use slab::{Scratch, Slab};

/// Elements below which an operation is not worth sharing out.
const CHUNK_ELEMENTS: usize = 16 << 10;

/// How to set up a [`CpuDevice`].
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads that compute, the caller's among them; all cores if not said.
    pub threads: Option<usize>,
    /// Bytes of the slab. Untouched ones cost nothing.
    pub slab_bytes: u64,
    /// Instructions to use; the best there are if not said.
    pub isa: Option<Isa>,
}

/// The CPU as a device.
pub struct CpuDevice {
    slab: Slab,
    pool: Pool,
    engine: Engine,
    /// One for each thread of the pool. The locks are never fought over: a thread
    /// takes its own, inside a job.
    scratch: Vec<Mutex<Scratch>>,
}

impl CpuOptions {
    /// Whether this machine has what is asked for, without taking any of it.
    pub fn check(&self) -> Result<()> {
        self.settle()?;
        Slab::check(self.slab_bytes)
    }

    /// The kernels and the number of threads.
    fn settle(&self) -> Result<(Engine, usize)> {
        let isa = self.isa.unwrap_or_else(Isa::detect);
        let Some(engine) = Engine::new(isa) else {
            let best = Isa::detect();
            return Err(DeviceError::Setup(format!(
                "this machine has no {isa} instructions; its best are {best}"
            )));
        };
        let cores = host::cores();
        let threads = self.threads.unwrap_or(cores);
        if threads == 0 || threads > cores {
            return Err(DeviceError::Setup(format!(
                "{threads} threads asked for; this process may use 1 to {cores}"
            )));
        }
        Ok((engine, threads))
    }
}

impl CpuDevice {
    /// Takes the slab and starts the threads.
    pub fn new(options: CpuOptions) -> Result<Self> {
        let (engine, threads) = options.settle()?;
        let slab = Slab::new(options.slab_bytes)?;
        let pool = Pool::new(threads).map_err(|error| {
            DeviceError::Setup(format!("cannot start {threads} threads: {error}"))
        })?;
        let scratch = (0..threads).map(|_| Mutex::default()).collect();
        Ok(CpuDevice {
            slab,
            pool,
            engine,
            scratch,
        })
    }

    /// The instructions in use.
    pub fn isa(&self) -> Isa {
        self.engine.isa()
    }

    /// Threads that compute, the caller's among them.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn op(&self, name: &'static str) -> Op {
        Op {
            name,
            base: self.slab.at(0),
            slab_bytes: self.slab.bytes(),
        }
    }

    /// Working memory of one of the pool's threads.
    fn scratch(&self, thread: usize) -> MutexGuard<'_, Scratch> {
        self.scratch[thread]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something with working memory, inside a job.
    fn with_scratch(&self, thread: usize, floats: usize, work: impl FnOnce(*mut f32)) {
        work(self.scratch(thread).floats(floats));
    }

    /// Shares rows of some width out over the threads.
    fn by_rows(&self, rows: usize, width: usize, work: &(dyn Fn(usize, Range<usize>) + Sync)) {
        self.by_parts(rows, rows.saturating_mul(width), 1, work);
    }

    /// Shares columns of some height out over the threads, in whole cache lines.
    fn by_columns(&self, cols: usize, height: usize, work: &(dyn Fn(usize, Range<usize>) + Sync)) {
        self.by_parts(cols, cols.saturating_mul(height), 16, work);
    }

    fn by_parts(
        &self,
        count: usize,
        elements: usize,
        unit: usize,
        work: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        if count == 0 {
            return;
        }
        let most = (elements / CHUNK_ELEMENTS).clamp(1, 4 * self.threads());
        let part = count.div_ceil(most).next_multiple_of(unit);
        self.pool.run(count.div_ceil(part), &|thread, chunk| {
            work(thread, chunk * part..((chunk + 1) * part).min(count));
        });
    }
}

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        let threads = self.threads();
        let plural = if threads == 1 { "" } else { "s" };
        DeviceInfo {
            name: "cpu".into(),
            detail: format!("{}, {threads} thread{plural}", self.isa()),
            slab_bytes: self.slab.bytes(),
        }
    }

    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        self.do_load(dst, fill)
    }
    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        HostSlab::new(bytes, |_| Ok(Box::new(host::Plain)))
    }
    fn bring(&self, _: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        self.do_bring(src, from, dst)
    }
    fn send(&self, _: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        self.do_send(src, dst, to)
    }
    fn bring_rows(&self, _: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        rows.each()
            .try_for_each(|(from, dst)| self.do_bring(src, from, dst))
    }
    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        self.do_copy(src, dst)
    }
    fn upload(&self, _: Stream, dst: Span, src: &[u8]) -> Result<()> {
        self.do_upload(dst, src)
    }
    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        let src = self.op("download").f32("src", src)?;
        self.copy_rows("download", src, dst)
    }
    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        let src = self.op("download_ids").i32("src", src)?;
        self.copy_rows("download_ids", src, dst)
    }

    fn record(&self, _: Stream) -> Result<Event> {
        Ok(Event::new(Instant::now()))
    }
    fn wait(&self, _: Stream, _: &Event) -> Result<()> {
        Ok(())
    }
    fn is_past(&self, _: &Event) -> Result<bool> {
        Ok(true)
    }
    fn wait_here(&self, _: &Event) -> Result<()> {
        Ok(())
    }
    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        let (Some(from), Some(to)) = (from.mark::<Instant>(), to.mark::<Instant>()) else {
            return self.op("event").fail("an event of another device".into());
        };
        Ok(to.saturating_duration_since(*from).as_secs_f64())
    }
    fn synchronize(&self, _: Stream) -> Result<()> {
        Ok(())
    }

    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()> {
        self.do_gather(table, ids, out, accumulate)
    }
    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        self.do_scatter_add(src, ids, weights, out)
    }
    fn norm(
        &self,
        kind: NormKind,
        eps: f32,
        x: View,
        weight: View,
        bias: Option<View>,
        out: View,
    ) -> Result<()> {
        self.do_norm(kind, eps, x, weight, bias, out)
    }
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        _: Phase,
    ) -> Result<()> {
        self.do_linear(x, weight, bias, out)
    }
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()> {
        self.do_rope_table(positions, frequencies, scale, out)
    }
    fn rope(&self, x: View, table: View, d_head: usize, style: RopeStyle) -> Result<()> {
        self.do_rope(x, table, d_head, style)
    }
    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        self.do_append(k, v, rows, kv)
    }
    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.do_attend(q, rows, kv, how, out)
    }
    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.do_pattern(q, rows, kv, how, out)
    }
    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.do_mix(pattern, rows, kv, how, out)
    }
    fn activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        self.do_activate(f, x, out)
    }
    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        self.do_gate(f, gate, up, out)
    }
    fn add(&self, x: View, out: View) -> Result<()> {
        self.do_add(x, out)
    }
    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()> {
        self.do_split(x, first, stride, width, out)
    }
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()> {
        self.do_route(logits, renormalise, ids, weights)
    }
    fn sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        self.do_sample(x, draws, ids)
    }
    fn edit(&self, x: View, edit: Edit) -> Result<()> {
        self.do_edit(x, edit)
    }
    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        self.do_reduce(x, how, out)
    }
}
