//! Copies to the card and back.

use std::sync::{Arc, PoisonError};

use cudarc::driver::{result, sys};
use djinn_types::DType;

use super::CudaDevice;
use super::args::MatArg;
use super::driver::DriverContext;
use super::kernels::ROWS_MAX;
use super::launch::{columns, launch};
use super::pinned::{GRANULE, InFlight, Pinned, Registered};
use crate::check::Mat;
use crate::host::Access;
use crate::{
    DeviceError, Fill, HostRows, HostSlab, Result, Span, Stream, Streams, Transfers, View,
};

/// Largest number of bytes that a kernel writes to host memory for a download. A copy engine copies
/// more, because it leaves the multiprocessors free.
const READ_BACK_BYTES: u64 = 16 << 20;

/// Whether a span consists of aligned 32-bit words.
fn is_in_words(span: Span) -> bool {
    span.offset.is_multiple_of(4) && span.bytes.is_multiple_of(4)
}

impl Transfers for CudaDevice {
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        let to = self.op("load").span(dst)?.addr() as u64;
        let bytes = dst.bytes as usize;
        if bytes == 0 {
            return Ok(());
        }
        self.card.enter()?;
        let mut pinned = self.take_staging(bytes)?;
        fill(&mut pinned.bytes()[..bytes])?;
        let pinned = InFlight::new(pinned, &self.copy);
        let from = pinned.start().cast_const().cast();
        // SAFETY: a checked span of the slab and a buffer of at least `bytes` bytes. The slab
        // outlives the streams' work, and `InFlight` keeps the buffer until the copy is done.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, self.copy.stream) }
            .result()
            .context("copying between host and card")?;
        let done = self.record(Stream::Copy)?;
        self.wait_here(&done)?;
        self.give_staging(pinned.finished());
        Ok(())
    }

    fn release_staging(&self) {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = std::mem::take(&mut *staging);
        // Freeing pinned memory may wait for the card, so it happens without the lock.
        drop(staging);
        drop(spare);
    }

    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        let streams = [&self.compute, &self.copy, &self.page_in, &self.page_out].map(Arc::clone);
        let registration =
            |base| Ok(Box::new(Registered::new(&self.card, streams, base, bytes)) as _);
        HostSlab::new(bytes, registration)
    }

    fn copy_in(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        let to = self.op("copy_in").span(dst)?.addr() as u64;
        if stream == Stream::Compute {
            self.state().forget();
        }
        self.card.enter()?;
        let stream = self.queue(stream).stream;
        for (at, done) in in_granules(from, dst.bytes) {
            let (source, _borrow) = src.borrow("copy_in", at, Access::Read)?;
            let (source, bytes) = (source.cast_const().cast(), at.bytes as usize);
            // SAFETY: both spans are checked. The slab of the card lives until the copy is done,
            // because the device waits for its streams before it frees memory, and so does the
            // host slab (`Registered::drop`). By contract nothing writes the host's side until
            // the stream has passed the copy.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to + done, source, bytes, stream) }
                .result()
                .context("copying between host and card")?;
        }
        Ok(())
    }

    fn copy_in_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        for run in rows.in_granules(GRANULE) {
            if run.count == 1 {
                self.copy_in(stream, src, run.from, run.first)?;
                continue;
            }
            let (from, to) = run.spans();
            let (source, _borrow) = src.borrow("copy_in", from, Access::Read)?;
            let target = self.op("copy_in").span(to)?;
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
                dstPitch: run.slab_stride as usize,
                WidthInBytes: run.first.bytes as usize,
                Height: run.count,
            };
            self.card.enter()?;
            // SAFETY: checked spans on both sides, which live until the copy is done for the
            // reasons given in `copy_in`.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.queue(stream).stream) }
                .result()
                .context("copying between host and card")?;
        }
        Ok(())
    }

    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        let op = self.op("copy");
        op.spans_apart(src, dst)?;
        let (from, to) = (op.span(src)?.addr() as u64, op.span(dst)?.addr() as u64);
        self.state().interrupt();
        self.card.enter()?;
        let stream = self.queue(Stream::Compute).stream;
        // SAFETY: checked spans of the slab that do not overlap.
        unsafe { result::memcpy_dtod_async(to, from, src.bytes as usize, stream) }
            .context("copying between host and card")
    }

    fn copy_out(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        let from = self.op("copy_out").span(src)?.addr() as u64;
        let is_result = stream == Stream::Compute;
        let by_kernel = is_result && src.bytes <= READ_BACK_BYTES && is_in_words(src);
        if is_result && !by_kernel {
            self.state().interrupt();
        }
        self.card.enter()?;
        let stream = self.queue(stream).stream;
        for (at, done) in in_granules(to, src.bytes) {
            let (place, _borrow) = dst.borrow("copy_out", at, Access::Write)?;
            if by_kernel {
                self.write_rows(MatArg::words(from + done, at.bytes), place)?;
                continue;
            }
            let place = place.cast();
            // SAFETY: checked spans on both sides, which live until the copy is done for the
            // reasons given in `copy_in`. By contract nothing uses the host's side until the
            // stream has passed the copy.
            unsafe { sys::cuMemcpyDtoHAsync_v2(place, from + done, at.bytes as usize, stream) }
                .result()
                .context("copying between host and card")?;
        }
        Ok(())
    }

    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()> {
        let op = self.op("upload");
        let to = op.span(dst)?.addr() as u64;
        op.ensure(dst.bytes == src.len() as u64, || {
            format!(
                "the caller gave {} bytes for a span of {} bytes",
                src.len(),
                dst.bytes
            )
        })?;
        if src.is_empty() {
            return Ok(());
        }
        // The upload may overwrite a view that has a copy in the scratch memory.
        self.state().forget();
        self.card.enter()?;
        let stream = self.queue(stream).stream;
        // SAFETY: a checked span; the driver reads the bytes of pageable memory before it
        // returns.
        unsafe { result::memcpy_htod_async(to, src, stream) }.context("uploading to the card")
    }

    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        let src = self.op("download").f32("src", src)?;
        self.read_back("download", src, dst)
    }

    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        let src = self.op("download_ids").i32("src", src)?;
        self.read_back("download_ids", src, dst)
    }
}

