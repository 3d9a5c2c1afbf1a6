//! The streamer: keeps weights ahead of the pass that uses them.
//!
//! A pass asks for pieces in order ([`Streamer::need`]) and waits only for the one it
//! needs next. Ahead of it the link's workers fill the ring; when a pass ends they go
//! on with the first pieces of the next one. Without prefetch the same workers bring
//! a piece when it is asked for, and nothing before: that loop is the oracle of the
//! other, and shows what running ahead is worth.

mod experts;
mod link;
mod measure;
mod queue;
mod sync;
mod timeline;

#[cfg(test)]
mod interleavings;

use std::sync::Arc;
use std::time::{Duration, Instant};

use djinn_device::{Device, Span};
use djinn_model::Weights;

pub use measure::{LinkRate, measure_link};
pub use timeline::{Event, Lane};

use crate::{EngineError, blueprint::Blueprint};
use experts::Experts;
use link::Link;
use queue::{Meter, Queue};
use timeline::Recorder;

type Result<T> = std::result::Result<T, EngineError>;

pub(crate) use queue::{Chunk, Lane as RingLane};

/// What one pass cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassStats {
    /// Rows it ran.
    pub rows: usize,
    /// How long it took.
    pub seconds: f64,
    /// Bytes that came over the link meanwhile.
    pub link_bytes: u64,
    /// How long something was under way meanwhile.
    pub link_s: f64,
    /// How long the pass waited for weights.
    pub stall_s: f64,
}

impl PassStats {
    /// Seconds in which the pass did not wait.
    pub fn compute_s(&self) -> f64 {
        self.seconds - self.stall_s
    }

    /// GB/s while the link had something to do; 0 where it had nothing.
    pub fn link_gb_per_s(&self) -> f64 {
        if self.link_s > 0.0 {
            self.link_bytes as f64 / self.link_s / 1e9
        } else {
            0.0
        }
    }

    /// How much of the shorter of copying and computing happened during the other.
    pub fn overlap(&self) -> f64 {
        let shorter = self.link_s.min(self.compute_s());
        if shorter <= 0.0 {
            return 0.0;
        }
        ((self.link_s + self.compute_s() - self.seconds) / shorter).clamp(0.0, 1.0)
    }
}

/// Feeds passes with weights.
pub(crate) struct Streamer {
    link: Link,
    lanes: Vec<RingLane>,
    experts: Experts,
    prefetch: bool,
    recorder: Arc<Recorder>,
    /// The first visit of this pass, and how many of its visits have ended.
    base: u64,
    ended: usize,
    /// The visit in use.
    current: Option<usize>,
    began: Instant,
    meter: Meter,
    stalled: Duration,
}

impl Streamer {
    /// Starts the link for a blueprint.
    pub fn new(
        blueprint: &Blueprint,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
    ) -> Result<Self> {
        let recorder = Arc::new(Recorder::new(blueprint.labels()));
        let lanes = blueprint.lanes();
        let queue = Queue::new(lanes.clone());
        let workers = blueprint.memory.workers;
        let link = Link::start(queue, workers, device, weights, &recorder)?;
        let (slots, slot_bytes) = (blueprint.plan.pool_slots, blueprint.plan.pool.bytes);
        Ok(Streamer {
            link,
            lanes,
            experts: Experts::new(slots, slot_bytes, blueprint.expert_chunks()),
            prefetch: blueprint.memory.prefetch,
            recorder,
            base: 0,
            ended: 0,
            current: None,
            began: Instant::now(),
            meter: Meter::default(),
            stalled: Duration::ZERO,
        })
    }

