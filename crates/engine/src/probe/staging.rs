//! Numbers on their way out of a pass and into it, beside what the device computes: nobody
//! waits for them before the pass is over.

use djinn_device::{Device, HostSlab, Span, Stream, View};

use crate::EngineError;

/// Bytes under way at most; more than that is waited for.
const ROOM: u64 = 32 << 20;

/// Host memory that the device writes and reads, taken when something first does.
#[derive(Default)]
pub(crate) struct Staging {
    slab: Option<HostSlab>,
    /// Bytes of it in use.
    used: u64,
    /// What was there before it was last emptied.
    done: Vec<f32>,
}

/// Numbers that will be there when the pass is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedRead {
    at: usize,
    count: usize,
}

impl Staging {
    /// Sends rows that lie side by side.
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

    /// Brings numbers into rows that lie side by side.
    pub fn bring(
        &mut self,
        device: &dyn Device,
        numbers: &[f32],
        rows: View,
    ) -> Result<(), EngineError> {
        let mut left = numbers;
        for part in parts(rows.span()) {
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

    /// What was sent; once the pass is over.
    pub fn read(&self, sent: StagedRead) -> &[f32] {
        &self.done[sent.at..sent.at + sent.count]
    }

    /// Waits for all that is under way, and keeps it to be read.
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
            .expect("some of it is in use")
            .show(span, |bytes| {
                let numbers = bytes.as_chunks().0.iter();
                done.extend(numbers.map(|&bytes| f32::from_le_bytes(bytes)));
            })?;
        self.used = 0;
        Ok(())
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        self.done.clear();
        self.used = 0;
    }

    /// Room for so many bytes.
    fn take(&mut self, device: &dyn Device, bytes: u64) -> Result<u64, EngineError> {
        if self.slab.is_none() {
            let slab = device.host_slab(ROOM)?;
            slab.seal()?;
            self.slab = Some(slab);
        }
        if self.used + bytes > ROOM {
            self.settle(device)?;
        }
        self.used += bytes;
        Ok(self.used - bytes)
    }

    fn slab(&self) -> &HostSlab {
        self.slab.as_ref().expect("taken before it is used")
    }
}

/// A span in parts that each fit.
fn parts(span: Span) -> impl Iterator<Item = Span> {
    (0..span.bytes)
        .step_by(ROOM as usize)
        .map(move |done| Span {
            offset: span.offset + done,
            bytes: ROOM.min(span.bytes - done),
        })
}
