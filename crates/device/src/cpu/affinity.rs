//! CPUs that the threads of a pool run on.
//!
//! Each worker is pinned to a CPU. The calling thread is not pinned, because it belongs to the
//! caller. If the calling thread starts a job on a worker's CPU, both share that CPU while
//! another CPU idles, until the system moves one of them. The pool therefore moves the calling
//! thread to a free CPU and restores its affinity at once.

/// CPU of a worker, on systems that support pinning.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerCpu(#[cfg(target_os = "linux")] Option<usize>);

#[cfg(target_os = "linux")]
mod imp {
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    use super::WorkerCpu;

    /// Least time between two moves of the caller. A move takes a few microseconds, which is
    /// too much for every job on a busy system.
    const MOVE_INTERVAL: Duration = Duration::from_millis(5);

    /// CPUs assigned to a pool.
    pub(in crate::cpu) struct WorkerCpus {
        workers: Vec<usize>,
        /// Allowed CPUs that no worker is pinned to.
        free: Vec<usize>,
        sent: Mutex<Option<Instant>>,
    }

    impl WorkerCpus {
        /// Chooses CPUs for `workers` and keeps the first for the caller. Pins no worker if
        /// there are too few CPUs.
        pub(in crate::cpu) fn choose(workers: usize) -> Self {
            let allowed: Vec<usize> = sched_getaffinity(None)
                .map(|set| {
                    (0..CpuSet::MAX_CPU)
                        .filter(|&cpu| set.is_set(cpu))
                        .collect()
                })
                .unwrap_or_default();
            let (mut free, mut taken) = (allowed, Vec::new());
            if free.len() > workers {
                taken = free.split_off(free.len() - workers);
            }
            WorkerCpus {
                workers: taken,
                free,
                sent: Mutex::new(None),
            }
        }

        pub(in crate::cpu) fn worker(&self, index: usize) -> WorkerCpu {
            WorkerCpu(self.workers.get(index).copied())
        }

        /// Moves the calling thread off a worker's CPU, if it is on one.
        pub(in crate::cpu) fn leave_worker_cpu(&self) {
            if self.workers.is_empty() || !self.workers.contains(&sched_getcpu()) {
                return;
            }
            let Ok(mut sent) = self.sent.lock() else {
                return;
            };
            if sent.is_some_and(|when| when.elapsed() < MOVE_INTERVAL) {
                return;
            }
            *sent = Some(Instant::now());
            let Ok(own) = sched_getaffinity(None) else {
                return;
            };
            let mut away = CpuSet::new();
            self.free
                .iter()
                .filter(|&&cpu| own.is_set(cpu))
                .for_each(|&cpu| away.set(cpu));
            // A failed move costs time, but not correctness.
            if away.count() > 0 && sched_setaffinity(None, &away).is_ok() {
                let _ = sched_setaffinity(None, &own);
            }
        }
    }

    impl WorkerCpu {
        pub(in crate::cpu) fn pin_this_thread(self) {
            if let Some(cpu) = self.0 {
                let mut set = CpuSet::new();
                set.set(cpu);
                // An unpinned worker is slower, but correct.
                let _ = sched_setaffinity(None, &set);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::WorkerCpu;

    /// Placeholder on systems without pinning.
    pub(in crate::cpu) struct UnpinnedWorkers;

    impl UnpinnedWorkers {
        pub(in crate::cpu) fn choose(_: usize) -> Self {
            UnpinnedWorkers
        }
        pub(in crate::cpu) fn worker(&self, _: usize) -> WorkerCpu {
            WorkerCpu()
        }
        pub(in crate::cpu) fn leave_worker_cpu(&self) {}
    }

    impl WorkerCpu {
        pub(in crate::cpu) fn pin_this_thread(self) {}
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) use imp::UnpinnedWorkers as WorkerCpus;
#[cfg(target_os = "linux")]
pub(super) use imp::WorkerCpus;
