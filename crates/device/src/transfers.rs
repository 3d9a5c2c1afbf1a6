//! Copies between host memory and a device's slab.

use crate::{Fill, HostRows, HostSlab, Result, Span, Stream, View};

/// Copies between host memory and the slab.
pub trait Transfers: Send + Sync {
    /// Fills a span of the slab in the calling thread. Several threads may load at the same
    /// time, beside a running pass. Each caller owns its span until the call returns.
    fn load(&self, dst: Span, fill: Fill<'_>) -> Result<()>;
    /// Frees the staging memory of [`Transfers::load`], once everything is loaded.
    fn release_staging(&self) {}
    /// Allocates host memory that [`Transfers::copy_in`] and [`Transfers::copy_out`] access
    /// at the link's full speed.
    fn host_slab(&self, bytes: u64) -> Result<HostSlab>;
    /// Copies from host memory, starting at byte `from`, into a span of the slab. Nothing
    /// else may use either side until the stream has passed the copy.
    fn copy_in(&self, stream: Stream, src: &HostSlab, from: u64, dst: Span) -> Result<()>;
    /// Copies several rows of bytes from host memory into the slab, under the same rule as
    /// [`Transfers::copy_in`].
    fn copy_in_rows(&self, stream: Stream, src: &HostSlab, rows: HostRows) -> Result<()>;
    /// Copies a span of the slab into host memory, starting at byte `to`, under the same rule
    /// as [`Transfers::copy_in`].
    fn copy_out(&self, stream: Stream, src: Span, dst: &HostSlab, to: u64) -> Result<()>;
    /// Copies one span of the slab to another on the compute stream.
    fn copy(&self, src: Span, dst: Span) -> Result<()>;
    /// Copies bytes of the caller into the slab. The bytes are read before the call returns.
    fn upload(&self, stream: Stream, dst: Span, src: &[u8]) -> Result<()>;
    /// Waits for the compute stream, then copies an f32 view to the caller, row by row.
    fn download(&self, src: View, dst: &mut [f32]) -> Result<()>;
    /// Waits for the compute stream, then copies an i32 view to the caller.
    fn download_ids(&self, src: View, dst: &mut [i32]) -> Result<()>;
}
