//! The streamer: keeps weights ahead of the pass that uses them.
//!
//! A pass asks for pieces in order ([`Streamer::need`]) and waits only for the one it
//! needs next. Ahead of it the link's workers fill the ring; when a pass ends they go
//! on with the first pieces of the next one. Without prefetch the same workers bring
//! a piece when it is asked for, and nothing before: that loop is the oracle of the
//! other, and shows what running ahead is worth.

mod copies;
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

use djinn_device::{Device, Stream};
use djinn_model::Weights;

pub(crate) use measure::RING as MEASURE_RING;
pub use measure::{LinkRate, measure_link};
pub use timeline::{Event, Lane, Timeline};

use crate::{EngineError, blueprint::Blueprint};
use experts::Experts;
use link::Link;
use queue::{Meter, Queue};
use timeline::Recorder;

type Result<T> = std::result::Result<T, EngineError>;

/// Pieces demanded together while loading.
const PIECES_AHEAD: usize = 64;

pub(crate) use copies::{Chunk, Copies};
pub(crate) use queue::RingPiece;

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
    device: Arc<dyn Device>,
    ring: Arc<[RingPiece]>,
    experts: Experts,
    prefetch: bool,
    recorder: Arc<Recorder>,
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

impl Streamer {
    /// Starts the link for a blueprint.
    pub fn new(
        blueprint: &Blueprint,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
    ) -> Result<Self> {
        let recorder = Arc::new(Recorder::new(blueprint.labels()));
        let ring: Arc<[RingPiece]> = blueprint.ring().into();
        let queue = Queue::new(Arc::clone(&ring));
        let workers = blueprint.memory.workers;
        let link = Link::start(queue, workers, device, weights, &recorder)?;
        let (slots, slot_bytes) = (blueprint.plan.pool_slots, blueprint.plan.pool.bytes);
        Ok(Streamer {
            link,
            device: Arc::clone(device),
            ring,
            experts: Experts::new(slots, slot_bytes, blueprint.experts()),
            prefetch: blueprint.memory.prefetch,
            recorder,
            base: 0,
            ended: 0,
            current: None,
            computing: None,
            began: Instant::now(),
            meter: Meter::default(),
            stalled: Duration::ZERO,
        })
    }

    /// Brings in all that stays, and lets the ring fill.
    pub fn load(
        &mut self,
        pieces: &[Copies],
        experts: &[usize],
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let queue = &self.link.queue;
        let mut loaded = 0;
        // A few at a time: enough to keep the link busy, however many there are.
        for few in pieces.chunks(PIECES_AHEAD) {
            let demand = |piece: &Copies| (piece.bytes(), queue.demand(piece.chunks()));
            for (bytes, ticket) in few.iter().map(demand).collect::<Vec<_>>() {
                queue.wait_for(ticket)?;
                loaded += bytes;
                progress(loaded);
            }
        }
        for &expert in experts {
            let there = self.experts.bring(queue, expert, &[], &[]);
            assert!(there, "as many as there are slots");
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
    pub fn timeline(&self) -> Timeline {
        self.recorder.timeline()
    }

    /// A segment's operations begin.
    pub fn begin_segment(&mut self, label: u32) {
        self.computing = Some((label, Instant::now()));
    }

    /// They are done.
    pub fn end_segment(&mut self) {
        if let Some((label, since)) = self.computing.take() {
            self.recorder.note(Lane::Compute, label, 0, since);
        }
    }

    /// Waits, and counts it as such rather than as computing.
    fn stall<T>(&mut self, label: u32, wait: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let segment = self.computing.map(|(segment, _)| segment);
        self.end_segment();
        let began = Instant::now();
        let waited = wait(self);
        self.stalled += began.elapsed();
        self.recorder.note(Lane::Wait, label, 0, began);
        if let Some(segment) = segment {
            self.begin_segment(segment);
        }
        waited
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
        self.end_current()?;
        assert_eq!(self.ended, visit, "pieces are used in order");
        let label = self.ring[visit].copies.label;
        if self.prefetch {
            let number = self.base + visit as u64;
            if !self.link.queue.has_arrived(number) {
                self.stall(label, |s| Ok(s.link.queue.wait_for_visit(number)?))?;
            }
        } else {
            self.stall(label, |s| {
                let ticket = s.link.queue.demand(s.ring[visit].copies.chunks());
                Ok(s.link.queue.wait_for(ticket)?)
            })?;
        }
        self.current = Some(visit);
        Ok(())
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

    /// The pass is over: what it did not need is passed over, and the next pass's
    /// first pieces are already on their way.
    pub fn end_pass(&mut self, rows: usize) -> Result<PassStats> {
        self.end_current()?;
        if self.prefetch {
            let rest = self.ended..self.ring.len();
            let skipped = rest.map(|visit| self.base + visit as u64);
            // A piece that nobody needed and that could not be read fails nobody.
            let passed = { skipped }.try_for_each(|visit| self.link.queue.skip_visit(visit));
            match passed {
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

    /// The pass failed: everything under way is given up. The next pass begins with an
    /// empty ring, and nothing is read until then.
    pub fn abort_pass(&mut self) {
        // Whatever the device still does with the ring; its own failure was told.
        let _ = self.device.synchronize(Stream::Compute);
        let first = self.base + self.ring.len() as u64;
        self.link.queue.restart(first);
        self.experts.give_up();
        (self.base, self.ended, self.current) = (first, 0, None);
        self.computing = None;
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
            let there = self.experts.is_there(expert);
            let wait = |s: &mut Self| s.experts.wait(&s.link.queue, expert);
            let shift = if there {
                wait(self)?
            } else {
                self.stall(self.experts.label(expert), wait)?
            };
            run(turn, shift)?;
            // Its slot may be the next one's.
            self.device.synchronize(Stream::Compute)?;
        }
        Ok(())
    }

    /// Reads rows of a table, one after the other, into a run of the slab.
    pub fn rows(&mut self, chunks: Vec<Chunk>) -> Result<()> {
        let Some(&first) = chunks.first() else {
            return Ok(());
        };
        // Rows of another table may still be in use there.
        self.device.synchronize(Stream::Compute)?;
        self.stall(first.label, |s| {
            let ticket = s.link.queue.demand(chunks);
            Ok(s.link.queue.wait_for(ticket)?)
        })
    }

    /// Panics unless the link has nothing to do but the ring.
    pub fn check_integrity(&self) {
        self.link.queue.check_integrity();
    }
}
