//! Which CPU each thread of a pool runs on.
//!
//! Workers are pinned, one to a CPU. The caller belongs to somebody else and keeps
//! its freedom; but when it starts a job on a CPU that is a worker's, the two would
//! take turns there while another CPU idles, until the system notices. So it is
//! sent to a CPU that is nobody's and let go again.

/// A worker's CPU, if there is a say in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(#[cfg(target_os = "linux")] Option<usize>);

#[cfg(target_os = "linux")]
mod imp {
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    use super::Place;

    /// Sending the caller away costs a few microseconds; a system so busy that it
    /// keeps coming back is not to be fought over every job.
    const PATIENCE: Duration = Duration::from_millis(5);

    /// CPUs dealt out to a pool.
    pub(in crate::cpu) struct Places {
        workers: Vec<usize>,
        /// Where the caller may be sent: allowed, and no worker's.
        free: Vec<usize>,
        sent: Mutex<Option<Instant>>,
    }

    impl Places {
        /// Chooses CPUs for `workers`, keeping the first for the caller. With fewer
        /// CPUs than that nobody is pinned.
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
            Places {
                workers: taken,
                free,
                sent: Mutex::new(None),
            }
        }

        pub(in crate::cpu) fn worker(&self, index: usize) -> Place {
            Place(self.workers.get(index).copied())
        }

        /// Moves the calling thread off a worker's CPU, if it is on one.
        pub(in crate::cpu) fn leave_worker_cpu(&self) {
            if self.workers.is_empty() || !self.workers.contains(&sched_getcpu()) {
                return;
            }
            let Ok(mut sent) = self.sent.lock() else {
                return;
            };
            if sent.is_some_and(|when| when.elapsed() < PATIENCE) {
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
            // Failing to move costs time, not correctness.
            if away.count() > 0 && sched_setaffinity(None, &away).is_ok() {
                let _ = sched_setaffinity(None, &own);
            }
        }
    }

    impl Place {
        pub(in crate::cpu) fn pin_this_thread(self) {
            if let Some(cpu) = self.0 {
                let mut set = CpuSet::new();
                set.set(cpu);
                // An unpinned worker is slower, not wrong.
                let _ = sched_setaffinity(None, &set);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::Place;

    /// No say in it on this system.
    pub(in crate::cpu) struct Places;

    impl Places {
        pub(in crate::cpu) fn choose(_: usize) -> Self {
            Places
        }
        pub(in crate::cpu) fn worker(&self, _: usize) -> Place {
            Place()
        }
        pub(in crate::cpu) fn leave_worker_cpu(&self) {}
    }

    impl Place {
        pub(in crate::cpu) fn pin_this_thread(self) {}
    }
}

pub(super) use imp::Places;
