//! Weights from files: the link's workers read them into the ring, and a pass waits for
//! those that have not arrived.

use std::sync::Arc;
use std::time::{Duration, Instant};

use djinn_device::{Device, Stream, View};
use djinn_model::{Weights, program::TensorId};

use super::{
    PassStats, Result, Streamer,
    copies::{Chunk, Copies, Target},
    experts::{ExpertCache, Pool, Spot, serve},
    link::Link,
    queue::{Meter, Queue, RingPiece, Ticket},
    timeline::{Lane, Recorder},
};
use crate::{WeightLayout, WeightsError};

/// Feeds passes from files.
pub(super) struct FileStreamer {
    link: Link,
    device: Arc<dyn Device>,
    weights: Arc<dyn Weights>,
    ring: Arc<[RingPiece]>,
    cache: ExpertCache,
    /// How each expert is copied into the first slot.
    experts: Vec<Copies>,
    /// What a slot's expert waits for before it can be used.
    arriving: Vec<Option<Ticket>>,
    prefetch: bool,
    recorder: Arc<Recorder>,
    rows_label: u32,
    /// The first visit of this pass, and how many of its visits have ended.
    base: u64,
    ended: usize,
    /// The visit in use.
    current: Option<usize>,
    /// The segment that computes, and since when it has not waited.
    computing: Option<(u32, Instant)>,
    began: Instant,
    meter: Meter,
    stalled: Duration,
}

impl FileStreamer {
    /// Starts the link for a layout.
    pub fn new(
        layout: &WeightLayout,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
        recorder: &Arc<Recorder>,
    ) -> std::result::Result<Self, WeightsError> {
        let ring: Arc<[RingPiece]> = layout.ring().into();
        let queue = Queue::new(Arc::clone(&ring));
        let copy = {
            let (device, weights) = (Arc::clone(device), Arc::clone(weights));
            move |chunk: &Chunk| {
                device.load(chunk.to, &mut |bytes| {
                    weights.read(chunk.file, chunk.from, bytes)
                })
            }
        };
        let experts = layout.experts();
        let (slots, slot_bytes) = (layout.plan().pool_slots, layout.plan().pool.bytes);
        Ok(FileStreamer {
            link: Link::start(queue, layout.link().workers, copy, recorder)?,
            device: Arc::clone(device),
            weights: Arc::clone(weights),
            ring,
            cache: ExpertCache::new(slots, slot_bytes, experts.len()),
            experts,
            arriving: vec![None; slots],
            prefetch: layout.memory().prefetch,
            recorder: Arc::clone(recorder),
            rows_label: layout.rows_label(),
            base: 0,
            ended: 0,
            current: None,
            computing: None,
            began: Instant::now(),
            meter: Meter::default(),
            stalled: Duration::ZERO,
        })
    }

    /// Waits, and counts it as such rather than as computing.
    fn stall<T>(&mut self, label: u32, wait: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let segment = self.computing.map(|(segment, _)| segment);
        self.note_segment();
        let began = Instant::now();
        let waited = wait(self);
        self.stalled += began.elapsed();
        self.recorder.note(Lane::Wait, label, 0, began);
        self.computing = segment.map(|segment| (segment, Instant::now()));
        waited
    }

    /// Notes what was computed since the last wait.
    fn note_segment(&mut self) {
        if let Some((label, since)) = self.computing.take() {
            self.recorder.note(Lane::Compute, label, 0, since);
        }
    }

    /// The piece in use is so no longer, once the device has done what it was given.
    fn end_current(&mut self) -> Result<()> {
        if let Some(visit) = self.current.take() {
            self.device.synchronize(Stream::Compute)?;
            if self.prefetch {
                self.link.queue.finish_visit(self.base + visit as u64);
            }
            self.ended = visit + 1;
        }
        Ok(())
    }

    /// Nobody needs the pieces before this one.
    fn pass_over(&mut self, visit: usize) -> Result<()> {
        assert!(self.ended <= visit, "pieces are used in order");
        if self.prefetch {
            for skipped in self.ended..visit {
                self.link.queue.skip_visit(self.base + skipped as u64)?;
            }
        }
        self.ended = visit;
        Ok(())
    }

    fn load_experts(&mut self, experts: &[usize], arrived: &mut dyn FnMut(u64)) -> Result<()> {
        let mut placed = Vec::with_capacity(experts.len());
        for &expert in experts {
            let Spot::Given(slot) = self.cache.place(expert, &[], &[]) else {
                unreachable!("as many as there are slots, each once")
            };
            self.bring(expert, slot)?;
            placed.push((expert, slot));
        }
        for (expert, slot) in placed {
            self.arrive(expert, slot)?;
            arrived(self.experts[expert].bytes());
        }
        Ok(())
    }
}

