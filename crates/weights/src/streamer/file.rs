//! Streams weights from files: worker threads read pieces into the ring, and a pass waits
//! for pieces that have not arrived.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use djinn_device::{Device, DeviceError, Stream, View};
use djinn_model::{Extent, Weights, program::TensorId};

use crate::{CopyOp, Placement, Region, WeightLayout, WeightsError};

use super::{
    experts::{ExpertLoader, ExpertSlots, run_chosen},
    interface::Streamer,
    queue::{CopyQueue, LinkMeter, Ticket},
    stats::PassStats,
    timeline::{Recorder, TimelineLane},
    transfers::{self, ChunkedCopy, RingCopy},
    workers::LinkWorkers,
};

/// Provides passes with weights from files.
pub(super) struct FileStreamer {
    link: LinkWorkers,
    device: Arc<dyn Device>,
    weights: Arc<dyn Weights>,
    /// Copies that fill the ring, by visit.
    ring: Arc<[RingCopy<ChunkedCopy>]>,
    slots: ExpertSlots,
    /// Copies of the experts into the first slot.
    experts: Vec<ChunkedCopy>,
    /// Copy in flight into each slot.
    arriving: Vec<Option<Ticket>>,
    prefetch: bool,
    recorder: Arc<Recorder>,
    rows_label: u32,
    /// First visit of this pass.
    base: u64,
    /// Number of visits of this pass that are over.
    ended: usize,
    /// Visit that the pass uses now.
    current: Option<usize>,
    /// Label of the segment that computes, and the end of its last wait.
    computing: Option<(u32, Instant)>,
    began: Instant,
    /// Work of the link before this pass.
    meter: LinkMeter,
    stalled: Duration,
}

impl FileStreamer {
    /// Starts the workers for a layout.
    pub fn new(
        layout: &WeightLayout,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, WeightsError> {
        let ring: Arc<[_]> = transfers::ring_from_files(layout).into();
        let queue = CopyQueue::new(Arc::clone(&ring));
        let copy = {
            let (device, weights) = (Arc::clone(device), Arc::clone(weights));
            move |chunk: &CopyOp<Extent>| {
                let Extent { file, offset, .. } = chunk.from;
                device.load(chunk.to.span(), &mut |bytes| {
                    weights.read(file, offset, bytes)
                })
            }
        };
        let experts = transfers::experts_from_files(layout);
        let (slots, slot_bytes) = (layout.plan().pool_slots, layout.plan().pool.bytes);
        Ok(FileStreamer {
            link: LinkWorkers::start(queue, layout.link().workers, copy, recorder)?,
            device: Arc::clone(device),
            weights: Arc::clone(weights),
            ring,
            slots: ExpertSlots::new(slots, slot_bytes, experts.len()),
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
            meter: LinkMeter::default(),
            stalled: Duration::ZERO,
        })
    }

    /// Waits, and counts the time as a stall of the pass.
    fn stall<T>(&mut self, label: u32, wait: impl FnOnce(&mut Self) -> T) -> T {
        let segment = self.computing.map(|(segment, _)| segment);
        self.record_segment();
        let began = Instant::now();
        let waited = wait(self);
        self.stalled += began.elapsed();
        self.recorder.note(TimelineLane::Wait, label, 0, began);
        self.computing = segment.map(|segment| (segment, Instant::now()));
        waited
    }

    /// Requests chunks and waits for them.
    fn fetch_now(
        &mut self,
        label: u32,
        chunks: impl IntoIterator<Item = CopyOp<Extent>>,
    ) -> Result<(), DeviceError> {
        self.stall(label, |s| {
            let ticket = s.link.queue.request(chunks);
            s.link.queue.wait_for(ticket)
        })
    }

    /// Records the computation since the last wait.
    fn record_segment(&mut self) {
        if let Some((label, since)) = self.computing.take() {
            self.recorder.note(TimelineLane::Compute, label, 0, since);
        }
    }

    /// Waits until the device has finished with the piece in use, and ends its visit.
    fn end_current(&mut self) -> Result<(), DeviceError> {
        if let Some(visit) = self.current.take() {
            self.device.synchronize(Stream::Compute)?;
            if self.prefetch {
                self.link.queue.finish_visit(self.base + visit as u64);
            }
            self.ended = visit + 1;
        }
        Ok(())
    }

    /// Skips all visits before this one.
    fn skip_to(&mut self, visit: usize) -> Result<(), DeviceError> {
        assert!(self.ended <= visit, "pieces are used in order");
        if self.prefetch {
            for skipped in self.ended..visit {
                self.link.queue.skip_visit(self.base + skipped as u64)?;
            }
        }
        self.ended = visit;
        Ok(())
    }
}

impl Streamer for FileStreamer {
    fn load(
        &mut self,
        layout: &WeightLayout,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), WeightsError> {
        let mut loaded = self.link.fetch(&transfers::resident(layout), progress)?;
        let placed = self.slots.assign_first(&layout.first_experts());
        for &(expert, slot) in &placed {
            self.start_copy(expert, slot)?;
        }
        for (expert, slot) in placed {
            self.await_copy(expert, slot)?;
            loaded += self.experts[expert].bytes();
            if progress(loaded).is_break() {
                return Err(WeightsError::Cancelled);
            }
        }
        self.link.queue.set_prefetch(self.prefetch);
        Ok(())
    }

