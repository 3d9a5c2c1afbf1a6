//! The link's workers: threads that copy chunks from the slow tier into the slab.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use djinn_device::{Device, DeviceError};
use djinn_model::Weights;

use super::{
    copies::Chunk,
    queue::Queue,
    timeline::{Lane, Recorder},
};
use crate::EngineError;

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
    /// Starts `count` workers.
    pub fn start(
        queue: Queue,
        count: usize,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, EngineError> {
        let mut link = Link {
            queue: Arc::new(queue),
            workers: Vec::with_capacity(count),
        };
        for number in 0..count {
            let queue = Arc::clone(&link.queue);
            let (device, weights) = (Arc::clone(device), Arc::clone(weights));
            let recorder = Arc::clone(recorder);
            let body = move || {
                work(&queue, |chunk| {
                    let began = Instant::now();
                    let copied = device.load(chunk.to, &mut |bytes| {
                        weights.read(chunk.file, chunk.from, bytes)
                    });
                    let lane = Lane::Link(number);
                    recorder.note(lane, chunk.label, chunk.to.bytes, began);
                    copied
                });
            };
            let worker = std::thread::Builder::new()
                .name(format!("djinn-link-{number}"))
                .spawn(body)
                .map_err(|error| EngineError::Workers { count, error })?;
            link.workers.push(worker);
        }
        Ok(link)
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
