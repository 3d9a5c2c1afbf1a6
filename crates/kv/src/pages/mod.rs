//! All pages, and the frames of every tier. This module is pure logic: it returns the copies to
//! make and copies nothing.
//!
//! A page has a frame in one or several tiers. If a page has several frames, their bytes are
//! equal. Tables with equal prefixes hold the same pages. A page that several tables hold is
//! never written: a table that writes to such a page gets its own copy first (copy-on-write).
//!
//! A page that its last table released stays as a *cached page* if the prefix index has it. Its
//! frames count as free: any table that needs a frame takes it.

mod cache;
mod disk;
mod host;
mod integrity;
mod prefix;
mod saved;
#[cfg(test)]
mod tests;

pub use self::saved::{IndexedPage, PlacedFrame};

use std::ops::Range;

use crate::cached_pages::CachedPages;
use crate::frames::{Frame, FramePool, OutOfPages};
use crate::page::{PageEntry, PageId};
use crate::page_table::PageTable;
use crate::prefix_index::PrefixIndex;

/// Frames that a write uses, and the copies that precede the write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WritePlan {
    /// Copy-on-write copies: the frame of a shared page, and the new frame that receives its
    /// bytes.
    pub copies: Vec<(Frame, Frame)>,
    /// New frames without content.
    pub new_frames: Vec<Frame>,
}

/// All pages, and the frames of every tier.
#[derive(Clone, Debug)]
pub struct Pages {
    entries: Vec<PageEntry>,
    unused: Vec<PageId>,
    device: FramePool,
    host: FramePool,
    disk: FramePool,
    /// Number of pages with a host frame that duplicates their device frame.
    host_copies: usize,
    /// Index of the page that last lost its spare host frame. The next search starts at this
    /// page.
    clock_hand: usize,
    prefixes: PrefixIndex,
    /// Number of pages that tables have inserted into the prefix index.
    inserted: u64,
    cached: CachedPages,
}

impl Pages {
    /// Creates an empty set of pages with this number of frames in each tier.
    pub fn new(device: usize, host: usize, disk: usize) -> Self {
        Pages {
            entries: Vec::new(),
            unused: Vec::new(),
            device: FramePool::new(device),
            host: FramePool::new(host),
            disk: FramePool::new(disk),
            host_copies: 0,
            clock_hand: 0,
            prefixes: PrefixIndex::default(),
            inserted: 0,
            cached: CachedPages::default(),
        }
    }

    /// Frames on the device, where passes run. Cached pages take frames too.
    pub fn device(&self) -> &FramePool {
        &self.device
    }

    /// Frames in host memory.
    pub fn host(&self) -> &FramePool {
        &self.host
    }

    /// Frames on disk.
    pub fn disk(&self) -> &FramePool {
        &self.disk
    }

    /// Number of pages that tables hold.
    pub fn held(&self) -> usize {
        self.all().count()
    }

    /// Number of host frames that duplicate the device frame of a held page. Another page can take
    /// such a frame at once.
    pub fn host_copies(&self) -> usize {
        self.host_copies
    }

    /// Upper bound of [`PageId::index`], exclusive: the length of an array indexed by page.
    pub fn index_bound(&self) -> usize {
        self.entries.len()
    }

    /// Whether a table holds a page.
    pub fn is_held(&self, page: PageId) -> bool {
        self.entry(page).holders > 0
    }

    /// Pages that tables hold.
    pub fn all(&self) -> impl Iterator<Item = PageId> {
        let ids = (0..).map(PageId).zip(&self.entries);
        ids.filter(|(_, entry)| entry.holders > 0).map(|(id, _)| id)
    }

    /// Device frame of a page, if the page is on the device.
    pub fn device_frame(&self, page: PageId) -> Option<Frame> {
        self.entry(page).device
    }

    /// Host frame of a page, if the page is in host memory.
    pub fn host_frame(&self, page: PageId) -> Option<Frame> {
        self.entry(page).host
    }

    /// Whether a page is on the device and not in host memory.
    pub fn is_only_on_device(&self, page: PageId) -> bool {
        let entry = self.entry(page);
        entry.device.is_some() && entry.host.is_none()
    }

    /// Whether a page is on the device and in host memory.
    pub fn is_on_device_and_host(&self, page: PageId) -> bool {
        let entry = self.entry(page);
        entry.device.is_some() && entry.host.is_some()
    }

