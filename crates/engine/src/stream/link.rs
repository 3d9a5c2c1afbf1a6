//! The link's workers: threads that copy chunks from the slow tier into the slab.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use djinn_device::{Device, DeviceError};
use djinn_model::Weights;

use super::{
    queue::{Chunk, Queue},
    timeline::{Lane, Recorder},
};
use crate::EngineError;

/// Copies one chunk after the other until it is told to end.
pub(super) fn work(queue: &Queue, mut copy: impl FnMut(&Chunk) -> Result<(), DeviceError>) {
    while let Some(job) = queue.claim() {
        let result = copy(&job.chunk);
        queue.complete(job, result);
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
        self.queue.stop();
        for worker in self.workers.drain(..) {
            // A worker that panicked left its chunk under way; nobody waits any more.
            let _ = worker.join();
        }
    }
}
