//! Copies of pages between the device and host memory.

use std::sync::Arc;

use djinn_device::Stream;

use super::Pager;
use super::copier::PageCopier;
use super::transfers::{PageTransfer, distinct, stage_blocks, stage_count, stage_of};
use crate::error::Result;
use crate::page::{PageCopy, PageId};

/// Number of pages copied as one transfer. A frame can be reused when its transfer is done, so
/// short transfers free frames early.
const TRANSFER_PAGES: usize = 16;

/// Granularity of copies to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Copies block after block for a pass that starts at this block. The blocks before this
    /// block are copied last.
    FromBlock(usize),
    /// Copies whole pages, for pages that no pass waits for yet.
    WholePage,
}

impl<C: PageCopier> Pager<C> {
    /// Evicts pages from the device, as far as host memory has room for them.
    pub fn evict(&mut self, pages: &[PageId]) -> Result<()> {
        // Pages that also have a host frame go first; otherwise other pages could take those
        // frames.
        let mut pages = pages.to_vec();
        pages.sort_by_key(|&page| self.pages.host_frame(page).is_none());
        let mut copies = Vec::new();
        for page in pages {
            let Ok(copy) = self.pages.evict(page) else {
                break;
            };
            copies.extend(copy);
        }
        self.submit_copies_out(&copies)
    }

    /// Copies pages to free host frames and keeps them on the device.
    pub fn copy_out(&mut self, pages: &[PageId]) -> Result<()> {
        let copies = pages.iter().filter_map(|&page| self.pages.copy_out(page));
        let copies: Vec<PageCopy> = copies.collect();
        self.submit_copies_out(&copies)
    }

    pub(super) fn submit_copies_out(&mut self, copies: &[PageCopy]) -> Result<()> {
        self.update_peaks();
        for part in copies.chunks(TRANSFER_PAGES) {
            let start = self.order_copies(Stream::PageOut, part)?;
            for copy in part {
                self.copier.copy_out(*copy)?;
            }
            let stages = vec![self.copier.record(Stream::PageOut)?];
            let bytes = self.region.page_bytes() * part.len() as u64;
            let transfer = PageTransfer::new(start, stages, 0, bytes);
            for copy in part {
                self.leaving[copy.from.index()] = Some(Arc::clone(&transfer));
                self.host_transfers[copy.to.index()] = Some(Arc::clone(&transfer));
            }
            self.copies_out.push_back(transfer);
        }
        self.read_times()
    }

    /// Copies pages from host memory to the device: all that are not on the device yet, or none.
    pub fn copy_in(&mut self, pages: &[PageId], granularity: Granularity) -> Result<()> {
        // Adjacent host frames get adjacent device frames where possible.
        let mut pages: Vec<PageId> = pages.to_vec();
        pages.retain(|&page| self.pages.device_frame(page).is_none());
        pages.sort_unstable_by_key(|&page| self.pages.host_frame(page));
        self.pages.check_device(pages.len())?;
        let mut copies = Vec::new();
        for page in pages {
            copies.extend(self.pages.copy_in(page)?);
        }
        self.update_peaks();
        let together = match granularity {
            Granularity::FromBlock(_) => copies.len().max(1),
            Granularity::WholePage => TRANSFER_PAGES,
        };
        for part in copies.chunks(together) {
            self.submit_copy_in(part, granularity)?;
        }
        self.read_times()
    }

    fn submit_copy_in(&mut self, copies: &[PageCopy], granularity: Granularity) -> Result<()> {
        let start = self.order_copies(Stream::PageIn, copies)?;
        let (count, first) = match granularity {
            Granularity::FromBlock(block) => {
                let count = stage_count(copies, self.region.blocks());
                (count, stage_of(block, count, self.region.blocks()))
            }
            Granularity::WholePage => (1, 0),
        };
        let mut stages = Vec::new();
        for stage in (first..count).chain(0..first) {
            let blocks = stage_blocks(stage, count, self.region.blocks());
            self.copier.copy_in(copies, blocks)?;
            stages.push(self.copier.record(Stream::PageIn)?);
        }
        // Restores the order of blocks.
        stages.rotate_right(first);
        let last = (first + count - 1) % count;
        let bytes = self.region.page_bytes() * copies.len() as u64;
        let transfer = PageTransfer::new(start, stages, last, bytes);
        for copy in copies {
            self.arriving[copy.to.index()] = Some(Arc::clone(&transfer));
            self.host_transfers[copy.from.index()] = Some(Arc::clone(&transfer));
        }
        self.copies_in.push_back(transfer);
        Ok(())
    }

    /// Orders the next copies to the device after the weight copies submitted so far.
    pub fn order_after_weights(&self) -> Result<()> {
        let submitted = self.copier.record(Stream::Copy)?;
        self.copier.wait(Stream::PageIn, &submitted)
    }

    /// Orders the next copies on a page stream after all work that uses their frames: the
    /// computation, and other copies. Returns an event at the start of the copies.
    fn order_copies(&mut self, stream: Stream, copies: &[PageCopy]) -> Result<C::Event> {
        // Pages of the running pass do not move, so waiting for its start is enough.
        let computed = match &self.pass_start {
            Some(start) => start.clone(),
            None => self.copier.record(Stream::Compute)?,
        };
        self.copier.wait(stream, &computed)?;
        let mut after: Vec<Arc<PageTransfer<C::Event>>> = Vec::new();
        for copy in copies {
            let host = match stream {
                Stream::PageIn => {
                    after.extend(self.take_frame_transfers(copy.to).into_iter().flatten());
                    copy.from
                }
                // The arrival stays recorded, because readers of the page wait for the arrival
                // and not for this copy.
                _ => {
                    after.extend(self.arriving[copy.from.index()].clone());
                    copy.to
                }
            };
            after.extend(self.host_transfers[host.index()].take());
        }
        for transfer in distinct(after) {
            self.copier.wait(stream, transfer.end())?;
        }
        self.copier.record(stream)
    }
}
