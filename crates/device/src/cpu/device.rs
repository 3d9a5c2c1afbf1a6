//! The CPU as a device: its slab, its threads, and how work is shared out.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::isa::{Isa, SimdEngine};
use super::pool::Pool;
use super::slab::{ScratchFloats, Slab};
use crate::check::OpCheck;
use crate::{Device, DeviceError, DeviceInfo, FusedOps, Result, host};

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
    pub(super) slab: Slab,
    pub(super) pool: Pool,
    pub(super) engine: SimdEngine,
    /// One for each thread of the pool. The locks are never fought over: a thread
    /// takes its own, inside a job.
    scratch: Vec<Mutex<ScratchFloats>>,
}

impl CpuOptions {
    /// Whether this machine has what is asked for, without taking any of it.
    pub fn check(&self) -> Result<()> {
        self.settle()?;
        Slab::check(self.slab_bytes)
    }

    /// The kernels and the number of threads.
    fn settle(&self) -> Result<(SimdEngine, usize)> {
        let isa = self.isa.unwrap_or_else(Isa::detect);
        let Some(engine) = SimdEngine::new(isa) else {
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

    pub(super) fn op(&self, name: &'static str) -> OpCheck {
        OpCheck {
            name,
            base: self.slab.at(0),
            slab_bytes: self.slab.bytes(),
        }
    }

    /// Working memory of one of the pool's threads.
    pub(super) fn scratch(&self, thread: usize) -> MutexGuard<'_, ScratchFloats> {
        self.scratch[thread]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something with working memory, inside a job.
    pub(super) fn with_scratch(&self, thread: usize, floats: usize, work: impl FnOnce(*mut f32)) {
        work(self.scratch(thread).floats(floats));
    }

    /// Shares rows of some width out over the threads.
    pub(super) fn by_rows(
        &self,
        rows: usize,
        width: usize,
        work: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        self.by_parts(rows, rows.saturating_mul(width), 1, work);
    }

    /// Shares columns of some height out over the threads, in whole cache lines.
    pub(super) fn by_columns(
        &self,
        cols: usize,
        height: usize,
        work: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
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
}

/// A CPU runs the plain operations in order.
impl FusedOps for CpuDevice {}
