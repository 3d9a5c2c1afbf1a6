//! Runs a target on one input and reports a violated property.

use std::{
    fmt,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook},
    sync::Mutex,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use peak_alloc::PeakAlloc;

use crate::targets::FuzzTarget;

/// Bytes that any input may allocate.
const BYTES_FREE: usize = 256 << 20;
/// Bytes that an input may allocate in addition, for each of its own bytes.
const BYTES_PER_BYTE: usize = 64;

/// Time and memory that an input took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Time of the run.
    pub time: Duration,
    /// Most bytes that were allocated at one time, beyond those before the run.
    pub bytes: usize,
}

/// A violated property.
#[derive(Clone, Debug)]
pub enum Violation {
    /// The reader panicked, or a check of the target failed.
    Panic(String),
    /// The input allocated too much memory.
    Memory {
        /// Bytes allocated at one time.
        bytes: usize,
        /// Bytes that the input may allocate.
        limit: usize,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Panic(message) => write!(f, "panic: {message}"),
            Violation::Memory { bytes, limit } => {
                write!(f, "{bytes} bytes allocated at one time, limit {limit}")
            }
        }
    }
}

/// Last panic of every thread since the last run.
static PANICS: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

/// Thread that renders a template and turns a panic into an error.
const SHIELDED: &str = "djinn-template";

/// Records panics from now on instead of printing them. [`check`] needs this.
pub fn watch_panics() {
    set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let panic = (thread::current().id(), info.to_string().replace('\n', " "));
        if thread::current().name() == Some(SHIELDED) {
            return;
        }
        if let Ok(mut panics) = PANICS.lock() {
            panics.push(panic);
        }
    }));
}

fn take_panics() -> Vec<(ThreadId, String)> {
    let mut panics = PANICS.lock().expect("the lock is held for a push only");
    std::mem::take(&mut *panics)
}

/// Runs a target on one input. `memory` must be the allocator of the process.
///
/// A panic that the reader catches on this thread is allowed: the reader turned it into an error.
/// A panic of another thread is a violation, because a server would have lost a request.
pub fn check(target: &FuzzTarget, data: &[u8], memory: &PeakAlloc) -> Result<Cost, Violation> {
    memory.reset_peak_usage();
    let (before, start) = (memory.current_usage(), Instant::now());
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    let cost = Cost {
        time: start.elapsed(),
        bytes: memory.peak_usage().saturating_sub(before),
    };
    let here = thread::current().id();
    let escaped = ended.is_err();
    let panic = take_panics()
        .into_iter()
        .find(|(thread, _)| escaped || *thread != here);
    if let Some((_, message)) = panic {
        return Err(Violation::Panic(message));
    }
    let limit = BYTES_FREE + BYTES_PER_BYTE * data.len();
    match cost.bytes > limit {
        true => Err(Violation::Memory {
            bytes: cost.bytes,
            limit,
        }),
        false => Ok(cost),
    }
}
