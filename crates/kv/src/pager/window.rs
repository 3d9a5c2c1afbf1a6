//! Pages that are not on the device stream through the KV window, layer by layer, while a pass
//! computes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use djinn_device::Stream;

use super::Pager;
use super::copier::{DeviceCopier, PageCopier, WindowCopy};
use super::transfers::{PageTransfer, distinct};
use crate::error::Result;
use crate::page::PageId;
use crate::page_table::PageTable;
use crate::pages::Pages;
use crate::region::KvRegion;

/// Pages that stream through the KV window during one pass.
pub struct PageStream<C: PageCopier = DeviceCopier> {
    copier: Arc<C>,
    region: KvRegion,
    /// Copies in order of host frames, so that adjacent frames get adjacent places.
    copies: Vec<WindowCopy>,
    /// Place of each streamed page in the window, by number of the page.
    places: Vec<Option<usize>>,
    /// Event before the first copy.
    start: C::Event,
    /// Number of blocks whose slices were copied.
    copied: AtomicUsize,
}

impl<C: PageCopier> PageStream<C> {
    /// Copies the slices of a block to the window, once the compute stream has passed `after`.
    /// Returns the event after the copies.
    pub fn copy_block(&self, block: usize, after: Option<&C::Event>) -> Result<C::Event> {
        if let Some(after) = after {
            self.copier.wait(Stream::PageIn, after)?;
        }
        self.copier.copy_to_window(&self.copies, block)?;
        self.copied.fetch_add(1, Relaxed);
        self.copier.record(Stream::PageIn)
    }

    /// KV pages and the window, as one range of slices.
    pub fn region(&self) -> &KvRegion {
        &self.region
    }

    /// Whether a page of the table streams.
    pub fn has_pages_of(&self, table: &PageTable) -> bool {
        let streams = |page: &PageId| self.places[page.index()].is_some();
        table.pages().iter().any(streams)
    }

    /// Numbers of a table's pages in the layers of the blocks of one half of the window.
    pub fn indexes(
        &self,
        pages: &Pages,
        table: &PageTable,
        half: usize,
    ) -> impl Iterator<Item = usize> {
        let index = move |&page: &PageId| match self.places[page.index()] {
            Some(at) => self.region.window_index(half, at),
            None => self.region.frame_index(pages.resident_frame(page)),
        };
        table.pages().iter().map(index)
    }

    /// Number of bytes that were copied to the window.
    fn bytes(&self) -> u64 {
        let slices = (self.copied.load(Relaxed) * self.copies.len()) as u64;
        self.region.slice_bytes() * slices
    }
}

impl<C: PageCopier> Pager<C> {
    /// Prepares to stream the pages of these tables that are not on the device; `None` if all are.
    /// The pages must be in host memory and fit in the window. Call this function after
    /// [`Pager::begin_pass`], and [`Pager::end_stream`] at the end of the pass.
    pub fn stream<'a>(
        &mut self,
        tables: impl Iterator<Item = &'a PageTable>,
    ) -> Result<Option<PageStream<C>>> {
        let is_away = |page: &PageId| self.pages.device_frame(*page).is_none();
        let pages = tables.flat_map(|table| table.pages().iter().copied());
        let mut away: Vec<PageId> = pages.filter(is_away).collect();
        if away.is_empty() {
            return Ok(None);
        }
        away.sort_unstable_by_key(|&page| self.pages.host_frame(page));
        away.dedup();
        assert!(
            away.len() <= self.region.window(),
            "the window holds all pages that stream"
        );
        let start = self.pass_start.clone();
        self.copier
            .wait(Stream::PageIn, &start.expect("a pass has begun"))?;
        let mut places = vec![None; self.pages.index_bound()];
        let (mut copies, mut after) = (Vec::new(), Vec::new());
        for (at, page) in away.into_iter().enumerate() {
            let from = self.pages.host_frame(page);
            let from = from.expect("a page that streams is in host memory");
            after.extend(self.host_transfers[from.index()].clone());
            places[page.index()] = Some(at);
            copies.push(WindowCopy { from, at });
        }
        for transfer in distinct(after) {
            if !transfer.is_done(&*self.copier)? {
                self.copier.wait(Stream::PageIn, transfer.end())?;
            }
        }
        Ok(Some(PageStream {
            start: self.copier.record(Stream::PageIn)?,
            copier: Arc::clone(&self.copier),
            region: self.region,
            copies,
            places,
            copied: AtomicUsize::new(0),
        }))
    }

    /// Ends a stream of pages: counts its traffic, and keeps the host frames until its copies are
    /// done. A pass that ends early may leave copies in flight. Returns the number of bytes that
    /// streamed.
    pub fn end_stream(&mut self, stream: &PageStream<C>) -> Result<u64> {
        let (end, bytes) = (self.copier.record(Stream::PageIn)?, stream.bytes());
        let transfer = PageTransfer::new(stream.start.clone(), vec![end], 0, bytes);
        for copy in &stream.copies {
            self.host_transfers[copy.from.index()] = Some(Arc::clone(&transfer));
        }
        self.streamed.push_back(transfer);
        self.read_times()?;
        Ok(bytes)
    }
}
