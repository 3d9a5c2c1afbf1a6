//! Cached pages: pages of the prefix index that no table holds. They stay until their frames are
//! needed, the least recently used first.
//!
//! A table that holds a page also holds the pages before it, and releases them after it. So the
//! page before a cached page is held, or was released later: pages leave the cache from the end
//! of a prefix.

use std::collections::BTreeSet;

use super::Pages;
use crate::frames::{Frame, OutOfPages};
use crate::page::{DiskDirection, PageCopy, PageEntry, PageId};

/// Cached pages of one tier, or of all, in order of the time of their release.
type ByRelease = BTreeSet<(u64, PageId)>;

/// Cached pages in order of their release.
#[derive(Clone, Debug)]
pub(super) struct CachedPages {
    /// Maximum number of cached pages.
    limit: usize,
    /// Number of releases so far.
    clock: u64,
    all: ByRelease,
    /// Pages with a device frame.
    device: ByRelease,
    /// Pages with a host frame that is not part of a transfer.
    host: ByRelease,
    /// Pages with a disk frame that is not part of a transfer.
    disk: ByRelease,
    /// Number of pages that left the cache because their frames were needed.
    evicted: u64,
}

impl Default for CachedPages {
    fn default() -> Self {
        CachedPages {
            limit: usize::MAX,
            clock: 0,
            all: ByRelease::new(),
            device: ByRelease::new(),
            host: ByRelease::new(),
            disk: ByRelease::new(),
            evicted: 0,
        }
    }
}

impl CachedPages {
    /// Orders that a page belongs to, with its time.
    fn orders(&mut self, entry: &PageEntry) -> impl Iterator<Item = (u64, &mut ByRelease)> {
        let is_idle = entry.transfer.is_none();
        let belongs = [
            (true, &mut self.all),
            (entry.device.is_some(), &mut self.device),
            (entry.host.is_some() && is_idle, &mut self.host),
            (entry.disk.is_some() && is_idle, &mut self.disk),
        ];
        let released = entry.released;
        let belongs = belongs.into_iter();
        belongs.filter_map(move |(belongs, order)| Some((released.filter(|_| belongs)?, order)))
    }

    /// Adds a page to the orders that it belongs to.
    pub fn insert(&mut self, page: PageId, entry: &PageEntry) {
        self.orders(entry).for_each(|(released, order)| {
            order.insert((released, page));
        });
    }

    /// Removes a page from the orders that it belongs to.
    pub fn remove(&mut self, page: PageId, entry: &PageEntry) {
        self.orders(entry).for_each(|(released, order)| {
            order.remove(&(released, page));
        });
    }

    /// Panics unless the orders contain exactly the pages that belong to them.
    pub fn check_integrity(&self, entries: &[PageEntry]) {
        let mut found = CachedPages::default();
        for (id, entry) in (0..).map(PageId).zip(entries) {
            let is_cached = entry.released.is_some();
            assert!(!is_cached || entry.holders == 0, "page {} is held", id.0);
            found.insert(id, entry);
        }
        let orders = |cached: &Self| {
            let CachedPages {
                all,
                device,
                host,
                disk,
                ..
            } = cached.clone();
            [all, device, host, disk]
        };
        assert_eq!(
            orders(self),
            orders(&found),
            "orders of cached pages differ"
        );
        assert!(self.all.len() <= self.limit, "too many cached pages");
    }
}

/// Number of cached pages, the frames that they take, and the number of pages that had to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPageStats {
    /// Number of cached pages.
    pub pages: usize,
    /// Device frames of cached pages.
    pub device: usize,
    /// Host frames of cached pages.
    pub host: usize,
    /// Disk frames of cached pages.
    pub disk: usize,
    /// Number of pages that left the cache because their frames were needed.
    pub evicted: u64,
}

impl Pages {
    /// Sets the maximum number of cached pages. Pages that exceed it leave the cache.
    pub fn set_cache_limit(&mut self, limit: usize) {
        self.cached.limit = limit;
        self.trim_cache();
    }

    /// Numbers of cached pages.
    pub fn cache_stats(&self) -> CachedPageStats {
        CachedPageStats {
            pages: self.cached.all.len(),
            device: self.cached.device.len(),
            host: self.cached.host.len(),
            disk: self.cached.disk.len(),
            evicted: self.cached.evicted,
        }
    }

    /// Number of device frames that tables can take: free frames and those of cached pages.
    pub fn device_room(&self) -> usize {
        self.device.free() + self.cached.device.len()
    }

    /// Number of host frames that tables can take without taking the host copies of held pages.
    pub fn host_free(&self) -> usize {
        self.host.free() + self.cached.host.len()
    }

    /// Number of host frames that tables can take.
    pub fn host_room(&self) -> usize {
        self.host_free() + self.host_copies
    }

    /// Number of disk frames that tables can take without taking the disk copies of held pages.
    pub fn disk_free(&self) -> usize {
        self.disk.free() + self.cached.disk.len()
    }

    /// Fails unless tables can take `wanted` device frames.
    pub(crate) fn check_device(&self, wanted: usize) -> Result<(), OutOfPages> {
        self.device.check(wanted, self.cached.device.len())
    }

    /// Takes a device frame: a free one, or that of the cached page that was used least recently.
    ///
    /// # Panics
    /// Panics if tables can take no device frame.
    pub(super) fn take_device_frame(&mut self) -> Frame {
        if self.device.free() == 0 {
            self.reclaim_device();
        }
        self.device.take().expect("the caller counted the frames")
    }