impl Streamer for FileStreamer {
    fn load(
        &mut self,
        layout: &WeightLayout,
        experts: &[usize],
        progress: &mut dyn FnMut(u64),
    ) -> std::result::Result<(), WeightsError> {
        let mut loaded = self.link.fetch(&layout.resident(), progress)?;
        self.load_experts(experts, &mut |bytes| {
            loaded += bytes;
            progress(loaded);
        })?;
        self.link.queue.run_ahead(self.prefetch);
        Ok(())
    }

    /// Where reading ahead for it has failed meanwhile, it is tried again.
    fn begin_pass(&mut self) -> Result<()> {
        if self.link.queue.has_failed() {
            self.abort_pass();
        }
        self.link.queue.run_ahead(self.prefetch);
        self.began = Instant::now();
        self.meter = self.link.queue.meter();
        self.stalled = Duration::ZERO;
        Ok(())
    }

    fn begin_segment(&mut self, label: u32) -> Result<()> {
        self.computing = Some((label, Instant::now()));
        Ok(())
    }

    fn end_segment(&mut self) -> Result<()> {
        self.note_segment();
        Ok(())
    }

    fn need(&mut self, visit: usize) -> Result<()> {
        if self.current == Some(visit) {
            return Ok(());
        }
        self.end_current()?;
        self.pass_over(visit)?;
        let label = self.ring[visit].copies.label;
        if self.prefetch {
            let number = self.base + visit as u64;
            if !self.link.queue.has_arrived(number) {
                self.stall(label, |s| s.link.queue.wait_for_visit(number))?;
            }
        } else {
            self.stall(label, |s| {
                let ticket = s.link.queue.demand(s.ring[visit].copies.chunks());
                s.link.queue.wait_for(ticket)
            })?;
        }
        self.current = Some(visit);
        Ok(())
    }

    fn experts(
        &mut self,
        chosen: &[usize],
        run: &mut dyn FnMut(usize, u64) -> Result<()>,
    ) -> Result<()> {
        serve(self, chosen, self.prefetch, run)
    }

    fn rows(&mut self, table: TensorId, numbers: &[i32], to: View) -> Result<()> {
        let extent = self.weights.extent(table);
        let row_bytes = (to.cols * to.dtype.bytes()) as u64;
        let chunks = numbers.iter().enumerate().map(|(row, &number)| Chunk {
            file: extent.file,
            from: extent.offset + number as u64 * row_bytes,
            target: Target::Slab,
            to: to.rows(row, 1).span(),
            label: self.rows_label,
        });
        let chunks: Vec<Chunk> = chunks.collect();
        // Rows of another table may still be in use there.
        self.device.synchronize(Stream::Compute)?;
        self.stall(self.rows_label, |s| {
            let ticket = s.link.queue.demand(chunks);
            s.link.queue.wait_for(ticket)
        })
    }

    fn end_pass(&mut self, rows: usize) -> Result<PassStats> {
        self.end_current()?;
        if self.prefetch {
            // A piece that nobody needed and that could not be read fails nobody.
            match self.pass_over(self.ring.len()) {
                Ok(()) => self.base += self.ring.len() as u64,
                Err(_) => self.abort_pass(),
            }
        }
        self.ended = 0;
        let meter = self.link.queue.meter();
        Ok(PassStats {
            rows,
            seconds: self.began.elapsed().as_secs_f64(),
            link_bytes: meter.bytes - self.meter.bytes,
            link_s: (meter.busy - self.meter.busy).as_secs_f64(),
            stall_s: self.stalled.as_secs_f64(),
        })
    }

    /// Nothing is read until the next pass.
    fn abort_pass(&mut self) {
        // Whatever the device still does with the ring; its own failure was told.
        let _ = self.device.synchronize(Stream::Compute);
        let first = self.base + self.ring.len() as u64;
        self.link.queue.restart(first);
        // What has not arrived never will.
        let arriving = &mut self.arriving;
        let gone = |slot: usize| arriving[slot].take().is_some();
        self.cache.forget(self.experts.len(), gone);
        (self.base, self.ended, self.current) = (first, 0, None);
        self.computing = None;
    }

    fn check_integrity(&self) {
        self.link.queue.check_integrity();
    }
}

impl Pool for FileStreamer {
    fn cache(&mut self) -> &mut ExpertCache {
        &mut self.cache
    }

    fn bring(&mut self, expert: usize, slot: usize) -> Result<()> {
        let there = self.experts[expert].moved(self.cache.shift(slot));
        self.arriving[slot] = Some(self.link.queue.demand(there.chunks()));
        Ok(())
    }

    fn arrive(&mut self, expert: usize, slot: usize) -> Result<()> {
        if let Some(ticket) = self.arriving[slot] {
            let label = self.experts[expert].label;
            self.stall(label, |s| s.link.queue.wait_for(ticket))?;
            self.arriving[slot] = None;
        }
        Ok(())
    }

    fn used(&mut self, _: usize) -> Result<()> {
        // Its slot may be the next one's.
        self.device.synchronize(Stream::Compute)
    }
}