    fn begin_pass(&mut self) -> Result<(), DeviceError> {
        // Prefetch may have failed since the last pass. This pass tries again.
        if self.link.queue.has_failed() {
            self.abort_pass();
        }
        self.link.queue.set_prefetch(self.prefetch);
        self.began = Instant::now();
        self.meter = self.link.queue.meter();
        self.stalled = Duration::ZERO;
        Ok(())
    }

    fn begin_segment(&mut self, label: u32) -> Result<(), DeviceError> {
        self.computing = Some((label, Instant::now()));
        Ok(())
    }

    fn end_segment(&mut self) -> Result<(), DeviceError> {
        self.record_segment();
        Ok(())
    }

    fn need(&mut self, visit: usize) -> Result<(), DeviceError> {
        if self.current == Some(visit) {
            return Ok(());
        }
        self.end_current()?;
        self.skip_to(visit)?;
        let ring = Arc::clone(&self.ring);
        let copy = &ring[visit].copy;
        if self.prefetch {
            let number = self.base + visit as u64;
            if !self.link.queue.has_arrived(number) {
                self.stall(copy.label(), |s| s.link.queue.wait_for_visit(number))?;
            }
        } else {
            self.fetch_now(copy.label(), copy.chunks())?;
        }
        self.current = Some(visit);
        Ok(())
    }

    fn experts(
        &mut self,
        chosen: &[usize],
        run: &mut dyn FnMut(usize, u64) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        run_chosen(self, chosen, self.prefetch, run)
    }

    fn rows(&mut self, table: TensorId, numbers: &[i32], to: View) -> Result<(), DeviceError> {
        let stored = self.weights.extent(table);
        let bytes = (to.cols * to.dtype.bytes()) as u64;
        let label = self.rows_label;
        let chunks = numbers.iter().enumerate().map(|(row, &number)| CopyOp {
            from: Extent {
                file: stored.file,
                offset: stored.offset + number as u64 * bytes,
                bytes,
            },
            to: Placement {
                region: Region::Resident,
                offset: to.rows(row, 1).offset,
                bytes,
            },
            label,
        });
        let chunks: Vec<CopyOp<Extent>> = chunks.collect();
        // Operations may still read rows of another table there.
        self.device.synchronize(Stream::Compute)?;
        self.fetch_now(label, chunks)
    }

    fn end_pass(&mut self, rows: usize) -> Result<PassStats, DeviceError> {
        self.end_current()?;
        if self.prefetch {
            // The pass succeeded. A failed read of a piece that the pass did not need is not an
            // error.
            match self.skip_to(self.ring.len()) {
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
            ..PassStats::default()
        })
    }

    fn abort_pass(&mut self) {
        // The device may still read the ring. An earlier call reported a failure of the device.
        let _ = self.device.synchronize(Stream::Compute);
        let first = self.base + self.ring.len() as u64;
        self.link.queue.restart(first);
        // The restart dropped the copies that had not arrived.
        let arriving = &mut self.arriving;
        let lost = |slot: usize| arriving[slot].take().is_some();
        self.slots.remove_lost(lost);
        (self.base, self.ended, self.current) = (first, 0, None);
        self.computing = None;
    }

    fn suspend(&mut self) -> Result<(), DeviceError> {
        self.abort_pass();
        // A read that does not return may still write to the memory.
        self.link.queue.check()?;
        self.slots.remove_lost(|_| true);
        Ok(())
    }

    fn switch(&mut self, layout: &WeightLayout, from: usize) -> Result<(), WeightsError> {
        let level = layout.level();
        let returning = transfers::units_from_files(layout, level..from.max(level));
        let switched = self
            .link
            .fetch(&returning, &mut |_| ControlFlow::Continue(()));
        let switched = switched.and_then(|_| {
            let ring: Arc<[_]> = transfers::ring_from_files(layout).into();
            self.link.queue.install(Arc::clone(&ring))?;
            self.ring = ring;
            (self.base, self.ended, self.current) = (0, 0, None);
            Ok(())
        });
        if switched.is_err() {
            self.abort_pass();
        }
        self.link.queue.set_prefetch(self.prefetch);
        switched
    }

    fn check_integrity(&self) {
        self.link.queue.check_integrity();
    }
}

impl ExpertLoader for FileStreamer {
    fn slots(&mut self) -> &mut ExpertSlots {
        &mut self.slots
    }

    fn start_copy(&mut self, expert: usize, slot: usize) -> Result<(), DeviceError> {
        let copy = self.experts[expert].shifted(self.slots.distance(slot));
        self.arriving[slot] = Some(self.link.queue.request(copy.chunks()));
        Ok(())
    }

    fn await_copy(&mut self, expert: usize, slot: usize) -> Result<(), DeviceError> {
        if let Some(ticket) = self.arriving[slot] {
            let label = self.experts[expert].label();
            self.stall(label, |s| s.link.queue.wait_for(ticket))?;
            self.arriving[slot] = None;
        }
        Ok(())
    }

    fn release(&mut self, _: usize) -> Result<(), DeviceError> {
        // The next copy may overwrite the slot, so the device must have finished with it.
        self.device.synchronize(Stream::Compute)
    }
}
