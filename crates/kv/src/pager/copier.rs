//! Device operations that the pager needs: copies on the page streams, and events.

use std::{ops::Range, sync::Arc};

use djinn_device::{Device, Event, HostRows, HostSlab, Span, Stream};

use crate::error::Result;
use crate::frames::Frame;
use crate::page::PageCopy;
use crate::region::KvRegion;

/// Copy of one layer of a page from host memory to the KV window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCopy {
    /// Host frame of the page.
    pub from: Frame,
    /// Place of the page in the window.
    pub at: usize,
}

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

    /// Copies one block of each page to the KV window, on [`Stream::PageIn`].
    fn copy_to_window(&self, pages: &[WindowCopy], block: usize) -> Result<()>;

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
    region: KvRegion,
}

impl DeviceCopier {
    /// Allocates host memory for `host_pages` pages.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        region: KvRegion,
        host_pages: usize,
    ) -> Result<Self> {
        let host = match host_pages {
            0 => None,
            count => {
                let slab = device.host_slab(region.page_bytes() * count as u64)?;
                slab.seal()?;
                Some(Arc::new(slab))
            }
        };
        Ok(DeviceCopier {
            device: Arc::clone(device),
            host,
            region,
        })
    }

    /// Host memory for pages; `None` if the host tier has no frames.
    pub(super) fn host_slab(&self) -> Option<&Arc<HostSlab>> {
        self.host.as_ref()
    }

    /// Device of the pages.
    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Span of a host frame in the host memory for pages.
    pub(super) fn host_span(&self, frame: Frame) -> Span {
        Span {
            offset: self.host_offset(frame),
            bytes: self.region.page_bytes(),
        }
    }

    fn host(&self) -> &HostSlab {
        self.host.as_ref().expect("the page has a host frame")
    }

    fn host_offset(&self, frame: Frame) -> u64 {
        self.region.page_bytes() * u64::from(frame.0)
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
        let (from, to) = (self.region.frame_span(page.from), self.host_offset(page.to));
        Ok(self
            .device
            .copy_out(Stream::PageOut, from, self.host(), to)?)
    }

    fn copy_in(&self, pages: &[PageCopy], blocks: Range<usize>) -> Result<()> {
        let (page_bytes, slice) = (self.region.page_bytes(), self.region.slice_bytes());
        let skipped = slice * blocks.start as u64;
        for run in adjacent(pages) {
            let rows = HostRows {
                from: self.host_offset(run[0].from) + skipped,
                first: Span {
                    offset: self.region.frame_span(run[0].to).offset + skipped,
                    bytes: slice * blocks.len() as u64,
                },
                stride: page_bytes,
                slab_stride: page_bytes,
                count: run.len(),
            };
            self.device
                .copy_in_rows(Stream::PageIn, self.host(), rows)?;
        }
        Ok(())
    }

    fn copy_to_window(&self, pages: &[WindowCopy], block: usize) -> Result<()> {
        let (page_bytes, slice) = (self.region.page_bytes(), self.region.slice_bytes());
        let is_next = |a: &WindowCopy, b: &WindowCopy| a.from.0 + 1 == b.from.0 && a.at + 1 == b.at;
        for run in pages.chunk_by(is_next) {
            let rows = HostRows {
                from: self.host_offset(run[0].from) + slice * block as u64,
                first: self.region.window_span(block, run[0].at),
                stride: page_bytes,
                slab_stride: slice,
                count: run.len(),
            };
            self.device
                .copy_in_rows(Stream::PageIn, self.host(), rows)?;
        }
        Ok(())
    }

    fn copy_on_device(&self, from: Frame, to: Frame) -> Result<()> {
        Ok(self
            .device
            .copy(self.region.frame_span(from), self.region.frame_span(to))?)
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
