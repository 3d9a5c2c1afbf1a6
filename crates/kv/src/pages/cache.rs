//! Cached pages: pages of the prefix index that no table holds. They stay until their frames are
//! needed, the least recently used first.
//!
//! A table that holds a page also holds the pages before it, and releases them after it. The page
//! before a cached page is therefore held, or was released later: pages leave the cache from the
//! end of a prefix.

use super::Pages;
use crate::cached_pages::CachedPageStats;
use crate::frames::{Frame, OutOfPages};
use crate::page::{DiskDirection, PageCopy, PageId};

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
    /// doubt. Frees the removed pages that no table holds.
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
    pub(super) fn reclaim_device(&mut self) {
        if let Some(&(_, page)) = self.cached.device.first() {
            self.drop_from_device(page);
        }
    }

    /// Frees the device frame of a cached page. The page stays cached if another tier has it.
    pub(super) fn drop_from_device(&mut self, page: PageId) {
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
