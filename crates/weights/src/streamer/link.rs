//! The link's workers: threads that copy chunks from files into memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use djinn_device::DeviceError;

use super::{
    copies::{Chunk, Copies},
    queue::Queue,
    timeline::{Lane, Recorder},
};
use crate::WeightsError;

/// Pieces demanded together while loading.
const PIECES_AHEAD: usize = 64;

/// Copies one chunk after the other until it is told to end. A copy that panics is one
/// that failed: somebody waits for it.
pub(super) fn work(queue: &Queue, mut copy: impl FnMut(&Chunk) -> Result<(), DeviceError>) {
    while let Some(job) = queue.claim() {
        let copied = catch_unwind(AssertUnwindSafe(|| copy(&job.chunk)));
        let panicked = |_| Err(std::io::Error::other("a worker of the link panicked").into());
        queue.complete(job, copied.unwrap_or_else(panicked));
    }
}

/// Workers and the queue they serve. They end when this is dropped.
pub(crate) struct Link {
    pub queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
}

impl Link {
    /// Starts `count` workers that copy chunks in this way.
    pub fn start(
        queue: Queue,
        count: usize,
        copy: impl Fn(&Chunk) -> Result<(), DeviceError> + Clone + Send + 'static,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, WeightsError> {
        let mut link = Link {
            queue: Arc::new(queue),
            workers: Vec::with_capacity(count),
        };
        for number in 0..count {
            let (queue, copy) = (Arc::clone(&link.queue), copy.clone());
            let recorder = Arc::clone(recorder);
            let body = move || {
                work(&queue, |chunk| {
                    let began = Instant::now();
                    let copied = copy(chunk);
                    let lane = Lane::Link(number);
                    recorder.note(lane, chunk.label, chunk.to.bytes, began);
                    copied
                });
            };
            let worker = std::thread::Builder::new()
                .name(format!("djinn-link-{number}"))
                .spawn(body)
                .map_err(|error| WeightsError::Workers { count, error })?;
            link.workers.push(worker);
        }
        Ok(link)
    }

    /// Copies whole pieces and waits for them; says how many bytes are there by now.
    pub fn fetch(
        &self,
        pieces: &[Copies],
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, DeviceError> {
        let mut fetched = 0;
        // A few at a time: enough to keep the link busy, however many there are.
        for few in pieces.chunks(PIECES_AHEAD) {
            let demand = |piece: &Copies| (piece.bytes(), self.queue.demand(piece.chunks()));
            for (bytes, ticket) in few.iter().map(demand).collect::<Vec<_>>() {
                self.queue.wait_for(ticket)?;
                fetched += bytes;
                progress(fetched);
            }
        }
        Ok(fetched)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.queue.stop() {
            // One of them is in a read that does not come back. It keeps what it uses.
            return;
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its copies, so it cannot have panicked.
            let _ = worker.join();
        }
    }
}