    /// Adds a page that its last table has released to the cache.
    pub(super) fn cache(&mut self, page: PageId) {
        self.cached.clock += 1;
        let released = self.cached.clock;
        self.update(page, |entry| entry.released = Some(released));
        self.trim_cache();
    }

    /// Removes the pages that exceed the limit from the cache.
    fn trim_cache(&mut self) {
        while self.cached.all.len() > self.cached.limit {
            let (_, oldest) = *self.cached.all.first().expect("more than the limit");
            self.evict_cached(oldest);
        }
    }

    /// Removes all pages from the cache.
    pub fn clear_cache(&mut self) {
        while let Some(&(_, oldest)) = self.cached.all.first() {
            self.forget(oldest);
        }
    }

    /// Removes a page and the pages after it from the prefix index, because their contents are in
    /// doubt. Those of them that no table holds are freed.
    pub fn forget(&mut self, page: PageId) {
        for page in self.prefixes.remove(page) {
            if self.entry(page).holders == 0 {
                self.free(page);
            }
        }
    }

    /// Removes a cached page, and the pages after it, because their frames are needed.
    fn evict_cached(&mut self, page: PageId) {
        let before = self.cached.all.len();
        self.forget(page);
        self.cached.evicted += (before - self.cached.all.len()) as u64;
    }

    /// Frees the device frame of the cached page that was used least recently. The page stays
    /// cached if another tier has it.
    fn reclaim_device(&mut self) {
        let Some(&(_, page)) = self.cached.device.first() else {
            return;
        };
        let entry = self.entry(page);
        if entry.host.is_none() && entry.disk.is_none() {
            return self.evict_cached(page);
        }
        let frame = self.update(page, |entry| entry.device.take());
        frame.into_iter().for_each(|f| self.device.give_back(f));
    }

    /// Frees the host frame of the cached page that was used least recently, and returns whether
    /// there was one. The page stays cached if another tier has it.
    pub(super) fn reclaim_host(&mut self) -> bool {
        let Some(&(_, page)) = self.cached.host.first() else {
            return false;
        };
        let entry = self.entry(page);
        if entry.device.is_none() && entry.disk.is_none() {
            self.evict_cached(page);
        } else {
            let frame = self.update(page, |entry| entry.host.take());
            self.give_back(frame, None);
        }
        true
    }

    /// Frees the disk frame of the cached page that was used least recently, and returns whether
    /// there was one. The page stays cached if another tier has it.
    pub(super) fn reclaim_disk(&mut self) -> bool {
        let Some(&(_, page)) = self.cached.disk.first() else {
            return false;
        };
        let entry = self.entry(page);
        if entry.device.is_none() && entry.host.is_none() {
            self.evict_cached(page);
        } else {
            let frame = self.update(page, |entry| entry.disk.take());
            self.give_back(None, frame);
        }
        true
    }

    /// Cached pages that are only on the device and that leave it next: those whose frames are
    /// needed before `frames` frames are free. The page that leaves first comes first.
    pub fn cached_only_on_device(&self, frames: usize) -> Vec<PageId> {
        let wanted = frames.saturating_sub(self.device.free());
        let next = self.cached.device.iter().take(wanted);
        let is_alone = |page: &PageId| {
            let entry = self.entry(*page);
            entry.host.is_none() && entry.disk.is_none()
        };
        next.map(|&(_, page)| page).filter(is_alone).collect()
    }

    /// Cached pages that are only in host memory and that leave it next: those whose frames are
    /// needed before `frames` frames are free. The page that leaves first comes first.
    pub fn cached_only_in_host_memory(&self, frames: usize) -> Vec<PageId> {
        let wanted = frames.saturating_sub(self.host.free());
        let next = self.cached.host.iter().take(wanted);
        let is_alone = |page: &PageId| {
            let entry = self.entry(*page);
            entry.device.is_none() && entry.disk.is_none()
        };
        next.map(|&(_, page)| page).filter(is_alone).collect()
    }

    /// Copies a cached page that is only on the device to host memory, and keeps it on the device.
    /// Returns the copy to make. Returns `None` if the host has `reserve` free frames or fewer, and
    /// no older page is cached there and not on the device.
    pub fn copy_out_cached(&mut self, page: PageId, reserve: usize) -> Option<PageCopy> {
        let entry = self.entry(page);
        let (Some(released), Some(_), None) = (entry.released, entry.device, entry.host) else {
            return None;
        };
        if self.host.free() <= reserve {
            let &(time, oldest) = self.cached.host.first()?;
            if time > released || self.device_frame(oldest).is_some() {
                return None;
            }
            self.reclaim_host();
        }
        self.copy_out(page)
    }

    /// Spills a cached page that is only in host memory. Returns the copy to write. Returns `None`
    /// if the disk has no free frame, and no cached page there is older.
    pub fn spill_cached(&mut self, page: PageId) -> Option<PageCopy> {
        let entry = self.entry(page);
        let (Some(released), None, Some(from), None, None) = (
            entry.released,
            entry.device,
            entry.host,
            entry.disk,
            entry.transfer,
        ) else {
            return None;
        };
        if self.disk.free() == 0 {
            let oldest = self.cached.disk.first()?;
            if oldest.0 > released {
                return None;
            }
            self.reclaim_disk();
        }
        let to = self.disk.take()?;
        Some(self.start_transfer(PageCopy { page, from, to }, DiskDirection::Spill))
    }
}
