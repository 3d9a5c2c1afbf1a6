//! Queries about the pages of a table: on the device, or in flight.

use std::sync::Arc;

use super::Pager;
use super::copier::PageCopier;
use super::transfers::{PageTransfer, PendingPages, distinct};
use crate::error::Result;
use crate::page::PageId;
use crate::page_table::PageTable;

impl<C: PageCopier> Pager<C> {
    /// Whether all pages of a table are on the device and none is in flight.
    pub fn is_resident(&mut self, table: &PageTable) -> Result<bool> {
        for &page in table.pages() {
            let Some(frame) = self.pages.device_frame(page) else {
                return Ok(false);
            };
            let arriving = &mut self.arriving[frame.index()];
            let Some(transfer) = arriving else { continue };
            if !transfer.is_done(&*self.copier)? {
                return Ok(false);
            }
            *arriving = None;
        }
        Ok(true)
    }

    /// Whether pages of a table are being copied from their device frames.
    pub fn is_copying_out(&self, table: &PageTable) -> bool {
        let frame = |&page: &PageId| self.pages.device_frame(page);
        let mut frames = table.pages().iter().filter_map(frame);
        // A query that fails here fails again at the next wait, which reports the error.
        let is_in_flight =
            |transfer: &Arc<PageTransfer<_>>| !transfer.is_done(&*self.copier).unwrap_or(true);
        frames.any(|frame| {
            self.leaving[frame.index()]
                .as_ref()
                .is_some_and(is_in_flight)
        })
    }

    /// Number of a table's pages that are not on the device or are in flight to it.
    pub fn awaited(&self, table: &PageTable) -> usize {
        let is_awaited = |&&page: &&PageId| match self.pages.device_frame(page) {
            None => true,
            Some(frame) => self.arriving[frame.index()].is_some(),
        };
        table.pages().iter().filter(is_awaited).count()
    }

    /// Transfers in flight of these tables' pages. A pass over the tables waits for them.
    pub fn pending<'a>(
        &mut self,
        tables: impl Iterator<Item = &'a PageTable>,
    ) -> Result<PendingPages<C::Event>> {
        let mut transfers = Vec::new();
        for &page in tables.flat_map(PageTable::pages) {
            // A page that is not on the device streams through the window.
            let Some(frame) = self.pages.device_frame(page) else {
                continue;
            };
            // The transfer stays recorded, because a pass may end before the last blocks arrive.
            transfers.extend(self.arriving[frame.index()].clone());
        }
        let mut in_flight = Vec::new();
        for transfer in distinct(transfers) {
            if !transfer.is_done(&*self.copier)? {
                in_flight.push(transfer);
            }
        }
        Ok(PendingPages {
            transfers: in_flight,
            blocks: self.region.blocks(),
        })
    }
}
