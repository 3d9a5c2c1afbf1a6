//! A pool of threads that work on one job at a time.
//!
//! A job is a number of chunks that threads claim one by one through a counter. A thread that the
//! system deschedules therefore delays only its current chunk. The calling thread belongs to the
//! pool. After a job, workers spin briefly, because the next job usually follows within
//! microseconds, and then sleep.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::affinity::WorkerCpus;

/// Time that a thread spins before it sleeps: longer than the gap between two operations of
/// a pass, and too short to show up as CPU load.
const SPIN: Duration = Duration::from_micros(50);

/// Bits of the state that count the threads inside the current job.
const ACTIVE: u64 = (1 << 16) - 1;
/// Bit of the state: no thread may enter the job any more.
const CLOSED: u64 = 1 << 16;
/// Bit of the state: the caller sleeps until the last thread has left.
const WAITING: u64 = 1 << 17;
/// Lowest of the state's bits that count jobs.
const EPOCH: u64 = 1 << 18;

/// Work on one chunk, called with `(thread, chunk)`.
type ChunkFn<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Gives a value cache lines of its own, so that threads do not share them.
#[repr(align(128))]
struct CacheAligned<T>(T);

struct PoolShared {
    /// Epoch, waiting, closed and active in one word, so that entering and closing a job
    /// are single atomic steps.
    state: CacheAligned<AtomicU64>,
    /// The next unclaimed chunk.
    next: CacheAligned<AtomicUsize>,
    /// Written by the caller while the state is closed and no thread is active; read by
    /// active threads.
    job: UnsafeCell<PoolJob>,
    /// Thread to wake when the last worker leaves; set only while that thread sleeps.
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Vec<CacheAligned<AtomicBool>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct PoolJob {
    work: *const ChunkFn<'static>,
    chunks: usize,
}

// SAFETY: `job` follows the protocol of its field, and the data behind its pointer is `Sync`.
unsafe impl Sync for PoolShared {}
// SAFETY: the argument for `Sync` holds, and no thread uses the pointer in `job` outside a job.
unsafe impl Send for PoolShared {}

/// A pool of threads that includes the calling thread.
pub(super) struct ThreadPool {
    shared: Arc<PoolShared>,
    workers: Vec<JoinHandle<()>>,
    places: WorkerCpus,
    /// Lock held during a job: one job runs at a time.
    turn: Mutex<()>,
}

impl ThreadPool {
    /// Starts a pool of `threads` in total, with each worker pinned to its own CPU.
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let count = threads.saturating_sub(1).min(ACTIVE as usize);
        let shared = Arc::new(PoolShared {
            state: CacheAligned(AtomicU64::new(CLOSED)),
            next: CacheAligned(AtomicUsize::new(0)),
            job: UnsafeCell::new(PoolJob {
                work: &|_, _| (),
                chunks: 0,
            }),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            asleep: (0..count)
                .map(|_| CacheAligned(AtomicBool::new(false)))
                .collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = ThreadPool {
            shared,
            workers: Vec::with_capacity(count),
            places: WorkerCpus::choose(count),
            turn: Mutex::new(()),
        };
        for worker in 0..count {
            let shared = Arc::clone(&pool.shared);
            let place = pool.places.worker(worker);
            let handle = thread::Builder::new()
                .name(format!("djinn-cpu-{}", worker + 1))
                .spawn(move || {
                    place.pin_this_thread();
                    shared.serve(worker);
                })?;
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(thread, chunk)` once for every chunk, from all threads, and returns when
    /// all chunks are done. A panic on any thread resumes on the caller. Must not be called
    /// from inside a job.
    pub(super) fn run(&self, chunks: usize, work: &ChunkFn<'_>) {
        let _turn = lock(&self.turn);
        if chunks <= 1 || self.workers.is_empty() {
            (0..chunks).for_each(|chunk| work(0, chunk));
            return;
        }
        self.places.leave_worker_cpu();
        self.open(chunks, work);
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.claim(0)));
        if own.is_err() {
            self.shared.drop_unclaimed();
        }
        self.close();
        let theirs = lock(&self.shared.panic).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    fn open(&self, chunks: usize, work: &ChunkFn<'_>) {
        let shared = &*self.shared;
        let work: *const ChunkFn<'_> = work;
        // SAFETY: the last job is closed and all threads have left it, so no thread reads
        // `job`. The pointer's lifetime is erased, but no thread is inside this job after
        // `close`, which `run` calls before `work` ends.
        unsafe {
            let work = std::mem::transmute::<*const ChunkFn<'_>, *const ChunkFn<'static>>(work);
            *shared.job.get() = PoolJob { work, chunks };
        }
        shared.next.0.store(0, Ordering::Relaxed);
        let epoch = shared.state.0.load(Ordering::Relaxed) / EPOCH;
        let open = epoch.wrapping_add(1).wrapping_mul(EPOCH);
        shared.state.0.store(open, Ordering::Release);
        // This fence pairs with the fence of a worker that is about to sleep. Either the worker
        // sees the job, or this thread sees that the worker sleeps.
        fence(Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers).take(chunks - 1) {
            if asleep.0.load(Ordering::Relaxed) && asleep.0.swap(false, Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }

    /// Closes the job and waits until all threads have left it.
    fn close(&self) {
        let state = &self.shared.state.0;
        let left = |state: u64| state & ACTIVE == 0;
        if left(state.fetch_or(CLOSED, Ordering::AcqRel)) {
            return;
        }
        if spin_until(|| left(state.load(Ordering::Acquire))) {
            return;
        }
        *lock(&self.shared.caller) = Some(thread::current());
        if !left(state.fetch_or(WAITING, Ordering::AcqRel)) {
            while !left(state.load(Ordering::Acquire)) {
                thread::park();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so it cannot have panicked.
            let _ = worker.join();
        }
    }
}

impl PoolShared {
    /// Main loop of a worker.
    fn serve(&self, worker: usize) {
        let mut last = 0;
        while !self.stop.load(Ordering::Acquire) {
            if !spin_until(|| self.has_job_or_stop(last)) {
                self.sleep(worker, last);
            }
            if self.enter(&mut last) {
                self.work_on_job(worker);
            }
        }
    }

    /// Returns whether a new job waits for this worker, or the pool stops.
    fn has_job_or_stop(&self, last: u64) -> bool {
        let state = self.state.0.load(Ordering::Acquire);
        (state & CLOSED == 0 && state / EPOCH != last) || self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&self, worker: usize, last: u64) {
        let asleep = &self.asleep[worker].0;
        asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while asleep.load(Ordering::Relaxed) && !self.has_job_or_stop(last) {
            thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
    }

    /// Enters the open job, unless it closes first.
    fn enter(&self, last: &mut u64) -> bool {
        let mut state = self.state.0.load(Ordering::Acquire);
        while state & CLOSED == 0 && state / EPOCH != *last {
            match self.state.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    *last = state / EPOCH;
                    return true;
                }
                Err(now) => state = now,
            }
        }
        false
    }

    /// Works on the entered job, and leaves it.
    fn work_on_job(&self, worker: usize) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.claim(worker + 1))) {
            self.drop_unclaimed();
            lock(&self.panic).get_or_insert(panic);
        }
        let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & ACTIVE == 1 && before & WAITING != 0 {
            // The caller may already belong to a later job; one spurious wake-up is harmless.
            if let Some(caller) = &*lock(&self.caller) {
                caller.unpark();
            }
        }
    }

    /// Drops all unclaimed chunks.
    fn drop_unclaimed(&self) {
        self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
    }

    /// Claims and runs chunks until none is left.
    fn claim(&self, thread: usize) {
        // SAFETY: this thread started the job or is counted as active, so no thread writes.
        let job = unsafe { *self.job.get() };
        // SAFETY: `run` keeps the work alive until all active threads have left.
        let work = unsafe { &*job.work };
        loop {
            let chunk = self.next.0.fetch_add(1, Ordering::Relaxed);
            if chunk >= job.chunks {
                return;
            }
            work(thread, chunk);
        }
    }
}

/// Spins briefly, and returns whether the condition became true.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..64 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return condition();
        }
    }
}

/// Locks a mutex, poisoned or not: no panic here leaves the data inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pool: &ThreadPool, chunks: usize) {
        let hits: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(chunks, &|thread, chunk| {
            assert!(thread < pool.threads());
            hits[chunk].fetch_add(1, Ordering::Relaxed);
        });
        for (chunk, hit) in hits.iter().enumerate() {
            assert_eq!(hit.load(Ordering::Relaxed), 1, "chunk {chunk} of {chunks}");
        }
    }

    #[test]
    fn every_chunk_is_done_once() {
        for threads in [1, 2, 3, 8] {
            let pool = ThreadPool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for chunks in [0, 1, 2, 3, 7, 100, 1000] {
                count(&pool, chunks);
            }
        }
    }

    #[test]
    fn many_tiny_jobs_with_and_without_sleep() {
        let pool = ThreadPool::new(3).unwrap();
        for job in 0..20_000 {
            count(&pool, 1 + job % 5);
            if job % 2000 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn many_pools_at_once_and_dropped() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let pool = ThreadPool::new(3).unwrap();
                        count(&pool, 10);
                        count(&pool, 3);
                    }
                });
            }
        });
        drop(ThreadPool::new(4).unwrap());
    }

    #[test]
    fn jobs_of_several_callers_run_one_at_a_time() {
        let pool = ThreadPool::new(2).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| count(&pool, 4)));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_still_works() {
        let pool = ThreadPool::new(3).unwrap();
        for bad in [0, 5, 63] {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|_, chunk| {
                    thread::sleep(Duration::from_micros(20));
                    assert_ne!(chunk, bad, "chunk {chunk} fails");
                });
            }))
            .unwrap_err();
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.contains("fails"), "{text}");
            count(&pool, 64);
        }
    }

    #[test]
    fn a_slow_worker_is_waited_for() {
        let pool = ThreadPool::new(2).unwrap();
        for _ in 0..20 {
            let done = AtomicUsize::new(0);
            pool.run(2, &|_, _| {
                thread::sleep(Duration::from_millis(1));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 2);
        }
    }
}
