//! Staging memory: captures leave the device and operands enter it while the pass computes, and
//! nothing waits for them before the pass ends.

use djinn_device::{Device, HostSlab, Span, Stream, View};

use crate::{EngineError, upload::upload_numbers};

/// Size of the staging memory in bytes. Larger transfers wait for earlier ones.
const STAGING_BYTES: u64 = 32 << 20;

/// Largest copy into the device that does not use the staging memory. On an H200, a copy from pinned
/// memory waited up to 31 ms for KV pages of 2,048 tokens that returned at the same time; an upload of
/// ordinary memory did not. The likely reason is that the driver sends so few bytes with its commands.
const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Pinned host memory for transfers of a pass, allocated on first use.
#[derive(Default)]
pub(crate) struct Staging {
    slab: Option<HostSlab>,
    /// Number of bytes in use.
    used: u64,
    /// Numbers read before the memory was last reused.
    done: Vec<f32>,
}

/// Handle of numbers that can be read when the pass has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedRead {
    at: usize,
    count: usize,
}

impl Staging {
    /// Copies contiguous rows from the device.
    pub fn send(&mut self, device: &dyn Device, rows: View) -> Result<StagedRead, EngineError> {
        let at = self.done.len() + (self.used / 4) as usize;
        let sent = StagedRead {
            at,
            count: rows.rows * rows.cols,
        };
        for part in parts(rows.span()) {
            let to = self.take(device, part.bytes)?;
            device.copy_out(Stream::Compute, part, self.slab(), to)?;
        }
        Ok(sent)
    }

    /// Copies numbers into contiguous rows on the device.
    pub fn bring(
        &mut self,
        device: &dyn Device,
        numbers: &[f32],
        rows: View,
    ) -> Result<(), EngineError> {
        let whole = rows.span();
        if whole.bytes <= INLINE_BYTES_MAX {
            return Ok(upload_numbers(device, rows, numbers)?);
        }
        let mut left = numbers;
        for part in parts(whole) {
            let from = self.take(device, part.bytes)?;
            let (now, later) = left.split_at((part.bytes / 4) as usize);
            let span = Span {
                offset: from,
                bytes: part.bytes,
            };
            self.slab().lend(span, |bytes| {
                for (to, number) in bytes.chunks_exact_mut(4).zip(now) {
                    to.copy_from_slice(&number.to_le_bytes());
                }
            })?;
            device.copy_in(Stream::Compute, self.slab(), from, part)?;
            left = later;
        }
        Ok(())
    }

    /// Returns copied numbers after the pass.
    pub fn read(&self, sent: StagedRead) -> &[f32] {
        &self.done[sent.at..sent.at + sent.count]
    }

    /// Waits for all copies in flight and keeps their numbers for reading.
    pub fn settle(&mut self, device: &dyn Device) -> Result<(), EngineError> {
        if self.used == 0 {
            return Ok(());
        }
        device.synchronize(Stream::Compute)?;
        let span = Span {
            offset: 0,
            bytes: self.used,
        };
        let done = &mut self.done;
        self.slab
            .as_ref()
            .expect("bytes are in use")
            .show(span, |bytes| {
                let numbers = bytes.as_chunks().0.iter();
                done.extend(numbers.map(|&bytes| f32::from_le_bytes(bytes)));
            })?;
        self.used = 0;
        Ok(())
    }

    /// Forgets all numbers.
    pub fn clear(&mut self) {
        self.done.clear();
        self.used = 0;
    }

    /// Reserves bytes of the staging memory.
    fn take(&mut self, device: &dyn Device, bytes: u64) -> Result<u64, EngineError> {
        if self.slab.is_none() {
            let slab = device.host_slab(STAGING_BYTES)?;
            slab.seal()?;
            self.slab = Some(slab);
        }
        if self.used + bytes > STAGING_BYTES {
            self.settle(device)?;
        }
        self.used += bytes;
        Ok(self.used - bytes)
    }

    fn slab(&self) -> &HostSlab {
        self.slab.as_ref().expect("allocated before use")
    }
}

/// Splits a span into parts that fit in the staging memory.
fn parts(span: Span) -> impl Iterator<Item = Span> {
    (0..span.bytes)
        .step_by(STAGING_BYTES as usize)
        .map(move |done| Span {
            offset: span.offset + done,
            bytes: STAGING_BYTES.min(span.bytes - done),
        })
}
