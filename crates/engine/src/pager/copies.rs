//! What the pager asks of a device.

use std::{ops::Range, sync::Arc};

use djinn_device::{Device, Event, HostRows, HostSlab, KvLayer, Span, Stream};
use djinn_memory::{Frame, Move};

use super::Result;

/// Copies on a device's page streams, and points in streams.
pub(crate) trait Copies {
    /// A point in a stream.
    type Event: Clone;
    fn record(&self, stream: Stream) -> Result<Self::Event>;
    fn wait(&self, stream: Stream, event: &Self::Event) -> Result<()>;
    fn is_past(&self, event: &Self::Event) -> Result<bool>;
    /// Blocks the caller until an event is past.
    fn wait_here(&self, event: &Self::Event) -> Result<()>;
    /// Copies a page to the host, on [`Stream::PageOut`].
    fn send(&self, page: Move) -> Result<()>;
    /// Copies some blocks of pages back, on [`Stream::PageIn`].
    fn bring(&self, pages: &[Move], blocks: Range<usize>) -> Result<()>;
    /// Copies a page within the slab, on [`Stream::Compute`].
    fn copy(&self, from: Frame, to: Frame) -> Result<()>;
    /// How long it was from one event to another; both are past.
    fn seconds(&self, from: &Self::Event, to: &Self::Event) -> Result<f64>;
    /// Waits until nothing is under way.
    fn settle(&self);
}

/// Pages of a slab and of host memory.
pub(crate) struct DeviceCopies {
    device: Arc<dyn Device>,
    /// Where they wait; nothing where there is no room for any.
    pub host: Option<Arc<HostSlab>>,
    /// Where pages lie in the slab, the bytes of one, and of one block of it.
    first: u64,
    bytes: u64,
    block_bytes: u64,
    blocks: usize,
}

impl DeviceCopies {
    /// Takes host memory for so many pages beside those of the slab, which `kv` says.
    pub fn new(
        device: &Arc<dyn Device>,
        kv: KvLayer,
        blocks: usize,
        host_pages: usize,
    ) -> Result<Self> {
        let host = match host_pages {
            0 => None,
            count => {
                let slab = device.host_slab(kv.page_bytes * count as u64)?;
                slab.seal()?;
                Some(Arc::new(slab))
            }
        };
        Ok(DeviceCopies {
            device: Arc::clone(device),
            host,
            first: kv.offset,
            bytes: kv.page_bytes,
            block_bytes: kv.layer_bytes(),
            blocks,
        })
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.bytes
    }

    fn span(&self, frame: Frame) -> Span {
        Span {
            offset: self.first + self.bytes * u64::from(frame.0),
            bytes: self.bytes,
        }
    }

    fn host(&self) -> &HostSlab {
        self.host.as_ref().expect("a page lies there")
    }

    fn host_offset(&self, frame: Frame) -> u64 {
        self.bytes * u64::from(frame.0)
    }
}

impl Copies for DeviceCopies {
    type Event = Event;

    fn record(&self, stream: Stream) -> Result<Event> {
        Ok(self.device.record(stream)?)
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        Ok(self.device.wait(stream, event)?)
    }

    fn is_past(&self, event: &Event) -> Result<bool> {
        Ok(self.device.is_past(event)?)
    }

    fn wait_here(&self, event: &Event) -> Result<()> {
        Ok(self.device.wait_here(event)?)
    }

    fn send(&self, page: Move) -> Result<()> {
        let (from, to) = (self.span(page.from), self.host_offset(page.to));
        Ok(self.device.send(Stream::PageOut, from, self.host(), to)?)
    }

    fn bring(&self, pages: &[Move], blocks: Range<usize>) -> Result<()> {
        let skipped = self.block_bytes * blocks.start as u64;
        // What lies behind the last block comes with it.
        let bytes = match blocks.end == self.blocks {
            true => self.bytes - skipped,
            false => self.block_bytes * blocks.len() as u64,
        };
        for run in runs(pages) {
            let rows = HostRows {
                from: self.host_offset(run[0].from) + skipped,
                first: Span {
                    offset: self.span(run[0].to).offset + skipped,
                    bytes,
                },
                stride: self.bytes,
                count: run.len(),
            };
            self.device.bring_rows(Stream::PageIn, self.host(), rows)?;
        }
        Ok(())
    }

    fn copy(&self, from: Frame, to: Frame) -> Result<()> {
        Ok(self.device.copy(self.span(from), self.span(to))?)
    }

    fn seconds(&self, from: &Event, to: &Event) -> Result<f64> {
        Ok(self.device.seconds_between(from, to)?)
    }

    fn settle(&self) {
        // A device that fails here too is told of by the next pass.
        for stream in [Stream::PageIn, Stream::PageOut, Stream::Compute] {
            let _ = self.device.synchronize(stream);
        }
    }
}

/// Pages that follow each other on both sides.
pub(super) fn runs(pages: &[Move]) -> impl Iterator<Item = &[Move]> {
    pages.chunk_by(|a, b| a.from.0 + 1 == b.from.0 && a.to.0 + 1 == b.to.0)
}
