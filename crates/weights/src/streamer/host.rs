//! Streams weights from host memory: the device copies them into the ring in parallel with its
//! operations. The streamer never waits; events order copies and operations.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use djinn_device::{Device, DeviceError, Event, Span, Stream, View};
use djinn_model::{Extent, Weights, program::TensorId};

use crate::{CopyOp, Placement, Region, WeightLayout, WeightsError};

use super::{
    copier::{Copier, EnqueuedCopy},
    experts::{ExpertLoader, ExpertSlots, run_chosen},
    interface::Streamer,
    prefetch::Prefetcher,
    queue::CopyQueue,
    stats::PassStats,
    timeline::Recorder,
    trace::{PassTrace, StreamInterval},
    transfers,
    workers::LinkWorkers,
};

/// Provides passes with weights from host memory.
pub(super) struct HostStreamer {
    copier: Copier,
    weights: Arc<dyn Weights>,
    /// Number of threads that load files into memory.
    workers: usize,
    prefetcher: Prefetcher<Event, EnqueuedCopy>,
    prefetch: bool,
    slots: ExpertSlots,
    /// State of each slot of the expert pool.
    slot_states: Vec<SlotState>,
    /// Copies of the experts into the first slot; empty if host memory has no copy of them,
    /// because all of them stay.
    experts: Vec<CopyOp<Placement>>,
    /// Whether host memory has its weights.
    is_filled: bool,
    /// Location of each table in host memory.
    tables: BTreeMap<TensorId, Placement>,
    recorder: Arc<Recorder>,
    /// First visit of this pass.
    base: u64,
    /// Number of visits of this pass that are over.
    ended: usize,
    /// Visit that the pass uses now.
    current: Option<usize>,
    /// Label of the segment that computes, and the event at which it began. Set only while the
    /// recorder is on.
    computing: Option<(u32, Event)>,
    began: Instant,
    trace: PassTrace,
}

/// State of a slot of the expert pool.
#[derive(Default)]
struct SlotState {
    /// Copy that the next use of the slot must wait for.
    arriving: Option<EnqueuedCopy>,
    /// End of the last use of the slot.
    used: Option<Event>,
}

