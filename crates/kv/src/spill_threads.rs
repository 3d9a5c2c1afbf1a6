//! Threads that read and write the spill file.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use djinn_device::{HostSlab, Span};

use crate::error::{KvError, SpillError};
use crate::page::{DiskDirection, PageCopy, PageId};
use crate::spill_file::SpillFile;

/// Number of threads: a disk reaches its full rate with several requests in flight.
const THREADS: usize = 4;

/// Page to write or to read.
struct DiskJob {
    page: PageId,
    direction: DiskDirection,
    host: Span,
    slot: u32,
}

/// Disk transfer that succeeded or failed.
pub(crate) struct DoneDiskTransfer {
    pub page: PageId,
    pub direction: DiskDirection,
    pub seconds: f64,
    pub result: Result<(), SpillError>,
}

/// Spill file and the threads that use it.
pub(crate) struct SpillThreads {
    file: Arc<SpillFile>,
    jobs: Option<Sender<DiskJob>>,
    done: Receiver<DoneDiskTransfer>,
    in_flight: usize,
    page_bytes: u64,
    threads: Vec<JoinHandle<()>>,
}

impl SpillThreads {
    /// Starts threads that move pages between host memory and a file with slots of one page.
    pub fn start(file: SpillFile, host: Arc<HostSlab>) -> Result<Self, KvError> {
        let (jobs, queue) = channel::<DiskJob>();
        let (results, done) = channel();
        let page_bytes = file.slot_bytes();
        let file = Arc::new(file);
        let shared = Arc::new((Arc::clone(&file), host, Mutex::new(queue)));
        let start = |number: usize| {
            let (shared, results) = (Arc::clone(&shared), results.clone());
            let work = move || {
                let (file, host, queue) = &*shared;
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(job) = next() {
                    if results.send(run(file, host, &job)).is_err() {
                        break;
                    }
                }
            };
            let name = format!("djinn-spill-{number}");
            thread::Builder::new().name(name).spawn(work)
        };
        let threads: Result<Vec<_>, _> = (0..THREADS).map(start).collect();
        let threads = threads.map_err(|source| KvError::Threads {
            count: THREADS,
            source,
        })?;
        Ok(SpillThreads {
            file,
            jobs: Some(jobs),
            done,
            in_flight: 0,
            page_bytes,
            threads,
        })
    }

    /// Submits a page to write or to read. Until the transfer is done, the caller must not use
    /// the target frame or write to the source frame.
    pub fn submit(&mut self, copy: PageCopy, direction: DiskDirection) {
        let (host, slot) = match direction {
            DiskDirection::Spill => (copy.from, copy.to),
            DiskDirection::Fetch => (copy.to, copy.from),
        };
        let job = DiskJob {
            page: copy.page,
            direction,
            host: Span {
                offset: u64::from(host.0) * self.page_bytes,
                bytes: self.page_bytes,
            },
            slot: slot.0,
        };
        let jobs = self.jobs.as_ref().expect("open until drop");
        jobs.send(job).expect("threads run until drop");
        self.in_flight += 1;
    }

    /// Spill file, for reads and writes in the calling thread of slots without a transfer.
    pub fn file(&self) -> &SpillFile {
        &self.file
    }

    /// Number of transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes the transfers that are done. With `wait`, blocks until at least one is done, unless
    /// no transfer is in flight.
    pub fn take_done(&mut self, wait: bool) -> Vec<DoneDiskTransfer> {
        let first = match wait && self.in_flight > 0 {
            true => self.done.recv().ok(),
            false => None,
        };
        let all: Vec<_> = first.into_iter().chain(self.done.try_iter()).collect();
        self.in_flight -= all.len();
        all
    }
}

impl Drop for SpillThreads {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // The panic hook has already printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

fn run(file: &SpillFile, host: &HostSlab, job: &DiskJob) -> DoneDiskTransfer {
    let start = Instant::now();
    let result = match job.direction {
        DiskDirection::Spill => host.show(job.host, |bytes| file.write(job.slot, bytes)),
        DiskDirection::Fetch => host.lend(job.host, |bytes| file.read(job.slot, bytes)),
    };
    DoneDiskTransfer {
        page: job.page,
        direction: job.direction,
        seconds: start.elapsed().as_secs_f64(),
        result: result.expect("the frame lies in host memory"),
    }
}
