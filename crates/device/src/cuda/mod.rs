//! NVIDIA cards: a slab of their memory, streams, and kernels that the driver compiles
//! from text. The driver is found at run time; building needs nothing of CUDA.
//!
//! Operations are put on the compute stream and return at once. A few are held back until
//! the next is known, since some go together in one launch (`work.rs`). What an operation
//! reads from the slab and finds to be no place (a row number beyond its table, a page
//! that is not there) is noted by the card and told by the next download.

mod args;
mod attention;
mod backend;
mod blas;
mod books;
mod card;
mod event;
mod facts;
mod graph;
mod kernels;
mod link;
mod nvml;
mod ops;
mod pinned;
mod product;
mod scratch;
mod transfer;
mod work;

use std::sync::{Arc, Mutex, PoisonError};

use crate::check::Op;
use crate::{
    Attention, Device, DeviceInfo, Edit, Event, Fill, HostRows, HostSlab, KvLayer, PassLimits,
    Phase, Reduction, Result, Rows, Span, Stream, View, Weight,
};
pub use backend::CudaBackend;
pub use card::Card;
use djinn_types::{Activation, NormKind, RopeStyle};
pub use facts::{
    CardFacts, PciLink, Version, driver_present, driver_version, library_present,
    management_present,
};
pub use kernels::ROWS_MAX;
pub use link::{Direction, HostMemory, LinkBench, Transfer, measure_link, measure_memory};

use card::{Memory, Queue};
use event::Events;
use graph::{Graphs, Next};
use pinned::Pinned;
use scratch::Scratch;
use work::Work;

/// A card as a device.
pub struct CudaDevice {
    // In the order in which they are given back.
    graphs: Mutex<Graphs>,
    slab: Memory,
    /// Bytes of that which are the caller's; what follows is this device's own.
    slab_bytes: u64,
    scratch: Scratch,
    /// Where kernels note what they found wrong.
    fault: Pinned,
    compute: Queue,
    copy: Queue,
    page_in: Queue,
    page_out: Queue,
    /// Host memory that loads pass through; one for each thread that loads at a time.
    staging: Mutex<Vec<Pinned>>,
    events: Arc<Events>,
    work: Mutex<Work>,
    card: Arc<Card>,
}

impl CudaDevice {
    /// Takes a slab of a card's memory, and what operations need behind it.
    pub fn new(card: &Arc<Card>, slab_bytes: u64, limits: PassLimits) -> Result<Self> {
        let scratch = Scratch(limits);
        let slab_end = slab_bytes.next_multiple_of(crate::ALIGN);
        Ok(CudaDevice {
            graphs: Mutex::default(),
            slab: Memory::new(card, slab_end + scratch.bytes())?,
            slab_bytes,
            scratch,
            fault: Pinned::new(4)?,
            compute: Queue::new(card, false)?,
            copy: Queue::new(card, true)?,
            page_in: Queue::new(card, false)?,
            page_out: Queue::new(card, false)?,
            staging: Mutex::default(),
            events: Events::new(card),
            work: Mutex::default(),
            card: Arc::clone(card),
        })
    }

    fn op(&self, name: &'static str) -> Op {
        Op {
            name,
            base: std::ptr::without_provenance_mut(self.slab.address as usize),
            slab_bytes: self.slab_bytes,
        }
    }

    fn stream(&self, stream: Stream) -> &Queue {
        match stream {
            Stream::Compute => &self.compute,
            Stream::Copy => &self.copy,
            Stream::PageIn => &self.page_in,
            Stream::PageOut => &self.page_out,
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nothing may run on what is about to be given back.
        let _ = self.card.enter();
        for queue in [&self.compute, &self.copy, &self.page_in, &self.page_out] {
            let _ = queue.wait();
        }
    }
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.card.label(),
            detail: self.card.name().to_owned(),
            slab_bytes: self.slab_bytes,
        }
    }

    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        self.do_load(dst, fill)
    }
    fn loaded(&self) {
        self.do_loaded();
    }
    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        self.do_host_slab(bytes)
    }
    fn bring(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        self.do_bring(stream, src, from, dst)
    }
    fn send(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        self.do_send(stream, src, dst, to)
    }
    fn bring_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        self.do_bring_rows(stream, src, rows)
    }
    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        self.do_copy(src, dst)
    }
    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        self.do_upload(stream, dst, src)
    }
    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        let src = self.op("download").f32("src", src)?;
        self.read_back("download", src, dst)
    }
    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        let src = self.op("download_ids").i32("src", src)?;
        self.read_back("download_ids", src, dst)
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.do_record(stream)
    }
    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        self.do_wait(stream, event)
    }
    fn is_past(&self, event: &Event) -> Result<bool> {
        self.do_is_past(event)
    }
    fn wait_here(&self, event: &Event) -> Result<()> {
        self.do_wait_here(event)
    }
    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        self.do_seconds_between(from, to)
    }
    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.do_synchronize(stream)
    }
    fn replay(&self, number: u64, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.card.enter()?;
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        // What was replayed leaves nothing behind that is known here, nor may what is
        // recorded count on anything.
        self.forget()?;
        let run = |work: &mut dyn FnMut() -> Result<()>| work().and_then(|()| self.flush());
        let done = match graphs.next(number, self.compute.stream)? {
            Next::Done => Ok(()),
            Next::Run => run(work).map(|()| graphs.ran(number)),
            Next::Record => match graphs.record(number, self.compute.stream, || run(work)) {
                Ok(true) => Ok(()),
                Ok(false) => self.forget().and_then(|()| run(work)),
                Err(error) => Err(error),
            },
        };
        self.forget().and(done)
    }

    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()> {
        self.do_gather(table, ids, out, accumulate)
    }
    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        self.do_scatter_add(src, ids, weights, out)
    }
    fn norm(
        &self,
        kind: NormKind,
        eps: f32,
        x: View,
        weight: View,
        bias: Option<View>,
        out: View,
    ) -> Result<()> {
        self.do_norm(kind, eps, x, weight, bias, out)
    }
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        phase: Phase,
    ) -> Result<()> {
        self.do_linear(x, weight, bias, out, phase)
    }
    fn expect(&self, weight: Weight) -> Result<()> {
        self.do_expect(weight)
    }
    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()> {
        self.do_rope_table(positions, frequencies, scale, out)
    }
    fn rope(&self, x: View, table: View, d_head: usize, style: RopeStyle) -> Result<()> {
        self.do_rope(x, table, d_head, style)
    }
    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        self.do_append(k, v, rows, kv)
    }
    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.do_attend(q, rows, kv, how, out)
    }
    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.do_pattern(q, rows, kv, how, out)
    }
    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        self.do_mix(pattern, rows, kv, how, out)
    }
    fn activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        self.do_activate(f, x, out)
    }
    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        self.do_gate(f, gate, up, out)
    }
    fn add(&self, x: View, out: View) -> Result<()> {
        self.do_add(x, out)
    }
    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()> {
        self.do_split(x, first, stride, width, out)
    }
    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()> {
        self.do_route(logits, renormalise, ids, weights)
    }
    fn sample(&self, x: View, draws: View, ids: View) -> Result<()> {
        self.do_sample(x, draws, ids)
    }
    fn edit(&self, x: View, edit: Edit) -> Result<()> {
        self.do_edit(x, edit)
    }
    fn reduce(&self, x: View, how: Reduction, out: View) -> Result<()> {
        self.do_reduce(x, how, out)
    }
}