impl HostStreamer {
    /// Allocates the host memory of a layout.
    pub fn new(
        layout: &WeightLayout,
        device: &Arc<dyn Device>,
        weights: &Arc<dyn Weights>,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, WeightsError> {
        let plan = layout.plan();
        let slots = plan.pool_slots;
        Ok(HostStreamer {
            copier: Copier {
                device: Arc::clone(device),
                slab: Arc::new(device.host_slab(layout.host_bytes())?),
                chunk: layout.link().chunk,
            },
            weights: Arc::clone(weights),
            workers: layout.link().workers,
            prefetcher: Prefetcher::new(transfers::ring_from_host(layout)),
            prefetch: layout.memory().prefetch,
            slots: ExpertSlots::new(slots, plan.pool.bytes, plan.pool.count),
            slot_states: (0..slots).map(|_| SlotState::default()).collect(),
            experts: transfers::experts_from_host(layout),
            is_filled: false,
            tables: layout.host().tables.clone(),
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

    /// Records an event at the current end of the compute stream.
    fn record_compute(&self) -> Result<Event, DeviceError> {
        self.device().record(Stream::Compute)
    }

    /// Starts threads that read files into the slab and into host memory.
    fn start_workers(&self) -> Result<LinkWorkers, WeightsError> {
        let device = Arc::clone(&self.copier.device);
        let host = Arc::clone(&self.copier.slab);
        let weights = Arc::clone(&self.weights);
        let copy = move |chunk: &CopyOp<Extent>| {
            let Extent { file, offset, .. } = chunk.from;
            let mut fill = |bytes: &mut [u8]| weights.read_to_keep(file, offset, bytes);
            match chunk.to.region {
                Region::Host => host.fill(chunk.to.span(), &mut fill),
                _ => device.load(chunk.to.span(), &mut fill),
            }
        };
        let queue = CopyQueue::new(Arc::new([]));
        LinkWorkers::start(queue, self.workers, copy, &self.recorder)
    }

    /// Reads from files into the slab what host memory will have no copy of, and into host memory
    /// what it lacks. `placed` are the slots of the first experts.
    fn read_files(
        &mut self,
        layout: &WeightLayout,
        placed: &[(usize, usize)],
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), WeightsError> {
        let mut copies = transfers::resident(layout);
        if !self.is_filled {
            copies.extend(transfers::into_host(layout));
        }
        if self.experts.is_empty() {
            let experts = transfers::experts_from_files(layout);
            let shifted = |&(expert, slot): &(usize, usize)| {
                experts[expert].shifted(self.slots.distance(slot))
            };
            copies.extend(placed.iter().map(shifted));
        }
        if !copies.is_empty() {
            self.start_workers()?.fetch(&copies, progress)?;
        }
        if !self.is_filled {
            self.copier.slab.seal()?;
            self.is_filled = true;
        }
        Ok(())
    }

    /// Enqueues copies of resident weights to their places, and makes the compute stream wait for
    /// them.
    fn copy_resident(&self, copies: Vec<CopyOp<Placement>>) -> Result<(), DeviceError> {
        let here = self.record_compute()?;
        for op in copies {
            let copy = self.copier.enqueue(op, Some(&here))?;
            self.device().wait(Stream::Compute, &copy.arrived)?;
        }
        Ok(())
    }

    /// Enqueues every copy of the ring that may start.
    fn fill_ring(&mut self) -> Result<(), DeviceError> {
        let copier = &self.copier;
        self.prefetcher.run(|op, after| copier.enqueue(op, after))
    }

    /// Ends the current visit at the current end of the compute stream. Returns an event at that
    /// end.
    fn end_current(&mut self) -> Result<Event, DeviceError> {
        let here = self.record_compute()?;
        if let Some(visit) = self.current.take() {
            self.ended = visit + 1;
            if self.prefetch {
                self.prefetcher.finish(self.base + visit as u64, &here);
                self.fill_ring()?;
            }
        }
        Ok(here)
    }

    /// Skips all visits before this one. `here` is the current end of the compute stream.
    fn skip_to(&mut self, visit: usize, here: &Event) -> Result<(), DeviceError> {
        assert!(self.ended <= visit, "pieces are used in order");
        if self.prefetch && self.ended < visit {
            self.prefetcher.skip_to(self.base + visit as u64, here);
            self.fill_ring()?;
        }
        self.ended = visit;
        Ok(())
    }

    /// Makes the compute stream wait for a copy. `here` is the current end of the compute stream.
    fn wait_for(&mut self, copy: EnqueuedCopy, here: Event) -> Result<(), DeviceError> {
        self.device().wait(Stream::Compute, &copy.arrived)?;
        let after = self.record_compute()?;
        if let Some((label, from)) = self.computing.take() {
            let to = here.clone();
            self.trace.segments.push(StreamInterval { label, from, to });
            self.computing = Some((label, after.clone()));
        }
        self.trace.stalls.push(StreamInterval {
            label: copy.label,
            from: here,
            to: after,
        });
        self.trace.copies.push(copy);
        Ok(())
    }
}

impl Streamer for HostStreamer {
    fn load(
        &mut self,
        layout: &WeightLayout,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), WeightsError> {
        let placed = self.slots.assign_first(&layout.first_experts());
        self.read_files(layout, &placed, progress)?;
        self.copy_resident(transfers::resident_from_host(layout))?;
        // Host memory has no copy of the experts if all of them stay and are read from files.
        if !self.experts.is_empty() {
            for (expert, slot) in placed {
                self.start_copy(expert, slot)?;
            }
        }
        // A failed copy is an error of loading, not of the first pass.
        Ok(self.device().synchronize(Stream::Copy)?)
    }

    fn begin_pass(&mut self) -> Result<(), DeviceError> {
        self.began = Instant::now();
        self.trace = PassTrace::default();
        if self.prefetch {
            self.fill_ring()?;
        }
        Ok(())
    }

    fn begin_segment(&mut self, label: u32) -> Result<(), DeviceError> {
        if self.recorder.is_on() {
            self.computing = Some((label, self.record_compute()?));
        }
        Ok(())
    }

    fn end_segment(&mut self) -> Result<(), DeviceError> {
        if let Some((label, from)) = self.computing.take() {
            let to = self.record_compute()?;
            self.trace.segments.push(StreamInterval { label, from, to });
        }
        Ok(())
    }

    fn need(&mut self, visit: usize) -> Result<(), DeviceError> {
        if self.current == Some(visit) {
            return Ok(());
        }
        let here = self.end_current()?;
        self.skip_to(visit, &here)?;
        let copy = if self.prefetch {
            self.prefetcher.take(self.base + visit as u64)
        } else {
            let op = self.prefetcher.copy(visit);
            self.copier.enqueue(op, Some(&here))?
        };
        self.wait_for(copy, here)?;
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
        let row_bytes = to.cols * to.dtype.bytes();
        let mut rows = vec![0; numbers.len() * row_bytes];
        for (row, &number) in rows.chunks_exact_mut(row_bytes).zip(numbers) {
            let span = Span {
                offset: self.tables[&table].offset + number as u64 * row_bytes as u64,
                bytes: row_bytes as u64,
            };
            self.copier.slab.read(span, row)?;
        }
        self.trace.row_bytes += rows.len() as u64;
        self.device().upload(Stream::Compute, to.span(), &rows)
    }

    fn end_pass(&mut self, rows: usize) -> Result<PassStats, DeviceError> {
        let end = self.end_current()?;
        self.skip_to(self.prefetcher.len(), &end)?;
        if self.prefetch {
            self.base += self.prefetcher.len() as u64;
        }
        self.ended = 0;
        // The engine has read the sampled tokens back, so this wait is short. It also covers all
        // copies that the pass waited for.
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
        // The device may still use ring and pool. An earlier call reported a failure of the
        // device.
        for stream in [Stream::Copy, Stream::Compute] {
            let _ = self.device().synchronize(stream);
        }
        let first = self.base + self.prefetcher.len() as u64;
        self.prefetcher.restart(first);
        // A copy may have failed half-way. If all experts stay, a pass copies none of them, and
        // no other copy of them exists.
        if !self.experts.is_empty() {
            self.slots.remove_lost(|_| true);
        }
        self.slot_states.fill_with(SlotState::default);
        (self.base, self.ended, self.current) = (first, 0, None);
        self.computing = None;
        self.trace = PassTrace::default();
    }

    fn suspend(&mut self) -> Result<(), DeviceError> {
        for stream in [Stream::Copy, Stream::Compute] {
            self.device().synchronize(stream)?;
        }
        self.abort_pass();
        self.slots.remove_lost(|_| true);
        Ok(())
    }

    fn switch(&mut self, layout: &WeightLayout, from: usize) -> Result<(), WeightsError> {
        let level = layout.level();
        let returning = transfers::units_from_host(layout, level..from.max(level));
        if let Err(error) = self.copy_resident(returning) {
            // Nothing may write to the places of the units afterwards.
            let _ = self.device().synchronize(Stream::Copy);
            return Err(error.into());
        }
        // Copies of the old ring may be in flight. The copies of the new ring follow them on the
        // same stream, and no pass uses the ring now.
        self.prefetcher = Prefetcher::new(transfers::ring_from_host(layout));
        (self.base, self.ended, self.current) = (0, 0, None);
        Ok(())
    }

    fn check_integrity(&self) {
        if self.prefetch {
            self.prefetcher.check_integrity();
        }
    }
}

impl ExpertLoader for HostStreamer {
    fn slots(&mut self) -> &mut ExpertSlots {
        &mut self.slots
    }

    fn start_copy(&mut self, expert: usize, slot: usize) -> Result<(), DeviceError> {
        let op = self.experts[expert].shifted(self.slots.distance(slot));
        let after = if self.prefetch {
            self.slot_states[slot].used.take()
        } else {
            Some(self.record_compute()?)
        };
        let copy = self.copier.enqueue(op, after.as_ref())?;
        self.slot_states[slot].arriving = Some(copy);
        Ok(())
    }

    fn await_copy(&mut self, _: usize, slot: usize) -> Result<(), DeviceError> {
        if let Some(copy) = self.slot_states[slot].arriving.take() {
            let here = self.record_compute()?;
            self.wait_for(copy, here)?;
        }
        Ok(())
    }

    fn release(&mut self, slot: usize) -> Result<(), DeviceError> {
        self.slot_states[slot].used = Some(self.record_compute()?);
        Ok(())
    }
}