    /// Disk frame of a page, if the page is on disk.
    #[cfg(test)]
    fn disk_frame(&self, page: PageId) -> Option<Frame> {
        self.entry(page).disk
    }

    /// Number of tables that hold a page.
    #[cfg(test)]
    fn holders(&self, page: PageId) -> usize {
        self.entry(page).holders as usize
    }

    /// Device frames of a table's pages, in order of position. Panics if a page is not on the
    /// device.
    pub fn frames(&self, table: &PageTable) -> impl Iterator<Item = Frame> {
        let frame = |&page: &PageId| self.resident_frame(page);
        table.pages.iter().map(frame)
    }

    /// Number of a table's pages that are not on the device.
    pub fn nonresident(&self, table: &PageTable) -> usize {
        let is_away = |page: &&PageId| self.device_frame(**page).is_none();
        table.pages.iter().filter(is_away).count()
    }

    /// Device frame of a page that is on the device.
    pub(crate) fn resident_frame(&self, page: PageId) -> Frame {
        let frame = self.device_frame(page);
        frame.expect("the pages of a running pass are on the device")
    }

    fn entry(&self, page: PageId) -> &PageEntry {
        &self.entries[page.index()]
    }

    /// Changes a page, and keeps the number of host copies and the order of cached pages up to
    /// date.
    fn update<T>(&mut self, page: PageId, change: impl FnOnce(&mut PageEntry) -> T) -> T {
        let entry = &mut self.entries[page.index()];
        let before = entry.has_spare_host_frame();
        self.cached.remove(page, entry);
        let result = change(entry);
        self.cached.insert(page, entry);
        let after = entry.has_spare_host_frame();
        self.host_copies = self.host_copies + usize::from(after) - usize::from(before);
        result
    }

    /// Adds a holder to a page. A cached page is then no longer cached.
    fn hold(&mut self, page: PageId) {
        self.update(page, |entry| {
            entry.holders += 1;
            entry.released = None;
        });
    }

    /// Creates a page with one holder in a device frame.
    fn new_page(&mut self, device: Frame) -> PageId {
        let page = self.new_entry();
        self.update(page, |entry| {
            (entry.holders, entry.device) = (1, Some(device));
        });
        page
    }

    /// Creates a page without holders and frames.
    fn new_entry(&mut self) -> PageId {
        let page = self.unused.pop().unwrap_or_else(|| {
            self.entries.push(PageEntry::default());
            PageId(u32::try_from(self.entries.len() - 1).expect("frames are fewer"))
        });
        self.update(page, |entry| *entry = PageEntry::default());
        page
    }

    /// Number of free device frames that writing a range of tokens needs.
    pub fn frames_needed(&self, table: &PageTable, tokens: &Range<usize>) -> usize {
        table.missing(tokens.end) + self.shared(table, tokens).count()
    }

    /// Indices of the table's pages, from the first written token on, that other tables also
    /// hold.
    fn shared(&self, table: &PageTable, tokens: &Range<usize>) -> impl Iterator<Item = usize> {
        let first = table.index_of(tokens.start).unwrap_or(table.len());
        let is_shared = |&at: &usize| self.entry(table.pages[at]).holders > 1;
        (first..table.len()).filter(is_shared)
    }

    /// Takes the frames that a write to a range of tokens needs, or takes none. Afterwards the
    /// pages from the first written token on belong to this table alone, and other tiers have no
    /// copy of them.
    pub fn prepare_write(
        &mut self,
        table: &mut PageTable,
        tokens: Range<usize>,
    ) -> Result<WritePlan, OutOfPages> {
        self.check_device(self.frames_needed(table, &tokens))?;
        let mut plan = WritePlan::default();
        for at in self.shared(table, &tokens).collect::<Vec<_>>() {
            let old = table.pages[at];
            let from = self.resident_frame(old);
            let to = self.take_device_frame();
            table.pages[at] = self.new_page(to);
            self.remove_holder(old);
            plan.copies.push((from, to));
        }
        if let Some(at) = table.index_of(tokens.start) {
            for page in &table.pages[at..] {
                // The prefix index describes the bytes before the write.
                self.forget(*page);
                self.drop_copies(*page);
            }
        }
        for _ in 0..table.missing(tokens.end) {
            let frame = self.take_device_frame();
            table.pages.push(self.new_page(frame));
            plan.new_frames.push(frame);
        }
        Ok(plan)
    }

