//! Moves of pages between host memory and disk.
//!
//! A disk transfer takes time, and a table may release or rewrite the page meanwhile. Both frames
//! of a transfer stay taken until the transfer finishes.

use super::Pages;
use crate::frames::Frame;
use crate::page::{DiskDirection, DiskTransfer, PageCopy, PageId};

impl Pages {
    /// Whether a page is neither on the device nor in host memory. A page counts as on disk until
    /// its fetch has finished.
    pub fn is_only_on_disk(&self, page: PageId) -> bool {
        let entry = self.entry(page);
        entry.device.is_none() && entry.host.is_none()
    }

    /// Whether a transfer of the page between host and disk is in flight.
    pub fn in_disk_transfer(&self, page: PageId) -> bool {
        self.entry(page).transfer.is_some()
    }

    /// Number of pages that are being written to disk. Their host frames become free soon.
    pub fn spilling(&self) -> usize {
        let transfers = self.entries.iter().filter_map(|entry| entry.transfer);
        transfers
            .filter(|transfer| transfer.direction() == DiskDirection::Spill)
            .count()
    }

    /// Spills a page that is only in host memory, and returns the copy to write. Returns `None`
    /// if the disk is full, or if the disk already has the page; in that case the host frame
    /// becomes free at once.
    pub fn spill(&mut self, page: PageId) -> Option<PageCopy> {
        let entry = self.entry(page);
        let (None, Some(from), None) = (entry.device, entry.host, entry.transfer) else {
            return None;
        };
        if entry.disk.is_some() {
            self.update(page, |entry| entry.host = None);
            self.host.give_back(from);
            return None;
        }
        let to = self.take_disk_frame()?;
        Some(self.start_transfer(PageCopy { page, from, to }, DiskDirection::Spill))
    }

    /// Fetches a page that is only on disk, and returns the copy to read. Returns `None` if the
    /// page is in another tier or in transfer, or if no host frame is free.
    pub fn fetch(&mut self, page: PageId) -> Option<PageCopy> {
        let (is_away, entry) = (self.is_only_on_disk(page), self.entry(page));
        let (true, Some(from), None) = (is_away, entry.disk, entry.transfer) else {
            return None;
        };
        let to = self.take_host_frame(page).ok()?;
        Some(self.start_transfer(PageCopy { page, from, to }, DiskDirection::Fetch))
    }

    pub(super) fn start_transfer(&mut self, copy: PageCopy, direction: DiskDirection) -> PageCopy {
        let transfer = DiskTransfer::new(copy, direction);
        self.update(copy.page, |entry| entry.transfer = Some(transfer));
        copy
    }

    /// Takes a free disk frame, the frame of a cached page, or the spare disk frame of a page.
    fn take_disk_frame(&mut self) -> Option<Frame> {
        if self.disk.free() == 0 && !self.reclaim_disk() {
            let mut entries = self.entries.iter_mut();
            let spare = entries.find(|entry| entry.has_spare_disk_frame())?;
            let frame = spare.disk.take().expect("it has a disk frame");
            self.disk.give_back(frame);
        }
        self.disk.take()
    }

    /// Finishes the disk transfer of a page. After a failed transfer the page keeps its frames.
    pub fn finish_transfer(&mut self, page: PageId, is_ok: bool) {
        let transfer = self.update(page, |entry| entry.transfer.take());
        let transfer = transfer.expect("a transfer of this page is in flight");
        let (mut host, mut disk) = (transfer.host_frame(), transfer.disk_frame());
        if !transfer.is_stale() && is_ok {
            self.update(page, |entry| match transfer.direction() {
                // A page that returned to the device during the spill keeps its host frame.
                DiskDirection::Spill => {
                    entry.disk = disk.take();
                    host = match entry.device {
                        None => entry.host.take(),
                        Some(_) => None,
                    };
                }
                // A page that was computed again during the fetch may already have a host frame.
                DiskDirection::Fetch if entry.host.is_none() => entry.host = host.take(),
                DiskDirection::Fetch => {}
            });
        }
        self.give_back(host, disk);
        let entry = self.entry(page);
        if entry.holders == 0 && entry.released.is_none() {
            self.unused.push(page);
        }
    }
}
