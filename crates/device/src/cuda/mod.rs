//! NVIDIA cards: a slab of their memory, streams, and kernels that the driver compiles
//! from text. The driver is found at run time; building needs nothing of CUDA.
//!
//! Operations are put on the compute stream and return at once. What an operation reads
//! from the slab and finds to be no place (a row number beyond its table, a page that is
//! not there) is noted on the card and told by the next download.

mod card;
mod event;
mod facts;
mod kernels;
mod link;
mod nvml;
mod pinned;

use std::ffi::c_void;
use std::ptr::from_mut;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use crate::check::{Mat, Op};
use crate::{
    Activation, Attention, DType, Device, DeviceError, DeviceInfo, Edit, Event, Fill, HostSlab,
    KvLayer, NormKind, Order, Phase, Result, RopeStyle, Rows, Span, Stream, View, Weight,
};
pub use card::Card;
pub use facts::{
    CardFacts, PciLink, Version, driver_present, driver_version, library_present,
    management_present,
};
pub use link::{Direction, HostMemory, LinkBench, Transfer, measure_link, measure_memory};

use card::{Memory, Pinned, Queue, Said};
use event::{Events, Mark};
use kernels::{AttendArg, KvArg, MatArg, dtype_arg};
use pinned::{GRANULE, Registered};

/// Threads of a block, as the sources have it.
const THREADS: usize = 256;
/// Outputs of a block where a warp takes four.
const OUTPUTS: usize = THREADS / 32 * 4;
/// Rows that share a read of the weights.
const ROWS: usize = 8;

/// A card as a device.
pub struct CudaDevice {
    // In the order in which they are given back.
    slab: Memory,
    /// What kernels found wrong.
    fault: Memory,
    compute: Queue,
    copy: Queue,
    /// Host memory that loads pass through; one for each thread that loads at a time.
    staging: Mutex<Vec<Pinned>>,
    events: Arc<Events>,
    card: Arc<Card>,
}

/// A launch's size: blocks by rows, threads of a block, shared bytes.
type Size = ((usize, usize), usize, usize);

/// Puts a kernel on the compute stream.
macro_rules! launch {
    ($device:expr, $name:expr, $size:expr; $($argument:expr),* $(,)?) => {{
        // SAFETY: each argument is of its parameter's type (see the sources), was checked
        // to lie in the slab, and the slab outlives the streams' work. The driver copies
        // arguments before the call returns, until when these live.
        unsafe { $device.put($name, $size, &mut [$(from_mut(&mut { $argument }).cast()),*]) }
    }};
}

impl CudaDevice {
    /// Takes a slab of a card's memory.
    pub fn new(card: &Arc<Card>, slab_bytes: u64) -> Result<Self> {
        Ok(CudaDevice {
            slab: Memory::new(card, slab_bytes)?,
            fault: Memory::new(card, 4)?,
            compute: Queue::new(card, false)?,
            copy: Queue::new(card, true)?,
            staging: Mutex::default(),
            events: Events::new(card),
            card: Arc::clone(card),
        })
    }

