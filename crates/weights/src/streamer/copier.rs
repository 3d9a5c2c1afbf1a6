//! Copies from host memory by the device, ordered with its operations by events.

use std::sync::Arc;

use djinn_device::{Device, DeviceError, Event, HostSlab, Stream};

use crate::{CopyOp, Placement};

/// A copy that is enqueued on the copy stream.
#[derive(Debug)]
pub(super) struct EnqueuedCopy {
    pub label: u32,
    pub bytes: u64,
    /// Event before the copy.
    pub began: Event,
    /// Event after the copy.
    pub arrived: Event,
}

/// Copy stream of the device, and the host memory that it copies from.
pub(super) struct Copier {
    pub device: Arc<dyn Device>,
    pub slab: Arc<HostSlab>,
    /// Largest size of one copy command.
    pub chunk: u64,
}

impl Copier {
    /// Enqueues a copy on the copy stream. The copy begins after earlier copies, and after
    /// the event `after` of the compute stream.
    pub fn enqueue(
        &self,
        op: CopyOp<Placement>,
        after: Option<&Event>,
    ) -> Result<EnqueuedCopy, DeviceError> {
        if let Some(after) = after {
            self.device.wait(Stream::Copy, after)?;
        }
        let began = self.device.record(Stream::Copy)?;
        let mut done = 0;
        while done < op.to.bytes {
            let part = op.part(done, self.chunk.min(op.to.bytes - done));
            self.device
                .copy_in(Stream::Copy, &self.slab, part.from.offset, part.to.span())?;
            done += part.to.bytes;
        }
        Ok(EnqueuedCopy {
            label: op.label,
            bytes: op.to.bytes,
            began,
            arrived: self.device.record(Stream::Copy)?,
        })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // The host memory is freed next, so every copy must end first. A failed device runs no
        // copies.
        let _ = self.device.synchronize(Stream::Copy);
    }
}
