//! Copies into and out of the slab, and events that are always past.

use std::time::Instant;

use super::CpuDevice;
use crate::check::Mat;
use crate::{
    Event, Fill, HostRows, HostSlab, Result, Span, Stream, Streams, Transfers, View, host,
};

impl Transfers for CpuDevice {
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        let start = self.op("load").span(dst)?;
        let _borrow = self.loads.take("load", dst, host::Access::Write)?;
        // SAFETY: a checked span of the slab, which lives as long as `self`. No other load has a
        // reference into the span, and operations use raw pointers. By the device's contract the
        // caller orders operations on the same bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, dst.bytes as usize) };
        Ok(fill(bytes)?)
    }

    fn host_slab(&self, bytes: u64) -> Result<HostSlab> {
        HostSlab::new(bytes, |_| Ok(Box::new(host::PlainMemory)))
    }

    fn copy_in(&self, _: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        let to = self.op("copy_in").span(dst)?;
        let span = Span {
            offset: from,
            ..dst
        };
        let (from, _borrow) = src.borrow("copy_in", span, host::Access::Read)?;
        // SAFETY: checked spans of different memory. The borrow keeps other calls from writing the
        // source; by the device's contract the caller orders uses of the destination.
        unsafe { std::ptr::copy_nonoverlapping(from, to, dst.bytes as usize) };
        Ok(())
    }

    fn copy_in_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()> {
        rows.each()
            .try_for_each(|(from, dst)| self.copy_in(stream, src, from, dst))
    }

    fn copy_out(&self, _: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        let from = self.op("copy_out").span(src)?;
        let span = Span { offset: to, ..src };
        let (to, _borrow) = dst.borrow("copy_out", span, host::Access::Write)?;
        // SAFETY: checked spans of different memory. The borrow keeps other calls from using the
        // destination; by the device's contract the caller orders uses of the source.
        unsafe { std::ptr::copy_nonoverlapping(from, to, src.bytes as usize) };
        Ok(())
    }

    fn copy(&self, src: Span, dst: Span) -> Result<()> {
        let op = self.op("copy");
        op.spans_apart(src, dst)?;
        let (from, to) = (op.span(src)?, op.span(dst)?);
        // SAFETY: checked spans of the slab that do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, src.bytes as usize) };
        Ok(())
    }

    fn upload(&self, _: Stream, dst: Span, src: &[u8]) -> Result<()> {
        let op = self.op("upload");
        let to = op.span(dst)?;
        op.ensure(dst.bytes == src.len() as u64, || {
            format!(
                "the caller gave {} bytes for a span of {} bytes",
                src.len(),
                dst.bytes
            )
        })?;
        // SAFETY: the span lies in the slab, which no slice of the host overlaps.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to, src.len()) };
        Ok(())
    }

    fn download(&self, src: View, dst: &mut [f32]) -> Result<()> {
        let src = self.op("download").f32("src", src)?;
        self.copy_rows("download", src, dst)
    }

    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()> {
        let src = self.op("download_ids").i32("src", src)?;
        self.copy_rows("download_ids", src, dst)
    }
}

impl CpuDevice {
    fn copy_rows<T: Copy>(&self, op: &'static str, src: Mat<T>, dst: &mut [T]) -> Result<()> {
        let elements = src.rows.checked_mul(src.cols);
        self.op(op).ensure(elements == Some(dst.len()), || {
            format!(
                "a view of [{}, {}] does not fill a buffer of {} elements",
                src.rows,
                src.cols,
                dst.len()
            )
        })?;
        for (row, dst) in dst.chunks_exact_mut(src.cols.max(1)).enumerate() {
            // SAFETY: a checked row; as bytes there is no alignment to keep.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    src.row(row).cast::<u8>(),
                    dst.as_mut_ptr().cast(),
                    size_of_val(dst),
                );
            }
        }
        Ok(())
    }
}

impl Streams for CpuDevice {
    fn record(&self, _: Stream) -> Result<Event> {
        Ok(Event::new(Instant::now()))
    }

    fn wait(&self, _: Stream, _: &Event) -> Result<()> {
        Ok(())
    }

    fn is_past(&self, _: &Event) -> Result<bool> {
        Ok(true)
    }

    fn wait_here(&self, _: &Event) -> Result<()> {
        Ok(())
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        let (Some(from), Some(to)) = (from.mark::<Instant>(), to.mark::<Instant>()) else {
            return self
                .op("event")
                .fail("the event belongs to another device".into());
        };
        Ok(to.saturating_duration_since(*from).as_secs_f64())
    }

    fn synchronize(&self, _: Stream) -> Result<()> {
        Ok(())
    }
}
