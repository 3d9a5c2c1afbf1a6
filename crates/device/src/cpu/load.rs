//! Bytes into and out of the slab.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Fill, Result, Span};

use super::CpuDevice;
use super::check::Mat;

/// Bytes read at a time: enough for a disk, little enough that readers end together.
const CHUNK: u64 = 8 << 20;
/// Readers at once: several keep a disk's queue full, whatever the cores.
const READERS_MAX: u64 = 8;

impl CpuDevice {
    /// Readers are threads of the load, not of the pool: a segment on its way from
    /// the disk must not keep the pool from the pass that runs meanwhile.
    pub(super) fn do_load(&self, dst: Span, fill: &Fill<'_>) -> Result<()> {
        let base = self.op("load").span(dst)?;
        let load = Load {
            base: base as usize,
            bytes: dst.bytes,
            next: AtomicU64::new(0),
            failure: Mutex::new(None),
        };
        let chunks = dst.bytes.div_ceil(CHUNK);
        let readers = chunks.min(READERS_MAX).min(self.threads() as u64);
        std::thread::scope(|scope| {
            for _ in 1..readers {
                scope.spawn(|| load.read(fill));
            }
            load.read(fill);
        });
        match load.failure.into_inner() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error.into()),
            Err(_) => Err(std::io::Error::other("a reader panicked").into()),
        }
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

/// A span being filled.
struct Load {
    /// The span's address in the slab.
    base: usize,
    bytes: u64,
    next: AtomicU64,
    failure: Mutex<Option<std::io::Error>>,
}

impl Load {
    /// Fills chunks until none is left or one has failed.
    fn read(&self, fill: &Fill<'_>) {
        loop {
            let offset = self.next.fetch_add(CHUNK, Ordering::Relaxed);
            if offset >= self.bytes {
                return;
            }
            let length = CHUNK.min(self.bytes - offset) as usize;
            let start = (self.base + offset as usize) as *mut u8;
            // SAFETY: a chunk of the checked span, claimed by this reader alone; the
            // contract leaves it to the caller that nobody else uses the span now.
            let chunk = unsafe { std::slice::from_raw_parts_mut(start, length) };
            if let Err(error) = fill(offset, chunk) {
                self.next.store(self.bytes, Ordering::Relaxed);
                if let Ok(mut failure) = self.failure.lock() {
                    failure.get_or_insert(error);
                }
                return;
            }
        }
    }
}