    /// Brings in all that stays, and lets the ring fill.
    pub fn load(
        &mut self,
        pieces: Vec<Vec<Chunk>>,
        experts: &[usize],
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let queue = &self.link.queue;
        let bytes = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.to.bytes).sum::<u64>();
        let tickets: Vec<_> = pieces
            .into_iter()
            .map(|chunks| (bytes(&chunks), queue.demand(chunks)))
            .collect();
        for &expert in experts {
            let there = self.experts.bring(queue, expert, &[], &[]);
            assert!(there, "as many as there are slots");
        }
        let mut loaded = 0;
        for (bytes, ticket) in tickets {
            queue.wait_for(ticket)?;
            loaded += bytes;
            progress(loaded);
        }
        for &expert in experts {
            self.experts.wait(queue, expert)?;
            loaded += self.experts.bytes(expert);
            progress(loaded);
        }
        queue.run_ahead(self.prefetch);
        Ok(())
    }

    /// Keeps a record from now on.
    pub fn record(&self) {
        self.recorder.turn_on();
    }

    /// The record.
    pub fn events(&self) -> Vec<Event> {
        self.recorder.events()
    }

    /// Notes that a segment's products took from then till now.
    pub fn note_compute(&self, label: u32, began: Instant) {
        self.recorder.note(Lane::Compute, label, 0, began);
    }

    /// A pass begins. Where reading ahead for it has failed meanwhile, it is tried
    /// again.
    pub fn begin_pass(&mut self) {
        if self.link.queue.has_failed() {
            self.abort_pass();
        }
        self.link.queue.run_ahead(self.prefetch);
        self.began = Instant::now();
        self.meter = self.link.queue.meter();
        self.stalled = Duration::ZERO;
    }

    /// Waits for a piece of the ring; the one before it is no longer in use.
    pub fn need(&mut self, visit: usize) -> Result<()> {
        if self.current == Some(visit) {
            return Ok(());
        }
        self.end_current();
        assert_eq!(self.ended, visit, "pieces are used in order");
        let label = self.lanes[visit].chunks[0].label;
        let queue = &self.link.queue;
        if self.prefetch {
            let number = self.base + visit as u64;
            if !queue.has_arrived(number) {
                let stall = Stall::begin(&self.recorder, &mut self.stalled, label);
                queue.wait_for_visit(number)?;
                stall.end();
            }
        } else {
            let stall = Stall::begin(&self.recorder, &mut self.stalled, label);
            let ticket = queue.demand(self.lanes[visit].chunks.iter().copied());
            queue.wait_for(ticket)?;
            stall.end();
        }
        self.current = Some(visit);
        Ok(())
    }

    fn end_current(&mut self) {
        if let Some(visit) = self.current.take() {
            if self.prefetch {
                self.link.queue.finish_visit(self.base + visit as u64);
            }
            self.ended = visit + 1;
        }
    }

    /// The pass is over: what it did not need is passed over, and the next pass's
    /// first pieces are already on their way.
    pub fn end_pass(&mut self, rows: usize) -> Result<PassStats> {
        self.end_current();
        if self.prefetch {
            for visit in self.ended..self.lanes.len() {
                self.link.queue.skip_visit(self.base + visit as u64)?;
            }
            self.base += self.lanes.len() as u64;
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

    /// The pass failed: everything under way is given up. The next pass begins with an
    /// empty ring, and nothing is read until then.
    pub fn abort_pass(&mut self) {
        let first = self.base + self.lanes.len() as u64;
        self.link.queue.restart(first);
        self.experts.give_up();
        (self.base, self.ended, self.current) = (first, 0, None);
    }

    /// Brings some experts of a block in, those that come next ahead of their turn,
    /// and calls `run` for each in order, with the distance of its slot from the
    /// first.
    pub fn experts(
        &mut self,
        chosen: &[usize],
        mut run: impl FnMut(usize, u64) -> Result<()>,
    ) -> Result<()> {
        let mut secured = 0;
        for &expert in chosen {
            self.experts.touch(expert);
        }
        for (turn, &expert) in chosen.iter().enumerate() {
            let last = if self.prefetch {
                chosen.len()
            } else {
                turn + 1
            };
            secured = secured.max(turn);
            while secured < last {
                let (held, wanted) = (&chosen[turn..secured], &chosen[secured + 1..]);
                let next = chosen[secured];
                if !self.experts.bring(&self.link.queue, next, held, wanted) {
                    break;
                }
                secured += 1;
            }
            let shift = if self.experts.is_there(expert) {
                self.experts.wait(&self.link.queue, expert)?
            } else {
                let label = self.experts.label(expert);
                let stall = Stall::begin(&self.recorder, &mut self.stalled, label);
                let shift = self.experts.wait(&self.link.queue, expert)?;
                stall.end();
                shift
            };
            run(turn, shift)?;
        }
        Ok(())
    }

    /// Reads rows of a table, one after the other, into a run of the slab.
    pub fn rows(&mut self, chunks: Vec<Chunk>) -> Result<()> {
        let Some(first) = chunks.first() else {
            return Ok(());
        };
        let stall = Stall::begin(&self.recorder, &mut self.stalled, first.label);
        let ticket = self.link.queue.demand(chunks);
        self.link.queue.wait_for(ticket)?;
        stall.end();
        Ok(())
    }

    /// Panics unless the link has nothing to do but the ring.
    pub fn check_integrity(&self) {
        self.link.queue.check_integrity();
    }
}

/// The pass waiting.
struct Stall<'a> {
    recorder: &'a Recorder,
    sum: &'a mut Duration,
    label: u32,
    began: Instant,
}

impl<'a> Stall<'a> {
    fn begin(recorder: &'a Recorder, sum: &'a mut Duration, label: u32) -> Self {
        Stall {
            recorder,
            sum,
            label,
            began: Instant::now(),
        }
    }

    fn end(self) {
        *self.sum += self.began.elapsed();
        self.recorder.note(Lane::Wait, self.label, 0, self.began);
    }
}

/// Cuts runs of blocks into chunks of at most `chunk` bytes, placed from `offset` on.
pub(crate) fn chunks(
    runs: &[crate::image::Run],
    offset: u64,
    chunk: u64,
    label: u32,
) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for run in runs {
        for start in (0..run.bytes).step_by(chunk as usize) {
            chunks.push(Chunk {
                file: run.file,
                from: run.from + start,
                to: Span {
                    offset: offset + run.to + start,
                    bytes: chunk.min(run.bytes - start),
                },
                label,
            });
        }
    }
    chunks
}
