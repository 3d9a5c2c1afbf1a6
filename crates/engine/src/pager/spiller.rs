//! Pages between host memory and disk, by threads of their own.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use djinn_device::{HostSlab, Span};
use djinn_memory::{Move, PageId};
use djinn_store::{Spill, StoreError};

use crate::EngineError;

/// Threads that read and write: a disk is fastest with several things to do.
const THREADS: usize = 4;

/// Which way a page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    Back,
}

struct Job {
    page: PageId,
    way: Way,
    host: Span,
    slot: u32,
}

/// A page that arrived, or did not.
pub(crate) struct Arrived {
    pub page: PageId,
    pub way: Way,
    pub seconds: f64,
    pub result: Result<(), StoreError>,
}

/// A file for pages, and the threads that use it.
pub(crate) struct Spiller {
    jobs: Option<Sender<Job>>,
    arrived: Receiver<Arrived>,
    under_way: usize,
    page_bytes: u64,
    threads: Vec<JoinHandle<()>>,
}

impl Spiller {
    /// Takes a file whose slots are of the size of a page.
    pub fn start(spill: Spill, host: Arc<HostSlab>) -> Result<Self, EngineError> {
        let (jobs, queue) = channel::<Job>();
        let (tell, arrived) = channel();
        let page_bytes = spill.slot_bytes();
        let shared = Arc::new((spill, host, Mutex::new(queue)));
        let start = |number: usize| {
            let (shared, tell) = (Arc::clone(&shared), tell.clone());
            let work = move || {
                let (spill, host, queue) = &*shared;
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(job) = next() {
                    if tell.send(run(spill, host, &job)).is_err() {
                        break;
                    }
                }
            };
            let name = format!("djinn-spill-{number}");
            thread::Builder::new().name(name).spawn(work)
        };
        let threads: Result<Vec<_>, _> = (0..THREADS).map(start).collect();
        let threads = threads.map_err(|error| EngineError::Workers {
            count: THREADS,
            error,
        })?;
        Ok(Spiller {
            jobs: Some(jobs),
            arrived,
            under_way: 0,
            page_bytes,
            threads,
        })
    }

    /// Has a page written or read. Until it has arrived nobody else uses the frame it goes
    /// to, nor writes the one it comes from.
    pub fn put(&mut self, page: Move, way: Way) {
        let (host, slot) = match way {
            Way::Out => (page.from, page.to),
            Way::Back => (page.to, page.from),
        };
        let job = Job {
            page: page.page,
            way,
            host: Span {
                offset: u64::from(host.0) * self.page_bytes,
                bytes: self.page_bytes,
            },
            slot: slot.0,
        };
        let jobs = self.jobs.as_ref().expect("there until this is dropped");
        jobs.send(job).expect("threads are there as long");
        self.under_way += 1;
    }

    /// Pages that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// What has arrived; where nothing has and something is under way, waits if told to.
    pub fn arrived(&mut self, wait: bool) -> Vec<Arrived> {
        let first = match wait && self.under_way > 0 {
            true => self.arrived.recv().ok(),
            false => None,
        };
        let all: Vec<Arrived> = first.into_iter().chain(self.arrived.try_iter()).collect();
        self.under_way -= all.len();
        all
    }
}

impl Drop for Spiller {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has told so.
            let _ = thread.join();
        }
    }
}

fn run(spill: &Spill, host: &HostSlab, job: &Job) -> Arrived {
    let start = Instant::now();
    let done = match job.way {
        Way::Out => host.show(job.host, |bytes| spill.write(job.slot, bytes)),
        Way::Back => host.lend(job.host, |bytes| spill.read(job.slot, bytes)),
    };
    Arrived {
        page: job.page,
        way: job.way,
        seconds: start.elapsed().as_secs_f64(),
        result: done.expect("a frame lies in host memory"),
    }
}
