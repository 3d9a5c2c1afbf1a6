//! Pages of the prefix index that outlive the process: the list of pages to save, and their return to the
//! index of another process.

use std::collections::HashMap;

use super::Pages;
use crate::frames::Frame;
use crate::page::PageId;
use crate::prefix_index::PageContent;

/// Page of the prefix index, in a list in which it follows the page before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPage {
    /// Page.
    pub page: PageId,
    /// Index in the list of the page before it; `None` at the beginning of a prefix.
    pub previous: Option<usize>,
    /// Content of the page.
    pub content: PageContent,
}

/// Frame for the bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedFrame {
    /// On the device.
    Device(Frame),
    /// In host memory.
    Host(Frame),
    /// On disk.
    Disk(Frame),
}

impl Pages {
    /// Lists all pages of the prefix index: first pages that tables hold, then cached pages, the most
    /// recently used first. Each page follows the page before it.
    pub fn indexed_pages(&self) -> Vec<IndexedPage> {
        let age = |page: PageId| u64::MAX - self.entry(page).released.unwrap_or(u64::MAX);
        let mut places = HashMap::new();
        let mut list = Vec::new();
        for (page, previous, content) in self.prefixes.in_order(age) {
            places.insert(page, list.len());
            list.push(IndexedPage {
                page,
                previous: previous.map(|previous| places[&previous]),
                content: content.clone(),
            });
        }
        list
    }

    /// Number of pages that tables have inserted into the prefix index so far.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Maximum number of cached pages.
    pub fn cache_limit(&self) -> usize {
        self.cached.limit
    }

    /// Fastest frame with the bytes of a page.
    pub fn fastest_frame(&self, page: PageId) -> Option<PlacedFrame> {
        let entry = self.entry(page);
        let device = entry.device.map(PlacedFrame::Device);
        device
            .or(entry.host.map(PlacedFrame::Host))
            .or(entry.disk.map(PlacedFrame::Disk))
    }

    /// Adds a page to the prefix index in a free frame, on the fastest tier that has one. Returns `None`
    /// if no tier has a free frame, or if the index has the page already. The caller holds the page
    /// until it calls [`Pages::keep_cached`] or [`Pages::drop_unread`].
    pub fn add_indexed(
        &mut self,
        previous: Option<PageId>,
        content: PageContent,
    ) -> Option<(PageId, PlacedFrame)> {
        if self.prefixes.lookup(previous, &content).is_some() {
            return None;
        }
        let device = self.device.take().map(PlacedFrame::Device);
        let host = || self.host.take().map(PlacedFrame::Host);
        let placed = device.or_else(host);
        let placed = placed.or_else(|| self.disk.take().map(PlacedFrame::Disk))?;
        let page = self.new_entry();
        self.update(page, |entry| {
            entry.holders = 1;
            match placed {
                PlacedFrame::Device(frame) => entry.device = Some(frame),
                PlacedFrame::Host(frame) => entry.host = Some(frame),
                PlacedFrame::Disk(frame) => entry.disk = Some(frame),
            }
        });
        self.prefixes.insert(page, previous, content);
        Some((page, placed))
    }

    /// Releases pages of [`Pages::add_indexed`], which then are cached pages. The first page counts as
    /// the one that was used last.
    pub fn keep_cached(&mut self, pages: &[PageId]) {
        for &page in pages.iter().rev() {
            self.remove_holder(page);
        }
    }

    /// Removes a page of [`Pages::add_indexed`] whose bytes could not be read.
    pub fn drop_unread(&mut self, page: PageId) {
        self.forget(page);
        self.remove_holder(page);
    }
}
