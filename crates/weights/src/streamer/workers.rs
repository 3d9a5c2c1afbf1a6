//! The link's workers: threads that copy chunks from files into memory.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use djinn_device::DeviceError;
use djinn_model::Extent;

use crate::{CopyOp, WeightsError};

use super::{
    queue::CopyQueue,
    timeline::{Recorder, TimelineLane},
    transfers::ChunkedCopy,
};

/// Number of pieces that are requested together while weights are loaded.
const PIECES_AHEAD: usize = 64;

/// Copies chunks one after the other until the queue stops. A copy that panics counts as failed,
/// because a pass may wait for it.
pub(super) fn work(
    queue: &CopyQueue,
    mut copy: impl FnMut(&CopyOp<Extent>) -> Result<(), DeviceError>,
) {
    while let Some(job) = queue.claim() {
        let copied = catch_unwind(AssertUnwindSafe(|| copy(&job.chunk)));
        let panicked =
            |_| Err(std::io::Error::other("a link worker panicked while it copied weights").into());
        queue.complete(job, copied.unwrap_or_else(panicked));
    }
}

/// Worker threads and the queue that they serve. The threads end on drop.
pub(super) struct LinkWorkers {
    pub queue: Arc<CopyQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl LinkWorkers {
    /// Starts `count` threads that copy chunks by `copy`.
    pub fn start(
        queue: CopyQueue,
        count: usize,
        copy: impl Fn(&CopyOp<Extent>) -> Result<(), DeviceError> + Clone + Send + 'static,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, WeightsError> {
        let mut workers = LinkWorkers {
            queue: Arc::new(queue),
            threads: Vec::with_capacity(count),
        };
        for number in 0..count {
            let (queue, copy) = (Arc::clone(&workers.queue), copy.clone());
            let recorder = Arc::clone(recorder);
            let body = move || {
                work(&queue, |chunk| {
                    let began = Instant::now();
                    let copied = copy(chunk);
                    let lane = TimelineLane::Link(number);
                    recorder.note(lane, chunk.label, chunk.to.bytes, began);
                    copied
                });
            };
            let thread = std::thread::Builder::new()
                .name(format!("djinn-link-{number}"))
                .spawn(body)
                .map_err(|error| WeightsError::Workers { count, error })?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Copies whole pieces and waits for them, until `progress` breaks. Calls `progress` with the number of
    /// bytes copied so far, and returns the number of all bytes.
    pub fn fetch(
        &self,
        pieces: &[ChunkedCopy],
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u64, WeightsError> {
        let mut fetched = 0;
        // A group of pieces keeps the link busy. Requests for all pieces of a large model would
        // take much memory.
        for group in pieces.chunks(PIECES_AHEAD) {
            let request = |piece: &ChunkedCopy| (piece.bytes(), self.queue.request(piece.chunks()));
            for (bytes, ticket) in group.iter().map(request).collect::<Vec<_>>() {
                self.queue.wait_for(ticket)?;
                fetched += bytes;
                if progress(fetched).is_break() {
                    return Err(WeightsError::Cancelled);
                }
            }
        }
        Ok(fetched)
    }
}

impl Drop for LinkWorkers {
    fn drop(&mut self) {
        if !self.queue.stop() {
            // A thread is in a read that does not return. The thread owns its buffers, so it may
            // outlive the queue.
            return;
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its copies, so the thread cannot have panicked.
            let _ = thread.join();
        }
    }
}