    /// What an event is on this device.
    fn mark<'e>(&self, event: &'e Event) -> Result<&'e Mark> {
        match event.mark() {
            Some(mark) => Ok(mark),
            None => self.op("event").fail("an event of another device".into()),
        }
    }

    fn op(&self, name: &'static str) -> Op {
        Op {
            name,
            base: std::ptr::without_provenance_mut(self.slab.address as usize),
            slab_bytes: self.slab.bytes,
        }
    }

    /// # Safety
    /// As [`Kernels::launch`] says.
    unsafe fn put(
        &self,
        name: &'static str,
        size: Size,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.card.enter()?;
        // SAFETY: the caller's.
        unsafe {
            self.card
                .kernels()
                .launch(name, size, self.compute.stream, arguments)
        }
    }

    fn stream(&self, stream: Stream) -> &Queue {
        match stream {
            Stream::Compute => &self.compute,
            Stream::Copy => &self.copy,
        }
    }

    /// Waits for all operations, and says what they found wrong.
    fn settle(&self) -> Result<()> {
        self.card.enter()?;
        self.compute.wait()?;
        let mut fault = [0i32];
        // SAFETY: four bytes on the card, and four here.
        unsafe { result::memcpy_dtoh_sync(&mut fault, self.fault.address) }.said("reading back")?;
        let (op, what) = match fault[0] {
            0 => return Ok(()),
            1 => ("gather", "the rows of table"),
            2 => ("scatter_add", "the rows of out"),
            _ => ("attention", "the pages there are"),
        };
        // SAFETY: the same four bytes; nothing runs now.
        unsafe { result::memset_d8_sync(self.fault.address, 0, 4) }.said("clearing")?;
        let detail = format!("an id is not among {what}");
        Err(DeviceError::Shape { op, detail })
    }

    fn read_back<T>(&self, src: Mat<T>, dst: &mut [T]) -> Result<()> {
        let op = self.op("download");
        op.ensure(src.rows.checked_mul(src.cols) == Some(dst.len()), || {
            format!(
                "[{}, {}] does not fill {} elements",
                src.rows,
                src.cols,
                dst.len()
            )
        })?;
        self.settle()?;
        if dst.is_empty() {
            return Ok(());
        }
        let width = src.cols * size_of::<T>();
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: src.address(),
            srcArray: std::ptr::null_mut(),
            srcPitch: src.stride.max(src.cols) * size_of::<T>(),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: dst.as_mut_ptr().cast(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            dstPitch: width,
            WidthInBytes: width,
            Height: src.rows,
        };
        // SAFETY: a checked matrix of the slab, and as many elements here.
        unsafe { sys::cuMemcpy2DUnaligned_v2(&raw const copy) }
            .result()
            .said("reading back")
    }

    /// A float input and its dtype's number.
    fn floats(&self, op: Op, what: &str, view: View) -> Result<(MatArg, i32)> {
        let mat = MatArg::new(op.name, op.floats(what, view)?, view.dtype)?;
        Ok((mat, dtype_arg(view.dtype)))
    }

    fn f32(&self, op: Op, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.f32(what, view)?, DType::F32)
    }

    fn i32(&self, op: Op, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.i32(what, view)?, DType::I32)
    }

    fn out(&self, op: Op, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.out(what, view)?, DType::F32)
    }

    /// A bias that may be left out: where it is, its dtype, whether it is there.
    fn bias(&self, op: Op, bias: Option<View>, cols: usize) -> Result<(MatArg, i32, i32)> {
        let Some(bias) = bias else {
            return Ok((MatArg::NONE, 0, 0));
        };
        op.shape("bias", bias, 1, cols)?;
        let (mat, dtype) = self.floats(op, "bias", bias)?;
        Ok((mat, dtype, 1))
    }

    /// What all attention shares: pages, rows and how they attend.
    fn attention(
        &self,
        op: Op,
        rows: Rows,
        kv: &KvLayer,
        how: Attention,
        count: usize,
    ) -> Result<([MatArg; 3], KvArg, AttendArg)> {
        op.pages(kv)?;
        let whole = how.heads > 0 && how.heads.is_multiple_of(kv.kv_heads);
        op.ensure(whole, || {
            format!("{} heads over {} key-value heads", how.heads, kv.kv_heads)
        })?;
        let attend = AttendArg {
            heads: how.heads as i32,
            window: how
                .window
                .map_or(0, |w| i32::try_from(w).unwrap_or(i32::MAX)),
            scale: how.scale,
        };
        let kv = KvArg::new(self.slab.address, kv);
        Ok((self.whose(op, rows, count)?, kv, attend))
    }

    fn whose(&self, op: Op, rows: Rows, count: usize) -> Result<[MatArg; 3]> {
        op.shape("positions", rows.positions, count, 1)?;
        op.shape("sequences", rows.sequences, count, 1)?;
        Ok([
            self.i32(op, "positions", rows.positions)?,
            self.i32(op, "sequences", rows.sequences)?,
            self.i32(op, "tables", rows.tables)?,
        ])
    }

    /// Shared bytes for every key a row could see.
    fn scores(&self, op: Op, rows: Rows, kv: &KvLayer) -> Result<usize> {
        let keys = rows.tables.cols.saturating_mul(kv.page_tokens);
        let most = self.card.kernels().shared_max / 4;
        op.ensure(keys <= most, || {
            format!("contexts of {keys} keys; this card holds the scores of {most}")
        })?;
        Ok(4 * keys)
    }
}

/// A thread for every element.
fn elements(view: View) -> Size {
    ((view.cols.div_ceil(THREADS), view.rows), THREADS, 0)
}

/// A block for every row.
fn by_row(view: View) -> Size {
    ((1, view.rows), THREADS, 0)
}