    /// Pages whose device frame is not among the first `count`.
    pub fn outside(&self, count: usize) -> impl Iterator<Item = PageId> {
        let is_outside = move |entry: &PageEntry| entry.device.is_some_and(|f| f.index() >= count);
        let ids = (0..).map(PageId).zip(&self.entries);
        ids.filter(move |(_, entry)| is_outside(entry))
            .map(|(id, _)| id)
    }

    /// Makes the first `count` device frames available. Held pages in other frames move to free
    /// frames or take those of cached pages; cached pages move as far as frames are free. Returns
    /// the copies to make on the device. If there is too little room, this call changes nothing.
    pub fn set_device_frames(&mut self, count: usize) -> Result<Vec<(Frame, Frame)>, OutOfPages> {
        let held = self.device.total() - self.device_room();
        if held > count {
            return Err(OutOfPages {
                wanted: held,
                free: count,
                total: count,
            });
        }
        let outside: Vec<PageId> = self.outside(count).collect();
        let (first, later): (Vec<PageId>, Vec<PageId>) =
            outside.into_iter().partition(|&page| self.is_held(page));
        let mut moves = Vec::new();
        for page in first {
            while self.device.free_among(count) == 0 {
                self.reclaim_device();
            }
            moves.push(self.move_on_device(page));
        }
        for page in later {
            // A page may have left the cache together with a page before it.
            if self.entry(page).device.is_none() {
                continue;
            }
            match self.device.free_among(count) {
                0 => self.drop_from_device(page),
                _ => moves.push(self.move_on_device(page)),
            }
        }
        self.device.set_available(count);
        Ok(moves)
    }

    /// Moves a page to the lowest free device frame. Returns both frames.
    fn move_on_device(&mut self, page: PageId) -> (Frame, Frame) {
        let to = self.device.take().expect("the caller counted the frames");
        let from = self.update(page, |entry| entry.device.replace(to));
        let from = from.expect("the page is on the device");
        self.device.give_back(from);
        (from, to)
    }

    /// Creates a second table that holds the same pages.
    pub fn share(&mut self, table: &PageTable) -> PageTable {
        for page in &table.pages {
            self.hold(*page);
        }
        table.clone()
    }

    /// Releases all pages of a table. A page without holders stays as a cached page if the prefix
    /// index has it; another one returns its frames.
    pub fn release(&mut self, table: &mut PageTable) {
        // The last page first: a cached page is older than the pages before it.
        self.truncate(table, 0);
    }

    /// Releases the pages of a table after the first `len`.
    pub fn truncate(&mut self, table: &mut PageTable, len: usize) {
        while table.len() > len {
            let last = table.pages.pop().expect("the table has more pages");
            self.remove_holder(last);
        }
    }

    /// Releases all pages of a table whose contents are in doubt. No page without holders stays as
    /// a cached page.
    pub fn discard(&mut self, table: &mut PageTable) {
        for page in table.pages.drain(..).rev() {
            match self.entry(page).holders {
                1 => {
                    self.forget(page);
                    self.remove_holder(page);
                }
                _ => self.remove_holder(page),
            }
        }
    }

    /// Removes one holder of a page. After the last the page is cached or free.
    fn remove_holder(&mut self, page: PageId) {
        let holders = self.update(page, |entry| {
            entry.holders -= 1;
            entry.holders
        });
        match holders {
            0 if self.prefixes.contains(page) => self.cache(page),
            0 => self.free(page),
            _ => {}
        }
    }

    /// Frees all frames of a page that is not in the prefix index.
    fn free(&mut self, page: PageId) {
        self.update(page, |entry| entry.released = None);
        self.drop_copies(page);
        let device = self.update(page, |entry| entry.device.take());
        device.into_iter().for_each(|f| self.device.give_back(f));
        if self.entry(page).transfer.is_none() {
            self.unused.push(page);
        }
    }

    /// Frees the host and disk frames of a page.
    fn drop_copies(&mut self, page: PageId) {
        let (host, disk) = self.update(page, PageEntry::take_copies);
        self.give_back(host, disk);
    }

    fn give_back(&mut self, host: Option<Frame>, disk: Option<Frame>) {
        host.into_iter().for_each(|f| self.host.give_back(f));
        disk.into_iter().for_each(|f| self.disk.give_back(f));
    }
}
