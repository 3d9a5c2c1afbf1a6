//! Device operations that the pager needs: copies on the page streams, and events.

use std::{ops::Range, sync::Arc};

use djinn_device::{Device, Event, HostRows, HostSlab, KvLayer, Span, Stream};

use crate::error::Result;
use crate::frames::Frame;
use crate::page::PageCopy;

/// Copies pages on a device's page streams, and orders streams by events.
pub trait PageCopier {
    /// Point in a stream.
    type Event: Clone;

    /// Records an event at the end of a stream.
    fn record(&self, stream: Stream) -> Result<Self::Event>;

    /// Makes a stream wait for an event.
    fn wait(&self, stream: Stream, event: &Self::Event) -> Result<()>;

    /// Whether the stream has passed an event.
    fn is_past(&self, event: &Self::Event) -> Result<bool>;

    /// Blocks the calling thread until the stream has passed an event.
    fn wait_here(&self, event: &Self::Event) -> Result<()>;

    /// Copies a page to host memory, on [`Stream::PageOut`].
    fn copy_out(&self, page: PageCopy) -> Result<()>;

    /// Copies a range of blocks of each page to the device, on [`Stream::PageIn`].
    fn copy_in(&self, pages: &[PageCopy], blocks: Range<usize>) -> Result<()>;

    /// Copies a page between two device frames, on [`Stream::Compute`].
    fn copy_on_device(&self, from: Frame, to: Frame) -> Result<()>;

    /// Seconds between two past events.
    fn seconds_between(&self, from: &Self::Event, to: &Self::Event) -> Result<f64>;

    /// Blocks the calling thread until no copy and no computation is in flight.
    fn drain(&self);
}

/// Copies pages between a device's slab and pinned host memory.
pub struct DeviceCopier {
    device: Arc<dyn Device>,
    /// Host memory for pages; `None` if the host tier has no frames.
    host: Option<Arc<HostSlab>>,
    /// Offset of the first page in the slab.
    first: u64,
    page_bytes: u64,
    block_bytes: u64,
    blocks: usize,
}

impl DeviceCopier {
    /// Allocates host memory for `host_pages` pages. `kv` is the first layer of the pages in the
    /// slab, and `blocks` the number of layers of a page.
    pub(super) fn new(
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
        Ok(DeviceCopier {
            device: Arc::clone(device),
            host,
            first: kv.offset,
            page_bytes: kv.page_bytes,
            block_bytes: kv.layer_bytes(),
            blocks,
        })
    }

    /// Number of bytes of one page.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Host memory for pages; `None` if the host tier has no frames.
    pub(super) fn host_slab(&self) -> Option<&Arc<HostSlab>> {
        self.host.as_ref()
    }

    fn span(&self, frame: Frame) -> Span {
        Span {
            offset: self.first + self.page_bytes * u64::from(frame.0),
            bytes: self.page_bytes,
        }
    }

    fn host(&self) -> &HostSlab {
        self.host.as_ref().expect("the page has a host frame")
    }

    fn host_offset(&self, frame: Frame) -> u64 {
        self.page_bytes * u64::from(frame.0)
    }
}

impl PageCopier for DeviceCopier {
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

    fn copy_out(&self, page: PageCopy) -> Result<()> {
        let (from, to) = (self.span(page.from), self.host_offset(page.to));
        Ok(self
            .device
            .copy_out(Stream::PageOut, from, self.host(), to)?)
    }

    fn copy_in(&self, pages: &[PageCopy], blocks: Range<usize>) -> Result<()> {
        let skipped = self.block_bytes * blocks.start as u64;
        // The copy of the last block includes the padding after it.
        let bytes = match blocks.end == self.blocks {
            true => self.page_bytes - skipped,
            false => self.block_bytes * blocks.len() as u64,
        };
        for run in adjacent(pages) {
            let rows = HostRows {
                from: self.host_offset(run[0].from) + skipped,
                first: Span {
                    offset: self.span(run[0].to).offset + skipped,
                    bytes,
                },
                stride: self.page_bytes,
                count: run.len(),
            };
            self.device
                .copy_in_rows(Stream::PageIn, self.host(), rows)?;
        }
        Ok(())
    }

    fn copy_on_device(&self, from: Frame, to: Frame) -> Result<()> {
        Ok(self.device.copy(self.span(from), self.span(to))?)
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        Ok(self.device.seconds_between(from, to)?)
    }

    fn drain(&self) {
        // A device that fails here reports the error again in the next pass.
        for stream in [Stream::PageIn, Stream::PageOut, Stream::Compute] {
            let _ = self.device.synchronize(stream);
        }
    }
}

/// Groups copies that have adjacent frames on both sides. Each group is one strided copy.
pub(super) fn adjacent(pages: &[PageCopy]) -> impl Iterator<Item = &[PageCopy]> {
    pages.chunk_by(|a, b| a.from.0 + 1 == b.from.0 && a.to.0 + 1 == b.to.0)
}