fn activation_arg(f: Activation) -> i32 {
    match f {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nothing may run on what is about to be given back.
        let _ = self.card.enter();
        let _ = self.compute.wait();
        let _ = self.copy.wait();
    }
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.card.label(),
            detail: self.card.name().to_owned(),
            slab_bytes: self.slab.bytes,
        }
    }

    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        let to = self.op("load").span(dst)?.addr() as u64;
        let bytes = dst.bytes as usize;
        if bytes == 0 {
            return Ok(());
        }
        self.card.enter()?;
        let spare = {
            let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            staging.pop().filter(|pinned| pinned.bytes >= bytes)
        };
        let mut pinned = match spare {
            Some(pinned) => pinned,
            None => Pinned::new(bytes)?,
        };
        let filled = &mut pinned.bytes()[..bytes];
        fill(filled)?;
        // SAFETY: a checked span of the slab; the bytes stay until the copy is done.
        unsafe { result::memcpy_htod_async(to, filled, self.copy.stream) }.said("copying")?;
        self.copy.wait()?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        staging.push(pinned);
        Ok(())
    }

    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        let keeper = |base| Ok(Box::new(Registered::new(&self.card, base, bytes)) as _);
        HostSlab::new(bytes, keeper)
    }

    fn bring(&self, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        let to = self.op("bring").span(dst)?.addr() as u64;
        self.card.enter()?;
        let mut done = 0;
        while done < dst.bytes {
            // The driver knows granules: a copy stays within one.
            let at = from + done;
            let bytes = (GRANULE - at % GRANULE).min(dst.bytes - done);
            let span = Span { offset: at, bytes };
            let source = src.place("bring", span)?;
            // SAFETY: checked spans on both sides, which stay until the copy is done: the
            // device waits for its streams before anything is given back.
            let bytes_there = unsafe { std::slice::from_raw_parts(source, bytes as usize) };
            // SAFETY: as above.
            unsafe { result::memcpy_htod_async(to + done, bytes_there, self.copy.stream) }
                .said("copying")?;
            done += bytes;
        }
        Ok(())
    }

    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        let op = self.op("upload");
        let to = op.span(dst)?.addr() as u64;
        op.ensure(dst.bytes == src.len() as u64, || {
            format!("{} bytes for a span of {}", src.len(), dst.bytes)
        })?;
        if src.is_empty() {
            return Ok(());
        }
        self.card.enter()?;
        let stream = self.stream(stream).stream;
        // SAFETY: a checked span; from memory that is not pinned the driver takes the
        // bytes before it returns.
        unsafe { result::memcpy_htod_async(to, src, stream) }.said("uploading")
    }

    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        let src = self.op("download").f32("src", src)?;
        self.read_back(src, dst)
    }

    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        let src = self.op("download_ids").i32("src", src)?;
        self.read_back(src, dst)
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.card.enter()?;
        let mark = self.events.take()?;
        let stream = self.stream(stream).stream;
        // SAFETY: both are this device's.
        unsafe { result::event::record(mark.event(), stream) }.said("recording an event")?;
        Ok(Event::new(mark))
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        self.card.enter()?;
        let event = self.mark(event)?.event();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let stream = self.stream(stream).stream;
        // SAFETY: both are this device's.
        unsafe { result::stream::wait_event(stream, event, flags) }.said("waiting for an event")
    }

    fn wait_here(&self, event: &Event) -> Result<()> {
        self.card.enter()?;
        // SAFETY: an event of this device.
        unsafe { result::event::synchronize(self.mark(event)?.event()) }.said("waiting")
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        self.card.enter()?;
        let (from, to) = (self.mark(from)?.event(), self.mark(to)?.event());
        // SAFETY: events of this device.
        let milliseconds = unsafe { result::event::elapsed(from, to) };
        Ok(f64::from(milliseconds.said("timing")?) / 1e3)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.card.enter()?;
        self.stream(stream).wait()
    }

    fn gather(&self, table: View, ids: View, out: View, accumulate: bool) -> Result<()> {
        let op = self.op("gather");
        op.shape("ids", ids, out.rows, 1)?;
        op.shape("table", table, table.rows, out.cols)?;
        op.apart(out, table)?;
        op.apart(out, ids)?;
        let (table, dtype) = self.floats(op, "table", table)?;
        let (ids, to) = (self.i32(op, "ids", ids)?, self.out(op, "out", out)?);
        launch!(self, "gather", elements(out); table, dtype, ids, to, i32::from(accumulate),
                self.fault.address)
    }

    fn scatter_add(&self, src: View, ids: View, weights: View, out: View) -> Result<()> {
        let op = self.op("scatter_add");
        op.shape("ids", ids, src.rows, 1)?;
        op.shape("weights", weights, src.rows, 1)?;
        op.shape("out", out, out.rows, src.cols)?;
        for input in [src, ids, weights] {
            op.apart(out, input)?;
        }
        let columns = ((src.cols.div_ceil(THREADS), 1), THREADS, 0);
        let (src, ids) = (self.f32(op, "src", src)?, self.i32(op, "ids", ids)?);
        let (weights, out) = (self.f32(op, "weights", weights)?, self.out(op, "out", out)?);
        launch!(self, "scatter_add", columns; src, ids, weights, out, self.fault.address)
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
        let op = self.op("norm");
        op.shape("out", out, x.rows, x.cols)?;
        op.same_or_apart(out, x)?;
        op.shape("weight", weight, 1, x.cols)?;
        op.apart(out, weight)?;
        let size = by_row(x);
        let (bias, bias_dtype, has_bias) = self.bias(op, bias, x.cols)?;
        let (weight, weight_dtype) = self.floats(op, "weight", weight)?;
        let (x, out) = (self.f32(op, "x", x)?, self.out(op, "out", out)?);
        let layer = i32::from(kind == NormKind::Layer);
        launch!(self, "normalise", size; layer, eps, x, weight, weight_dtype, bias, bias_dtype,
                has_bias, out)
    }

    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        _: Phase,
    ) -> Result<()> {
        let op = self.op("linear");
        let w = weight.view;
        let (n_in, n_out) = match weight.order {
            Order::OutIn => (w.cols, w.rows),
            Order::InOut => (w.rows, w.cols),
        };
        op.shape("x", x, x.rows, n_in)?;
        op.shape("out", out, x.rows, n_out)?;
        op.apart(out, x)?;
        op.apart(out, w)?;
        if let Some(bias) = bias {
            op.apart(out, bias)?;
        }
        let (bias, bias_dtype, has_bias) = self.bias(op, bias, n_out)?;
        let (name, per_block, tile) = match (weight.order, w.dtype, x.rows) {
            (Order::OutIn, DType::F16, ..=1) => ("linear_out_in_f16", OUTPUTS, 1),
            (Order::OutIn, DType::Bf16, ..=1) => ("linear_out_in_bf16", OUTPUTS, 1),
            (Order::OutIn, _, ..=1) => ("linear_out_in_f32", OUTPUTS, 1),
            (Order::OutIn, DType::F16, _) => ("linear_out_in_rows_f16", OUTPUTS, ROWS),
            (Order::OutIn, DType::Bf16, _) => ("linear_out_in_rows_bf16", OUTPUTS, ROWS),
            (Order::OutIn, _, _) => ("linear_out_in_rows_f32", OUTPUTS, ROWS),
            (Order::InOut, DType::F16, _) => ("linear_in_out_f16", THREADS, 1),
            (Order::InOut, DType::Bf16, _) => ("linear_in_out_bf16", THREADS, 1),
            (Order::InOut, _, _) => ("linear_in_out_f32", THREADS, 1),
        };
        let grid = (n_out.div_ceil(per_block), x.rows.div_ceil(tile));
        let size = (grid, THREADS, 0);
        let (w, _) = self.floats(op, "weight", w)?;
        let (x, out) = (self.f32(op, "x", x)?, self.out(op, "out", out)?);
        launch!(self, name, size; x, w, bias, bias_dtype, has_bias, out)
    }

    fn rope_table(&self, positions: View, frequencies: View, scale: f32, out: View) -> Result<()> {
        let op = self.op("rope_table");
        let n = frequencies.cols;
        op.shape("positions", positions, out.rows, 1)?;
        op.shape("frequencies", frequencies, 1, n)?;
        op.shape("out", out, out.rows, 2 * n)?;
        op.apart(out, positions)?;
        op.apart(out, frequencies)?;
        let size = ((n.div_ceil(THREADS), out.rows), THREADS, 0);
        let (frequencies, dtype) = self.floats(op, "frequencies", frequencies)?;
        let (positions, out) = (
            self.i32(op, "positions", positions)?,
            self.out(op, "out", out)?,
        );
        launch!(self, "rope_table", size; positions, frequencies, dtype, scale, out)
    }

    fn rope(&self, x: View, table: View, d_head: usize, style: RopeStyle) -> Result<()> {
        let op = self.op("rope");
        let n = table.cols / 2;
        op.shape("table", table, x.rows, 2 * n)?;
        op.ensure(
            d_head > 0 && 2 * n <= d_head && x.cols.is_multiple_of(d_head),
            || format!("{} columns in heads of {d_head}, {n} pairs rotated", x.cols),
        )?;
        op.apart(x, table)?;
        let pairs = x.cols / d_head * n;
        let size = ((pairs.div_ceil(THREADS), x.rows), THREADS, 0);
        let (x, table) = (self.out(op, "x", x)?, self.f32(op, "table", table)?);
        let interleaved = i32::from(style == RopeStyle::Interleaved);
        launch!(self, "rope", size; x, table, d_head as i32, interleaved)
    }

    fn append(&self, k: View, v: View, rows: Rows, kv: KvLayer) -> Result<()> {
        let op = self.op("append");
        let width = kv.kv_heads.saturating_mul(kv.d_head);
        op.shape("k", k, k.rows, width)?;
        op.shape("v", v, k.rows, width)?;
        op.pages(&kv)?;
        let [positions, sequences, tables] = self.whose(op, rows, k.rows)?;
        let size = elements(k);
        let (k, v) = (self.f32(op, "k", k)?, self.f32(op, "v", v)?);
        let kv = KvArg::new(self.slab.address, &kv);
        launch!(self, "append", size; k, v, positions, sequences, tables, kv, self.fault.address)
    }

    fn attend(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("attend");
        let width = how.heads.saturating_mul(kv.d_head);
        op.shape("q", q, q.rows, width)?;
        op.shape("out", out, q.rows, width)?;
        op.apart(out, q)?;
        let size = ((how.heads, q.rows), THREADS, self.scores(op, rows, &kv)?);
        let ([positions, sequences, tables], kv, how) =
            self.attention(op, rows, &kv, how, q.rows)?;
        let (q, out) = (self.f32(op, "q", q)?, self.out(op, "out", out)?);
        launch!(self, "attend", size; q, positions, sequences, tables, kv, how, out,
                self.fault.address)
    }

    fn pattern(&self, q: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("pattern");
        op.shape("q", q, q.rows, how.heads.saturating_mul(kv.d_head))?;
        op.shape("out", out, q.rows.saturating_mul(how.heads), out.cols)?;
        op.apart(out, q)?;
        let size = ((how.heads, q.rows), THREADS, self.scores(op, rows, &kv)?);
        let ([positions, sequences, tables], kv, how) =
            self.attention(op, rows, &kv, how, q.rows)?;
        let (q, out) = (self.f32(op, "q", q)?, self.out(op, "out", out)?);
        launch!(self, "pattern", size; q, positions, sequences, tables, kv, how, out,
                self.fault.address)
    }

    fn mix(&self, pattern: View, rows: Rows, kv: KvLayer, how: Attention, out: View) -> Result<()> {
        let op = self.op("mix");
        op.shape("out", out, out.rows, how.heads.saturating_mul(kv.d_head))?;
        let lines = out.rows.saturating_mul(how.heads);
        op.shape("pattern", pattern, lines, pattern.cols)?;
        op.apart(out, pattern)?;
        let size = ((how.heads, out.rows), THREADS, 0);
        let ([positions, sequences, tables], kv, how) =
            self.attention(op, rows, &kv, how, out.rows)?;
        let (pattern, out) = (self.f32(op, "pattern", pattern)?, self.out(op, "out", out)?);
        launch!(self, "mix", size; pattern, positions, sequences, tables, kv, how, out,
                self.fault.address)
    }

    fn activate(&self, f: Activation, x: View, out: View) -> Result<()> {
        let op = self.op("activate");
        op.shape("out", out, x.rows, x.cols)?;
        op.same_or_apart(out, x)?;
        let size = elements(x);
        let (x, out) = (self.f32(op, "x", x)?, self.out(op, "out", out)?);
        launch!(self, "activate", size; activation_arg(f), x, out)
    }

    fn gate(&self, f: Activation, gate: View, up: View, out: View) -> Result<()> {
        let op = self.op("gate");
        op.shape("up", up, gate.rows, gate.cols)?;
        op.shape("out", out, gate.rows, gate.cols)?;
        op.same_or_apart(out, gate)?;
        op.apart(out, up)?;
        let size = elements(gate);
        let (gate, up) = (self.f32(op, "gate", gate)?, self.f32(op, "up", up)?);
        let out = self.out(op, "out", out)?;
        launch!(self, "gate", size; activation_arg(f), gate, up, out)
    }

    fn add(&self, x: View, out: View) -> Result<()> {
        let op = self.op("add");
        op.shape("out", out, x.rows, x.cols)?;
        op.apart(out, x)?;
        let size = elements(x);
        let (x, out) = (self.f32(op, "x", x)?, self.out(op, "out", out)?);
        launch!(self, "add", size; x, out)
    }

    fn split(&self, x: View, first: usize, stride: usize, width: usize, out: View) -> Result<()> {
        let op = self.op("split");
        op.ensure(
            width > 0 && out.cols.is_multiple_of(width) && x.rows == out.rows,
            || format!("{out:?} in groups of {width} out of {x:?}"),
        )?;
        let groups = out.cols / width;
        let last = groups.saturating_sub(1).checked_mul(stride);
        let end = last.and_then(|last| last.checked_add(first)?.checked_add(width));
        op.ensure(groups == 0 || end.is_some_and(|end| end <= x.cols), || {
            format!("{groups} groups of {width} at {first}, {stride} apart, do not fit")
        })?;
        op.apart(out, x)?;
        let size = elements(out);
        let (x, out) = (self.f32(op, "x", x)?, self.out(op, "out", out)?);
        launch!(self, "split", size; x, first as i32, stride as i32, width as i32, out)
    }

    fn route(&self, logits: View, renormalise: bool, ids: View, weights: View) -> Result<()> {
        let op = self.op("route");
        let k = ids.cols;
        op.ensure(k <= logits.cols, || {
            format!("cannot choose {k} of {} experts", logits.cols)
        })?;
        op.shape("ids", ids, logits.rows, k)?;
        op.shape("weights", weights, logits.rows, k)?;
        for (a, b) in [(ids, logits), (weights, logits), (ids, weights)] {
            op.apart(a, b)?;
        }
        let size = ((logits.rows.div_ceil(THREADS), 1), THREADS, 0);
        let ids = MatArg::new(op.name, op.out_ids("ids", ids)?, DType::I32)?;
        let (logits, weights) = (
            self.f32(op, "logits", logits)?,
            self.out(op, "weights", weights)?,
        );
        launch!(self, "route", size; logits, i32::from(renormalise), ids, weights)
    }

    fn largest(&self, x: View, ids: View) -> Result<()> {
        let op = self.op("largest");
        op.shape("ids", ids, x.rows, 1)?;
        op.ensure(x.cols > 0, || "the largest of no columns".into())?;
        op.apart(ids, x)?;
        let size = by_row(x);
        let ids = MatArg::new(op.name, op.out_ids("ids", ids)?, DType::I32)?;
        let x = self.f32(op, "x", x)?;
        launch!(self, "largest", size; x, ids)
    }

    fn edit(&self, x: View, edit: Edit) -> Result<()> {
        let op = self.op("edit");
        let operand = match edit {
            Edit::Add { operand, .. } | Edit::Replace(operand) | Edit::ProjectOut(operand) => {
                op.ensure(operand.rows == 1 || operand.rows == x.rows, || {
                    format!("operand has {} rows, not 1 or {}", operand.rows, x.rows)
                })?;
                op.shape("operand", operand, operand.rows, x.cols)?;
                op.apart(x, operand)?;
                self.f32(op, "operand", operand)?
            }
            Edit::Scale(_) | Edit::Zero => MatArg::NONE,
        };
        let (each, row) = (elements(x), by_row(x));
        let x = self.out(op, "x", x)?;
        match edit {
            Edit::Scale(factor) => launch!(self, "edit_scale", each; x, factor),
            Edit::Zero => launch!(self, "edit_zero", each; x),
            Edit::Add { factor, .. } => launch!(self, "edit_add", each; x, operand, factor),
            Edit::Replace(_) => launch!(self, "edit_replace", each; x, operand),
            Edit::ProjectOut(_) => launch!(self, "edit_project_out", row; x, operand),
        }
    }
}
