//! Transfers of pages between host memory and disk.

use super::Pager;
use super::copier::PageCopier;
use crate::error::{Result, SpillError};
use crate::frames::Frame;
use crate::page::{DiskDirection, PageId};
use crate::spill_threads::SpillThreads;

/// Disk transfer that failed. The page keeps its frames.
#[derive(Debug)]
pub struct FailedDiskTransfer {
    /// Page of the transfer.
    pub page: PageId,
    /// Direction of the transfer.
    pub direction: DiskDirection,
    /// Reason for the failure.
    pub error: SpillError,
}

impl<C: PageCopier> Pager<C> {
    /// Whether there is a disk tier behind host memory.
    pub fn has_disk(&self) -> bool {
        self.spill.is_some()
    }

    /// Number of transfers between host and disk in flight.
    pub fn disk_transfers_in_flight(&self) -> usize {
        self.spill.as_ref().map_or(0, SpillThreads::in_flight)
    }

    /// Starts to write a page that is only in host memory to disk, and returns whether it did. A
    /// page with a copy from or to host memory in flight does not start.
    pub fn spill(&mut self, page: PageId) -> Result<bool> {
        let Some(host) = self.pages.host_frame(page) else {
            return Ok(false);
        };
        if !self.is_host_frame_idle(host)? {
            return Ok(false);
        }
        let copy = self.pages.spill(page);
        if let (Some(copy), Some(spill)) = (copy, &mut self.spill) {
            spill.submit(copy, DiskDirection::Spill);
        }
        self.update_peaks();
        Ok(copy.is_some())
    }

    /// Starts to read a page that is only on disk into a free host frame, and returns whether it
    /// did.
    pub fn fetch(&mut self, page: PageId) -> Result<bool> {
        let copy = self.pages.fetch(page);
        if let Some(copy) = copy {
            if let Some(transfer) = self.host_transfers[copy.to.index()].take()
                && let Err(error) = self.copier.wait_here(transfer.end())
            {
                self.pages.finish_transfer(page, false);
                return Err(error);
            }
            let spill = self.spill.as_mut().expect("a page on disk was spilled");
            spill.submit(copy, DiskDirection::Fetch);
        }
        self.update_peaks();
        Ok(copy.is_some())
    }

    /// Whether no copy from or to a host frame is in flight.
    pub(super) fn is_host_frame_idle(&mut self, host: Frame) -> Result<bool> {
        let last = &mut self.host_transfers[host.index()];
        let Some(transfer) = last else {
            return Ok(true);
        };
        let is_done = transfer.is_done(&*self.copier)?;
        if is_done {
            *last = None;
        }
        Ok(is_done)
    }

    /// Finishes the disk transfers that are done, and returns the failed ones. With `wait`,
    /// blocks until at least one is done, unless no transfer is in flight.
    pub fn finish_disk_transfers(&mut self, wait: bool) -> Vec<FailedDiskTransfer> {
        let Some(spill) = &mut self.spill else {
            return Vec::new();
        };
        let mut failed = Vec::new();
        for done in spill.take_done(wait) {
            let (page, direction) = (done.page, done.direction);
            let traffic = match direction {
                DiskDirection::Spill => &mut self.stats.spilled,
                DiskDirection::Fetch => &mut self.stats.fetched,
            };
            traffic.bytes += self.region.page_bytes();
            traffic.seconds += done.seconds;
            self.pages.finish_transfer(page, done.result.is_ok());
            failed.extend(done.result.err().map(|error| FailedDiskTransfer {
                page,
                direction,
                error,
            }));
        }
        failed
    }
}
