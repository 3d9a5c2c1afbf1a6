//! Bytes to the card and back, and points in its streams.

use std::sync::PoisonError;

use cudarc::driver::{result, sys};

use super::CudaDevice;
use super::card::Said;
use super::event::Mark;
use super::pinned::{GRANULE, Pinned, Registered};
use crate::check::Mat;
use crate::{DeviceError, Event, Fill, HostRows, HostSlab, Result, Span, Stream};

impl CudaDevice {
    pub(super) fn do_load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        let to = self.op("load").span(dst)?.addr() as u64;
        let bytes = dst.bytes as usize;
        if bytes == 0 {
            return Ok(());
        }
        self.card.enter()?;
        let mut pinned = self.take_staging(bytes)?;
        let filled = &mut pinned.bytes()[..bytes];
        fill(filled)?;
        // SAFETY: a checked span of the slab; the bytes stay until the copy is done.
        unsafe { result::memcpy_htod_async(to, filled, self.copy.stream) }.said("copying")?;
        let done = self.do_record(Stream::Copy)?;
        self.do_wait_here(&done)?;
        self.give_staging(pinned);
        Ok(())
    }

    pub(super) fn do_host_slab(&self, bytes: u64) -> Result<HostSlab> {
        let keeper = |base| Ok(Box::new(Registered::new(&self.card, base, bytes)) as _);
        HostSlab::new(bytes, keeper)
    }

    pub(super) fn do_bring(
        &self,
        stream: Stream,
        src: &HostSlab,
        from: u64,
        dst: Span,
    ) -> Result<()> {
        let to = self.op("bring").span(dst)?.addr() as u64;
        if stream == Stream::Compute {
            self.forget()?;
        }
        self.card.enter()?;
        let stream = self.stream(stream).stream;
        for (at, done) in in_granules(from, dst.bytes) {
            let source = src.place("bring", at)?;
            // SAFETY: checked spans on both sides, which stay until the copy is done: the
            // device waits for its streams before anything is given back.
            let source = unsafe { std::slice::from_raw_parts(source, at.bytes as usize) };
            // SAFETY: as above.
            unsafe { result::memcpy_htod_async(to + done, source, stream) }.said("copying")?;
        }
        Ok(())
    }

    pub(super) fn do_bring_rows(
        &self,
        stream: Stream,
        src: &HostSlab,
        rows: HostRows,
    ) -> Result<()> {
        for run in rows.in_granules(GRANULE) {
            if run.count == 1 {
                self.do_bring(stream, src, run.from, run.first)?;
                continue;
            }
            let (from, to) = run.spans();
            let source = src.place("bring", from)?;
            let target = self.op("bring").span(to)?;
            let copy = sys::CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
                srcHost: source.cast_const().cast(),
                srcDevice: 0,
                srcArray: std::ptr::null_mut(),
                srcPitch: run.stride as usize,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                dstHost: std::ptr::null_mut(),
                dstDevice: target.addr() as u64,
                dstArray: std::ptr::null_mut(),
                dstPitch: run.stride as usize,
                WidthInBytes: run.first.bytes as usize,
                Height: run.count,
            };
            self.card.enter()?;
            // SAFETY: checked spans on both sides, as in `do_bring`.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream(stream).stream) }
                .result()
                .said("copying")?;
        }
        Ok(())
    }

    pub(super) fn do_copy(&self, src: Span, dst: Span) -> Result<()> {
        let op = self.op("copy");
        op.spans_apart(src, dst)?;
        let (from, to) = (op.span(src)?.addr() as u64, op.span(dst)?.addr() as u64);
        self.interrupt()?;
        self.card.enter()?;
        let stream = self.stream(Stream::Compute).stream;
        // SAFETY: checked spans of the slab that do not overlap.
        unsafe { result::memcpy_dtod_async(to, from, src.bytes as usize, stream) }.said("copying")
    }

    pub(super) fn do_send(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        let from = self.op("send").span(src)?.addr() as u64;
        if stream == Stream::Compute {
            self.interrupt()?;
        }
        self.card.enter()?;
        let stream = self.stream(stream).stream;
        for (at, done) in in_granules(to, src.bytes) {
            let place = dst.place("send", at)?.cast();
            // SAFETY: checked spans on both sides, as in `do_bring`; the contract leaves
            // the host's to this copy alone.
            unsafe { sys::cuMemcpyDtoHAsync_v2(place, from + done, at.bytes as usize, stream) }
                .result()
                .said("copying")?;
        }
        Ok(())
    }

    pub(super) fn do_upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        let op = self.op("upload");
        let to = op.span(dst)?.addr() as u64;
        op.ensure(dst.bytes == src.len() as u64, || {
            format!("{} bytes for a span of {}", src.len(), dst.bytes)
        })?;
        if src.is_empty() {
            return Ok(());
        }
        // What had a copy behind the slab's end may be overwritten.
        self.forget()?;
        self.card.enter()?;
        let stream = self.stream(stream).stream;
        // SAFETY: a checked span; from memory that is not pinned the driver takes the
        // bytes before it returns.
        unsafe { result::memcpy_htod_async(to, src, stream) }.said("uploading")
    }

    /// Waits for all operations, and says what they found wrong.
    fn settle(&self) -> Result<()> {
        self.interrupt()?;
        self.card.enter()?;
        self.compute.wait()?;
        // SAFETY: four bytes of pinned memory, which no kernel writes now.
        let fault = unsafe { self.fault.start.cast::<i32>().replace(0) };
        let (op, what) = match fault {
            0 => return Ok(()),
            1 => ("gather", "the rows of table"),
            2 => ("scatter_add", "the rows of out"),
            _ => ("attention", "the pages there are"),
        };
        let detail = format!("an id is not among {what}");
        Err(DeviceError::Shape { op, detail })
    }

    pub(super) fn read_back<T>(&self, op: &'static str, src: Mat<T>, dst: &mut [T]) -> Result<()> {
        let elements = src.rows.checked_mul(src.cols);
        self.op(op).ensure(elements == Some(dst.len()), || {
            let (rows, cols, filled) = (src.rows, src.cols, dst.len());
            format!("[{rows}, {cols}] does not fill {filled} elements")
        })?;
        if dst.is_empty() {
            return self.settle();
        }
        self.interrupt()?;
        self.card.enter()?;
        let width = src.cols * size_of::<T>();
        let bytes = src.rows * width;
        let mut pinned = self.take_staging(bytes)?;
        self.copy_out(&src, width, pinned.start)?;
        let settled = self.settle();
        // SAFETY: elements of plain numbers, as many bytes as were just copied.
        let to = unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast::<u8>(), bytes) };
        to.copy_from_slice(&pinned.bytes()[..bytes]);
        self.give_staging(pinned);
        settled
    }

    /// Puts a copy of a checked matrix, rows side by side, on the compute stream. The place
    /// must stay until that has been waited for.
    fn copy_out<T>(&self, src: &Mat<T>, width: usize, to: *mut u8) -> Result<()> {
        let stream = self.compute.stream;
        let copied = if src.rows == 1 || src.stride == src.cols {
            let bytes = src.rows * width;
            // SAFETY: as many bytes in the slab as there.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), src.address(), bytes, stream) }
        } else {
            let copy = sys::CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                srcHost: std::ptr::null(),
                srcDevice: src.address(),
                srcArray: std::ptr::null_mut(),
                srcPitch: src.stride * size_of::<T>(),
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
                dstHost: to.cast(),
                dstDevice: 0,
                dstArray: std::ptr::null_mut(),
                dstPitch: width,
                WidthInBytes: width,
                Height: src.rows,
            };
            // SAFETY: as above, row by row.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) }
        };
        copied.result().said("reading back")
    }

    /// Pinned memory of at least so many bytes.
    fn take_staging(&self, bytes: usize) -> Result<Pinned> {
        let spare = {
            let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = staging.iter().position(|pinned| pinned.bytes >= bytes);
            fits.map(|at| staging.swap_remove(at))
        };
        match spare {
            Some(pinned) => Ok(pinned),
            // In steps, so that what grows a little at a time is not pinned anew each time.
            None => Pinned::new(bytes.next_power_of_two()),
        }
    }

    fn give_staging(&self, pinned: Pinned) {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        staging.push(pinned);
    }

    /// Lets go of what loads passed through.
    pub(super) fn do_loaded(&self) {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        staging.clear();
    }

    pub(super) fn do_record(&self, stream: Stream) -> Result<Event> {
        if stream == Stream::Compute {
            self.interrupt()?;
        }
        self.card.enter()?;
        let mark = self.events.take()?;
        let stream = self.stream(stream).stream;
        // SAFETY: both are this device's.
        unsafe { result::event::record(mark.event(), stream) }.said("recording an event")?;
        Ok(Event::new(mark))
    }

    pub(super) fn do_wait(&self, stream: Stream, event: &Event) -> Result<()> {
        if stream == Stream::Compute {
            self.interrupt()?;
        }
        self.card.enter()?;
        let event = self.mark(event)?.event();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let stream = self.stream(stream).stream;
        // SAFETY: both are this device's.
        unsafe { result::stream::wait_event(stream, event, flags) }.said("waiting for an event")
    }

    pub(super) fn do_is_past(&self, event: &Event) -> Result<bool> {
        self.card.enter()?;
        // SAFETY: an event of this device.
        let found = unsafe { sys::cuEventQuery(self.mark(event)?.event()) };
        match found {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().said("looking at an event").map(|()| true),
        }
    }

    pub(super) fn do_wait_here(&self, event: &Event) -> Result<()> {
        self.card.enter()?;
        // SAFETY: an event of this device.
        unsafe { result::event::synchronize(self.mark(event)?.event()) }.said("waiting")
    }

    pub(super) fn do_seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        self.card.enter()?;
        let (from, to) = (self.mark(from)?.event(), self.mark(to)?.event());
        // SAFETY: events of this device.
        let milliseconds = unsafe { result::event::elapsed(from, to) };
        Ok(f64::from(milliseconds.said("timing")?) / 1e3)
    }

    pub(super) fn do_synchronize(&self, stream: Stream) -> Result<()> {
        // What operations found wrong is told here too: whoever gives a pass up waits for it,
        // and the next must not be told.
        if stream == Stream::Compute {
            return self.settle();
        }
        self.flush()?;
        self.card.enter()?;
        self.stream(stream).wait()
    }

    /// What an event is on this device.
    fn mark<'e>(&self, event: &'e Event) -> Result<&'e Mark> {
        match event.mark() {
            Some(mark) => Ok(mark),
            None => self.op("event").fail("an event of another device".into()),
        }
    }
}

/// A run of host memory in parts that each lie in one granule, since the driver knows those;
/// each with the bytes before it.
fn in_granules(from: u64, bytes: u64) -> impl Iterator<Item = (Span, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let offset = from + done;
        let bytes = (GRANULE - offset % GRANULE).min(bytes - done);
        let part = (Span { offset, bytes }, done);
        done += bytes;
        (bytes > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::{GRANULE, in_granules};

    #[test]
    fn parts_are_all_of_it_and_stay_in_their_granule() {
        for (from, bytes) in [(0, 0), (5, 7), (0, GRANULE), (GRANULE - 1, 2 * GRANULE + 3)] {
            let mut end = from;
            for (part, done) in in_granules(from, bytes) {
                assert_eq!((part.offset, done), (end, end - from));
                assert_eq!(part.offset / GRANULE, (part.end() - 1) / GRANULE);
                end = part.end();
            }
            assert_eq!(end, from + bytes);
        }
    }
}
