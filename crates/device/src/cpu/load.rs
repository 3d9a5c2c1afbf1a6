//! Bytes into and out of the slab.

use crate::{Fill, HostSlab, Result, Span};

use super::CpuDevice;
use crate::check::Mat;

impl CpuDevice {
    pub(super) fn do_load(&self, dst: Span, fill: Fill<'_>) -> Result<()> {
        let start = self.op("load").span(dst)?;
        // SAFETY: a checked span of the slab; the contract leaves it to the caller
        // that nobody else uses it now.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, dst.bytes as usize) };
        Ok(fill(bytes)?)
    }

    pub(super) fn do_bring(&self, src: &HostSlab, from: u64, dst: Span) -> Result<()> {
        let offset = from;
        let (from, to) = (
            src.place("bring", Span { offset, ..dst })?,
            self.op("bring").span(dst)?,
        );
        // SAFETY: checked spans of different memory, which the contract gives this caller.
        unsafe { std::ptr::copy_nonoverlapping(from, to, dst.bytes as usize) };
        Ok(())
    }

    pub(super) fn do_send(&self, src: Span, dst: &HostSlab, to: u64) -> Result<()> {
        let offset = to;
        let (from, to) = (
            self.op("send").span(src)?,
            dst.place("send", Span { offset, ..src })?,
        );
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, to, src.bytes as usize) };
        Ok(())
    }

    pub(super) fn do_copy(&self, src: Span, dst: Span) -> Result<()> {
        let op = self.op("copy");
        op.spans_apart(src, dst)?;
        let (from, to) = (op.span(src)?, op.span(dst)?);
        // SAFETY: checked spans of the slab that do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, src.bytes as usize) };
        Ok(())
    }

    pub(super) fn do_upload(&self, dst: Span, src: &[u8]) -> Result<()> {
        let op = self.op("upload");
        let to = op.span(dst)?;
        op.ensure(dst.bytes == src.len() as u64, || {
            format!("{} bytes for a span of {}", src.len(), dst.bytes)
        })?;
        // SAFETY: the span lies in the slab, which no slice of the host overlaps.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to, src.len()) };
        Ok(())
    }

    pub(super) fn copy_rows<T: Copy>(
        &self,
        op: &'static str,
        src: Mat<T>,
        dst: &mut [T],
    ) -> Result<()> {
        let elements = src.rows.checked_mul(src.cols);
        self.op(op).ensure(elements == Some(dst.len()), || {
            format!(
                "[{}, {}] does not fill {} elements",
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
