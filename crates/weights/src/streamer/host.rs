//! Weights from host memory: the device copies them into the ring by itself, beside what
//! it computes. Nothing here waits; events say what comes after what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use djinn_device::{Device, Event, Span, Stream, View};
use djinn_model::{Weights, program::TensorId};

use super::{
    PassStats, Result, Streamer,
    copier::{Copied, Copier, Trip},
    copies::{Chunk, Copies, Target},
    experts::{ExpertCache, Pool, Spot, serve},
    link::Link,
    prefetch::{Prefetcher, RingTrip},
    queue::Queue,
    timeline::Recorder,
    trace::{PassTrace, StreamInterval},
};
use crate::{WeightLayout, WeightsError};

/// Feeds passes from host memory.
pub(super) struct HostStreamer {
    copier: Copier,
    weights: Arc<dyn Weights>,
    workers: usize,
    prefetcher: Prefetcher<Event, Copied>,
    prefetch: bool,
    cache: ExpertCache,
    slots: Vec<Slot>,
    /// How each expert is copied into the first slot.
    experts: Vec<Trip>,
    /// Where each table starts in host memory.
    tables: BTreeMap<TensorId, u64>,
    recorder: Arc<Recorder>,
    /// The first visit of this pass, and how many of its visits have ended.
    base: u64,
    ended: usize,
    /// The visit in use.
    current: Option<usize>,
    /// The segment that computes, and since when; only for the record.
    computing: Option<(u32, Event)>,
    began: Instant,
    trace: PassTrace,
}

/// A slot of the pool.
#[derive(Default)]
struct Slot {
    /// What its expert waits for before it can be used.
    arriving: Option<Copied>,
    /// Where its last use ended.
    used: Option<Event>,
}

impl HostStreamer {
    /// Takes the host memory of a layout.
    pub fn new(
        layout: &WeightLayout,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
        recorder: &Arc<Recorder>,
    ) -> std::result::Result<Self, WeightsError> {
        let host = layout.host();
        let ring = layout.ring();
        let ring = ring.iter().zip(&host.ring).map(|(piece, &from)| RingTrip {
            trip: trip(&piece.copies, from),
            after: piece.after,
        });
        let experts = layout.experts();
        let count = experts.len();
        let experts = experts.iter().zip(&host.experts);
        let slots = layout.plan().pool_slots;
        Ok(HostStreamer {
            copier: Copier {
                device: Arc::clone(device),
                slab: Arc::new(device.host_slab(host.bytes)?),
                chunk: layout.link().chunk,
            },
            weights: Arc::clone(weights),
            workers: layout.link().workers,
            prefetcher: Prefetcher::new(ring.collect()),
            prefetch: layout.memory().prefetch,
            cache: ExpertCache::new(slots, layout.plan().pool.bytes, count),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            experts: experts.map(|(copies, &from)| trip(copies, from)).collect(),
            tables: host.tables.iter().map(|(&id, &(at, _))| (id, at)).collect(),
            recorder: Arc::clone(recorder),
            base: 0,
            ended: 0,
            current: None,
            computing: None,
            began: Instant::now(),
            trace: PassTrace::default(),
        })
    }

    fn device(&self) -> &dyn Device {
        &*self.copier.device
    }

    /// Where the compute stream is now.
    fn here(&self) -> Result<Event> {
        self.device().record(Stream::Compute)
    }

    /// Threads that read files into the slab and into host memory.
    fn link(&self) -> std::result::Result<Link, WeightsError> {
        let device = Arc::clone(&self.copier.device);
        let host = Arc::clone(&self.copier.slab);
        let weights = Arc::clone(&self.weights);
        let copy = move |chunk: &Chunk| {
            let mut fill = |bytes: &mut [u8]| weights.read_to_keep(chunk.file, chunk.from, bytes);
            match chunk.target {
                Target::Slab => device.load(chunk.to, &mut fill),
                Target::Host => host.fill(chunk.to, &mut fill),
            }
        };
        let queue = Queue::new(Arc::new([]));
        Link::start(queue, self.workers, copy, &self.recorder)
    }

    /// Sends for all pieces whose places are known to become free.
    fn run_ahead(&mut self) -> Result<()> {
        let copier = &self.copier;
        self.prefetcher.run(|trip, after| copier.send(trip, after))
    }

    /// The piece in use is so no longer where the compute stream is now. Says where that
    /// is.
    fn end_current(&mut self) -> Result<Event> {
        let here = self.here()?;
        if let Some(visit) = self.current.take() {
            self.ended = visit + 1;
            if self.prefetch {
                self.prefetcher.finish(self.base + visit as u64, &here);
                self.run_ahead()?;
            }
        }
        Ok(here)
    }

    /// Nobody needs the pieces before this one, wherever the compute stream is after `here`.
    fn pass_over(&mut self, visit: usize, here: &Event) -> Result<()> {
        assert!(self.ended <= visit, "pieces are used in order");
        if self.prefetch && self.ended < visit {
            self.prefetcher.skip_to(self.base + visit as u64, here);
            self.run_ahead()?;
        }
        self.ended = visit;
        Ok(())
    }

    /// Lets the compute stream, which is at `here`, wait for a copy.
    fn wait_for(&mut self, copied: Copied, here: Event) -> Result<()> {
        self.device().wait(Stream::Compute, &copied.arrived)?;
        let after = self.here()?;
        if let Some((label, from)) = self.computing.take() {
            let to = here.clone();
            self.trace.segments.push(StreamInterval { label, from, to });
            self.computing = Some((label, after.clone()));
        }
        self.trace.stalls.push(StreamInterval {
            label: copied.label,
            from: here,
            to: after,
        });
        self.trace.copies.push(copied);
        Ok(())
    }
}

