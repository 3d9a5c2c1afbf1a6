//! Threads that share one job at a time.
//!
//! A job is a number of chunks, claimed one by one through a counter, so a thread
//! that the system has set aside holds up nothing it has not begun. The calling
//! thread is one of the pool's. Workers spin for a moment after a job, because the
//! next usually follows within microseconds, and then sleep.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::affinity::Places;

/// How long a thread looks for work before it sleeps: longer than the gap between
/// two operations of a pass, shorter than anyone would notice in a load figure.
const SPIN: Duration = Duration::from_micros(50);

/// Threads inside the current job.
const ACTIVE: u64 = (1 << 16) - 1;
/// No thread may enter the job any more.
const CLOSED: u64 = 1 << 16;
/// The caller sleeps until the last thread has left.
const WAITING: u64 = 1 << 17;
/// The job's number counts in these bits.
const EPOCH: u64 = 1 << 18;

/// What a job does with a chunk: `(thread, chunk)`.
type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Keeps what different threads write out of each other's cache lines.
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    /// Epoch, waiting, closed and active in one word: entering a job and closing it
    /// are single steps that cannot interleave.
    state: Apart<AtomicU64>,
    /// The next chunk nobody has claimed.
    next: Apart<AtomicUsize>,
    /// Written by the caller while the state is closed and nobody is active; read
    /// by threads while they are active.
    job: UnsafeCell<Job>,
    /// Whom to wake when the last thread leaves; set only when it sleeps.
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Vec<Apart<AtomicBool>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    work: *const Work<'static>,
    chunks: usize,
}

// SAFETY: `job` follows the protocol above, and what it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is not used outside a job.
unsafe impl Send for Shared {}

/// A pool of threads, the calling one among them.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    places: Places,
    /// One job at a time, whoever calls.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` in all, its workers each on a CPU of their own.
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let count = threads.saturating_sub(1).min(ACTIVE as usize);
        let shared = Arc::new(Shared {
            state: Apart(AtomicU64::new(CLOSED)),
            next: Apart(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job {
                work: &|_, _| (),
                chunks: 0,
            }),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            asleep: (0..count).map(|_| Apart(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool {
            shared,
            workers: Vec::with_capacity(count),
            places: Places::choose(count),
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

    /// Threads, the caller's included.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(thread, chunk)` once for every chunk, from all threads, and
    /// returns when all are done. A panic in any of them is the caller's. Must not
    /// be called from inside a job.
    pub(super) fn run(&self, chunks: usize, work: &Work<'_>) {
        let _turn = lock(&self.turn);
        if chunks <= 1 || self.workers.is_empty() {
            (0..chunks).for_each(|chunk| work(0, chunk));
            return;
        }
        self.places.leave_worker_cpu();
        self.open(chunks, work);
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.claim(0)));
        if own.is_err() {
            self.shared.give_up();
        }
        self.close();
        let theirs = lock(&self.shared.panic).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    fn open(&self, chunks: usize, work: &Work<'_>) {
        let shared = &*self.shared;
        let work: *const Work<'_> = work;
        // SAFETY: the last job is closed and left by all, so nobody else looks at
        // `job`; the pointer's lifetime is erased, but nobody is inside this job
        // after `close`, which `run` calls before `work` ends.
        unsafe {
            let work = std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work);
            *shared.job.get() = Job { work, chunks };
        }
        shared.next.0.store(0, Ordering::Relaxed);
        let epoch = shared.state.0.load(Ordering::Relaxed) / EPOCH;
        let open = epoch.wrapping_add(1).wrapping_mul(EPOCH);
        shared.state.0.store(open, Ordering::Release);
        // Pairs with the fence of a worker about to sleep: either it sees the job,
        // or we see that it sleeps.
        fence(Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers).take(chunks - 1) {
            if asleep.0.load(Ordering::Relaxed) && asleep.0.swap(false, Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }

    /// Lets nobody in any more and waits for those inside.
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

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so it cannot have panicked.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, worker: usize) {
        let mut last = 0;
        while !self.stop.load(Ordering::Acquire) {
            if !spin_until(|| self.has_news(last)) {
                self.sleep(worker, last);
            }
            if self.enter(&mut last) {
                self.help(worker);
            }
        }
    }

    /// Whether there is a job this worker has not been in, or an end.
    fn has_news(&self, last: u64) -> bool {
        let state = self.state.0.load(Ordering::Acquire);
        (state & CLOSED == 0 && state / EPOCH != last) || self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&self, worker: usize, last: u64) {
        let asleep = &self.asleep[worker].0;
        asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while asleep.load(Ordering::Relaxed) && !self.has_news(last) {
            thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
    }

    /// Counts this worker into the open job, unless it closes first.
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

    /// Works on the job entered, and leaves it.
    fn help(&self, worker: usize) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.claim(worker + 1))) {
            self.give_up();
            lock(&self.panic).get_or_insert(panic);
        }
        let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & ACTIVE == 1 && before & WAITING != 0 {
            // It may be a later caller by now, who then looks once too often.
            if let Some(caller) = &*lock(&self.caller) {
                caller.unpark();
            }
        }
    }

    /// Leaves no chunk to claim.
    fn give_up(&self) {
        self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
    }

    /// Claims and does chunks until none is left.
    fn claim(&self, thread: usize) {
        // SAFETY: the caller is the job's own or counted as active: nobody writes.
        let job = unsafe { *self.job.get() };
        // SAFETY: `run` keeps the work alive until everybody active has left.
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

/// Spins for a moment; whether the condition came true.
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

/// A panic while the lock was held left nothing half-done here: take it anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pool: &Pool, chunks: usize) {
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
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for chunks in [0, 1, 2, 3, 7, 100, 1000] {
                count(&pool, chunks);
            }
        }
    }

    #[test]
    fn many_tiny_jobs_hot_and_cold() {
        let pool = Pool::new(3).unwrap();
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
                        let pool = Pool::new(3).unwrap();
                        count(&pool, 10);
                        count(&pool, 3);
                    }
                });
            }
        });
        drop(Pool::new(4).unwrap());
    }

    #[test]
    fn callers_take_turns() {
        let pool = Pool::new(2).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| count(&pool, 4)));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
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
        let pool = Pool::new(2).unwrap();
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