impl CudaDevice {
    /// Waits for all operations, and returns the fault that a kernel recorded, if any.
    pub(super) fn finish(&self) -> Result<()> {
        self.state().interrupt();
        self.card.enter()?;
        self.compute.wait()?;
        // SAFETY: four bytes of pinned memory that live as long as the device. The compute stream
        // is idle, and only its kernels write the word.
        let fault = unsafe { self.fault.start.cast::<i32>().replace(0) };
        let (op, what) = match fault {
            0 => return Ok(()),
            1 => ("gather", "an id is not a row of the table"),
            2 => ("scatter_add", "an id is not a row of the output"),
            _ => ("attention", "a page table names a page that does not exist"),
        };
        let detail = what.to_owned();
        Err(DeviceError::Shape { op, detail })
    }

    fn read_back<T>(&self, op: &'static str, src: Mat<T>, dst: &mut [T]) -> Result<()> {
        let elements = src.rows.checked_mul(src.cols);
        self.op(op).ensure(elements == Some(dst.len()), || {
            let (rows, cols, filled) = (src.rows, src.cols, dst.len());
            format!("a view of [{rows}, {cols}] does not fill a buffer of {filled} elements")
        })?;
        if dst.is_empty() {
            return self.finish();
        }
        self.state().interrupt();
        self.card.enter()?;
        let width = src.cols * size_of::<T>();
        let bytes = src.rows * width;
        let pinned = InFlight::new(self.take_staging(bytes)?, &self.compute);
        match bytes as u64 <= READ_BACK_BYTES && src.rows <= ROWS_MAX {
            true => self.write_rows(MatArg::new(op, src, DType::F32)?, pinned.start())?,
            false => self.enqueue_rows(&src, width, pinned.start())?,
        }
        let settled = self.finish();
        if let Err(DeviceError::Driver { .. }) = settled {
            // The stream may still write to the buffer.
            return settled;
        }
        let mut pinned = pinned.finished();
        // SAFETY: `dst` has as many elements as the view, so `bytes` bytes; the elements are plain
        // numbers, for which all bytes are valid.
        let to = unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast::<u8>(), bytes) };
        to.copy_from_slice(&pinned.bytes()[..bytes]);
        self.give_staging(pinned);
        settled
    }

    /// Launches a kernel that writes a checked matrix of 32-bit elements to pinned memory, without
    /// gaps between rows. `to` must stay valid until the caller has waited for the stream.
    fn write_rows(&self, from: MatArg, to: *mut u8) -> Result<()> {
        let size = columns(from.cols as usize, from.rows as usize);
        launch!(self, &mut self.state(), "read_back", size; from, to as u64)
    }

    /// Enqueues a copy of a checked matrix, without gaps between rows, on the compute stream.
    /// `to` must stay valid until the caller has waited for the stream.
    fn enqueue_rows<T>(&self, src: &Mat<T>, width: usize, to: *mut u8) -> Result<()> {
        let stream = self.compute.stream;
        let copied = if src.rows == 1 || src.stride == src.cols {
            let bytes = src.rows * width;
            // SAFETY: both sides have `bytes` bytes.
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
            // SAFETY: both sides have `rows` rows of `width` elements.
            unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) }
        };
        copied.result().context("downloading from the card")
    }

    /// Takes or allocates a pinned buffer of at least `bytes`.
    fn take_staging(&self, bytes: usize) -> Result<Pinned> {
        let spare = {
            let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = staging.iter().position(|pinned| pinned.bytes >= bytes);
            fits.map(|at| staging.swap_remove(at))
        };
        match spare {
            Some(pinned) => Ok(pinned),
            // Sizes are powers of two, so that slowly growing requests do not pin a new buffer
            // each time.
            None => Pinned::new(bytes.next_power_of_two()),
        }
    }

    fn give_staging(&self, pinned: Pinned) {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        staging.push(pinned);
    }
}

/// Splits a range of host memory at the granules that the driver has registered. Each part
/// comes with the number of bytes before it.
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
    fn parts_cover_the_range_and_stay_in_their_granule() {
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
