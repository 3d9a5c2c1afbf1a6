//! The CPU as a device: its slab, its threads, and the division of work among them.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::isa::{Isa, SimdEngine};
use super::pool::ThreadPool;
use super::slab::{ScratchFloats, Slab};
use crate::check::OpCheck;
use crate::{Device, DeviceError, DeviceInfo, FusedOps, Result, host};

/// Least number of elements that one thread works on.
const CHUNK_ELEMENTS: usize = 16 << 10;

/// Options of a [`CpuDevice`].
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Number of computing threads, including the caller; all usable cores if `None`.
    pub threads: Option<usize>,
    /// Bytes of the slab. Untouched pages take no memory.
    pub slab_bytes: u64,
    /// Instruction set; the best one available if `None`.
    pub isa: Option<Isa>,
}

/// The CPU as a device.
pub struct CpuDevice {
    pub(super) slab: Slab,
    pub(super) pool: ThreadPool,
    pub(super) engine: SimdEngine,
    /// Scratch memory of each thread of the pool. The locks are never contended, because a
    /// thread takes only its own, inside a job.
    scratch: Vec<Mutex<ScratchFloats>>,
    /// Spans of the slab that threads load now.
    pub(super) loads: host::SpanBorrows,
}

impl CpuOptions {
    /// Checks that this machine can provide the options, without allocating anything.
    pub fn check(&self) -> Result<()> {
        self.resolve()?;
        Slab::check(self.slab_bytes)
    }

    /// Returns the instruction set and the number of threads.
    fn resolve(&self) -> Result<(SimdEngine, usize)> {
        let isa = self.isa.unwrap_or_else(Isa::detect);
        let Some(engine) = SimdEngine::new(isa) else {
            let best = Isa::detect();
            return Err(DeviceError::Setup(format!(
                "this machine has no {isa} instructions; the best available set is {best}"
            )));
        };
        let cores = host::cores();
        let threads = self.threads.unwrap_or(cores);
        if threads == 0 || threads > cores {
            return Err(DeviceError::Setup(format!(
                "--threads {threads} is out of range; this process may use 1 to {cores}"
            )));
        }
        Ok((engine, threads))
    }
}

impl CpuDevice {
    /// Allocates the slab and starts the threads.
    pub fn new(options: CpuOptions) -> Result<Self> {
        let (engine, threads) = options.resolve()?;
        let slab = Slab::new(options.slab_bytes)?;
        let pool = ThreadPool::new(threads).map_err(|error| {
            DeviceError::Setup(format!("cannot start {threads} threads: {error}"))
        })?;
        let scratch = (0..threads).map(|_| Mutex::default()).collect();
        Ok(CpuDevice {
            slab,
            pool,
            engine,
            scratch,
            loads: host::SpanBorrows::default(),
        })
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.engine.isa()
    }

    /// Number of computing threads, including the caller.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    pub(super) fn op(&self, name: &'static str) -> OpCheck {
        OpCheck {
            name,
            base: self.slab.at(0),
            slab_bytes: self.slab.usable_bytes(),
        }
    }

    /// Scratch memory of one thread of the pool.
    pub(super) fn scratch(&self, thread: usize) -> MutexGuard<'_, ScratchFloats> {
        self.scratch[thread]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` with scratch memory, inside a job.
    pub(super) fn with_scratch(&self, thread: usize, floats: usize, work: impl FnOnce(*mut f32)) {
        work(self.scratch(thread).floats(floats));
    }

    /// Divides rows of some width among the threads.
    pub(super) fn by_rows(
        &self,
        rows: usize,
        width: usize,
        work: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        self.by_parts(rows, rows.saturating_mul(width), 1, work);
    }

    /// Divides columns of some height among the threads, in whole cache lines.
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

    fn release_memory(&self) -> Result<()> {
        // Operations of a CPU run in the call, so no work is left.
        self.slab.release()
    }

    fn restore_memory(&self) -> Result<()> {
        self.slab.restore()
    }
}

// A CPU runs the plain operations in order.
impl FusedOps for CpuDevice {}
