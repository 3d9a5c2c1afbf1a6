//! Moves of pages between the device and host memory.

use super::Pages;
use crate::frames::{Frame, OutOfPages};
use crate::page::{PageCopy, PageId};

impl Pages {
    /// Evicts a page from the device. Returns the copy to host memory, or `None` if host memory
    /// already has the page. The page may take the spare host frame of another page.
    pub fn evict(&mut self, page: PageId) -> Result<Option<PageCopy>, OutOfPages> {
        let Some(from) = self.entry(page).device else {
            return Ok(None);
        };
        let to = match self.entry(page).host {
            Some(_) => None,
            None => Some(self.take_host_frame(page)?),
        };
        self.update(page, |entry| {
            entry.device = None;
            entry.host = entry.host.or(to);
        });
        self.device.give_back(from);
        Ok(to.map(|to| PageCopy { page, from, to }))
    }

    /// Copies a page to a host frame that no table holds and keeps it on the device. Returns the
    /// copy to make, if any. The page can then be evicted without a copy.
    pub fn copy_out(&mut self, page: PageId) -> Option<PageCopy> {
        let entry = self.entry(page);
        let (Some(from), None) = (entry.device, entry.host) else {
            return None;
        };
        if self.host.free() == 0 {
            self.reclaim_host();
        }
        let to = self.host.take()?;
        self.update(page, |entry| entry.host = Some(to));
        Some(PageCopy { page, from, to })
    }

    /// Copies a page from host memory to the device and returns the copy to make, if any. The
    /// page keeps its host frame as a duplicate.
    pub fn copy_in(&mut self, page: PageId) -> Result<Option<PageCopy>, OutOfPages> {
        let entry = self.entry(page);
        let (None, Some(from)) = (entry.device, entry.host) else {
            return Ok(None);
        };
        self.check_device(1)?;
        let to = self.take_device_frame();
        self.update(page, |entry| entry.device = Some(to));
        Ok(Some(PageCopy { page, from, to }))
    }

    /// Takes a free host frame for `page`, the frame of a cached page, or the spare host frame of
    /// another page.
    pub(super) fn take_host_frame(&mut self, page: PageId) -> Result<Frame, OutOfPages> {
        if self.host.free() == 0 && !self.reclaim_host() && self.host_copies > 0 {
            // The search starts at the end of the last search, because frames are taken in
            // bursts.
            let (before, after) = (0..self.clock_hand, self.clock_hand..self.entries.len());
            let ids = after.chain(before).map(|at| PageId(at as u32));
            let mut others = ids.filter(|&id| id != page);
            if let Some(spare) = others.find(|&id| self.entry(id).has_spare_host_frame()) {
                self.clock_hand = spare.index();
                let frame = self.update(spare, |entry| entry.host.take());
                self.host.give_back(frame.expect("it has a host frame"));
            }
        }
        self.host.check(1, 0)?;
        Ok(self.host.take().expect("one is free"))
    }
}