/// How a piece that lies in host memory as it will in the slab is copied.
fn trip(copies: &Copies, from: u64) -> Trip {
    Trip {
        from,
        to: copies.span(),
        label: copies.label,
    }
}

impl Streamer for HostStreamer {
    fn load(
        &mut self,
        layout: &WeightLayout,
        experts: &[usize],
        progress: &mut dyn FnMut(u64),
    ) -> std::result::Result<(), WeightsError> {
        let mut pieces = layout.resident();
        pieces.extend(layout.host_copies());
        let copies = layout.experts();
        let mut slots = Vec::with_capacity(experts.len());
        for &expert in experts {
            let Spot::Given(slot) = self.cache.place(expert, &[], &[]) else {
                unreachable!("as many as there are slots, each once")
            };
            slots.push((expert, slot));
        }
        // Experts that all stay are nowhere else.
        let stay = self.experts.is_empty();
        if stay {
            let moved =
                |&(expert, slot): &(usize, usize)| copies[expert].moved(self.cache.shift(slot));
            pieces.extend(slots.iter().map(moved));
        }
        self.link()?.fetch(&pieces, progress)?;
        self.copier.slab.seal()?;
        if !stay {
            for (expert, slot) in slots {
                self.bring(expert, slot)?;
            }
        }
        Ok(())
    }

    fn begin_pass(&mut self) -> Result<()> {
        self.began = Instant::now();
        self.trace = PassTrace::default();
        if self.prefetch {
            self.run_ahead()?;
        }
        Ok(())
    }

    fn begin_segment(&mut self, label: u32) -> Result<()> {
        if self.recorder.is_on() {
            self.computing = Some((label, self.here()?));
        }
        Ok(())
    }

    fn end_segment(&mut self) -> Result<()> {
        if let Some((label, from)) = self.computing.take() {
            let to = self.here()?;
            self.trace.segments.push(StreamInterval { label, from, to });
        }
        Ok(())
    }

    fn need(&mut self, visit: usize) -> Result<()> {
        if self.current == Some(visit) {
            return Ok(());
        }
        let here = self.end_current()?;
        self.pass_over(visit, &here)?;
        let copied = if self.prefetch {
            self.prefetcher.take(self.base + visit as u64)
        } else {
            self.copier.send(self.prefetcher.trip(visit), Some(&here))?
        };
        self.wait_for(copied, here)?;
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
        let row_bytes = to.cols * to.dtype.bytes();
        let mut rows = vec![0; numbers.len() * row_bytes];
        for (row, &number) in rows.chunks_exact_mut(row_bytes).zip(numbers) {
            let span = Span {
                offset: self.tables[&table] + number as u64 * row_bytes as u64,
                bytes: row_bytes as u64,
            };
            self.copier.slab.read(span, row)?;
        }
        self.trace.row_bytes += rows.len() as u64;
        self.device().upload(Stream::Compute, to.span(), &rows)
    }

    fn end_pass(&mut self, rows: usize) -> Result<PassStats> {
        let end = self.end_current()?;
        self.pass_over(self.prefetcher.len(), &end)?;
        if self.prefetch {
            self.base += self.prefetcher.len() as u64;
        }
        self.ended = 0;
        // Whatever was sampled has been read back, so this is past or nearly so; and with
        // it every copy the pass waited for.
        self.device().wait_here(&end)?;
        let now = Instant::now();
        let trace = std::mem::take(&mut self.trace);
        if self.recorder.is_on() {
            trace.record(self.device(), &self.recorder, &end, now)?;
        }
        Ok(PassStats {
            rows,
            seconds: (now - self.began).as_secs_f64(),
            ..trace.stats(self.device())?
        })
    }

    fn abort_pass(&mut self) {
        // Whatever the device still does with ring and pool; its own failure was told.
        for stream in [Stream::Copy, Stream::Compute] {
            let _ = self.device().synchronize(stream);
        }
        let first = self.base + self.prefetcher.len() as u64;
        self.prefetcher.restart(first);
        // A copy may have failed half-way; what stays is nowhere else, and was not copied.
        if !self.experts.is_empty() {
            self.cache.forget(self.experts.len(), |_| true);
        }
        self.slots.fill_with(Slot::default);
        (self.base, self.ended, self.current) = (first, 0, None);
        self.computing = None;
        self.trace = PassTrace::default();
    }

    fn check_integrity(&self) {
        if self.prefetch {
            self.prefetcher.check_integrity();
        }
    }
}

impl Pool for HostStreamer {
    fn cache(&mut self) -> &mut ExpertCache {
        &mut self.cache
    }

    fn bring(&mut self, expert: usize, slot: usize) -> Result<()> {
        let trip = self.experts[expert];
        let to = Span {
            offset: trip.to.offset + self.cache.shift(slot),
            ..trip.to
        };
        let after = if self.prefetch {
            self.slots[slot].used.take()
        } else {
            Some(self.here()?)
        };
        let copied = self.copier.send(Trip { to, ..trip }, after.as_ref())?;
        self.slots[slot].arriving = Some(copied);
        Ok(())
    }

    fn arrive(&mut self, _: usize, slot: usize) -> Result<()> {
        if let Some(copied) = self.slots[slot].arriving.take() {
            let here = self.here()?;
            self.wait_for(copied, here)?;
        }
        Ok(())
    }

    fn used(&mut self, slot: usize) -> Result<()> {
        self.slots[slot].used = Some(self.here()?);
        Ok(())
    }
}
