//! Copies from host memory by the device itself, in order with what it computes.

use std::sync::Arc;

use djinn_device::{Device, Event, HostSlab, Span, Stream};

use super::Result;

/// A run of host memory and where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub from: u64,
    pub to: Span,
    /// What to call it in the record.
    pub label: u32,
}

/// A trip that was put on the copy stream.
#[derive(Debug)]
pub(super) struct Copied {
    pub label: u32,
    pub bytes: u64,
    pub began: Event,
    pub arrived: Event,
}

/// The device's copy stream, and the memory it copies from.
pub(super) struct Copier {
    pub device: Arc<dyn Device>,
    pub slab: Arc<HostSlab>,
    /// Bytes copied at a time.
    pub chunk: u64,
}

impl Copier {
    /// Puts a trip on the copy stream, to begin after what was there and after a point of
    /// the compute stream.
    pub fn send(&self, trip: Trip, after: Option<&Event>) -> Result<Copied> {
        if let Some(after) = after {
            self.device.wait(Stream::Copy, after)?;
        }
        let began = self.device.record(Stream::Copy)?;
        let mut done = 0;
        while done < trip.to.bytes {
            let part = Span {
                offset: trip.to.offset + done,
                bytes: self.chunk.min(trip.to.bytes - done),
            };
            self.device
                .copy_in(Stream::Copy, &self.slab, trip.from + done, part)?;
            done += part.bytes;
        }
        Ok(Copied {
            label: trip.label,
            bytes: trip.to.bytes,
            began,
            arrived: self.device.record(Stream::Copy)?,
        })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // The memory is given back next: nothing may still be copied from it. A device
        // that failed copies nothing.
        let _ = self.device.synchronize(Stream::Copy);
    }
}
