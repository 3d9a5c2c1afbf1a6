//! Moves of cached pages to slower tiers before their frames are needed.

use super::Pager;
use super::copier::PageCopier;
use crate::error::Result;
use crate::page::{DiskDirection, PageId};

impl<C: PageCopier> Pager<C> {
    /// Sets the maximum number of bytes of cached pages, of all tiers together. `None` lets the
    /// tiers limit them.
    pub fn set_cache_limit(&mut self, bytes: Option<u64>) {
        let pages = bytes.map(|bytes| bytes / self.region.page_bytes().max(1));
        let pages = pages.and_then(|pages| usize::try_from(pages).ok());
        self.pages.set_cache_limit(pages.unwrap_or(usize::MAX));
    }

    /// Removes all pages from the cache.
    pub fn clear_cache(&mut self) {
        self.pages.clear_cache();
    }

    /// Removes pages and the pages after them from the prefix cache, because their contents are in
    /// doubt.
    pub fn forget(&mut self, pages: &[PageId]) {
        pages.iter().for_each(|&page| self.pages.forget(page));
    }

    /// Copies up to `most` cached pages to host memory, so that `frames` device frames can be
    /// reused without losing a cached page. `reserve` free host frames stay free.
    pub fn copy_out_cached(&mut self, frames: usize, reserve: usize, most: usize) -> Result<()> {
        let mut copies = Vec::new();
        for page in self.pages.cached_only_on_device(frames) {
            if copies.len() == most {
                break;
            }
            let Some(copy) = self.pages.copy_out_cached(page, reserve) else {
                break;
            };
            copies.push(copy);
        }
        match copies.is_empty() {
            true => Ok(()),
            false => self.submit_copies_out(&copies),
        }
    }

    /// Starts to write cached pages to disk, so that `frames` host frames can be reused without
    /// losing a cached page. At most `most` disk transfers are in flight afterwards, unless more
    /// were before.
    pub fn spill_cached(&mut self, frames: usize, most: usize) -> Result<()> {
        if self.spill.is_none() {
            return Ok(());
        }
        for page in self.pages.cached_only_in_host_memory(frames) {
            if self.disk_transfers_in_flight() >= most {
                break;
            }
            let host = self.pages.host_frame(page);
            if !self.is_host_frame_idle(host.expect("the page is in host memory"))? {
                continue;
            }
            let (Some(copy), Some(spill)) = (self.pages.spill_cached(page), &mut self.spill) else {
                break;
            };
            spill.submit(copy, DiskDirection::Spill);
        }
        self.update_peaks();
        Ok(())
    }
}
