//! Consistency check of pages, frames and tables.

use super::Pages;
use crate::frames::Frame;
use crate::page::{PageEntry, PageId};
use crate::page_table::PageTable;

impl Pages {
    /// Panics unless every frame is free or belongs to one page, and every page counts exactly
    /// the `tables` that hold it.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) {
        let mut holders = vec![0; self.entries.len()];
        for page in tables.flat_map(|table| &table.pages) {
            holders[page.index()] += 1;
        }
        let found: Vec<u32> = self.entries.iter().map(|entry| entry.holders).collect();
        assert_eq!(found, holders, "holders differ");
        self.check_frames();
        self.check_entries();
        let copies = self.entries.iter();
        let copies = copies.filter(|entry| entry.has_spare_host_frame()).count();
        assert_eq!(copies, self.host_copies, "host copies differ");
        self.prefixes
            .check_integrity(|page| self.entry(page).holders > 0);
    }

    fn check_frames(&self) {
        let transfers = || self.entries.iter().filter_map(|entry| entry.transfer);
        let frames = |frame: fn(&PageEntry) -> Option<Frame>| self.entries.iter().filter_map(frame);
        self.device.check_integrity(frames(|entry| entry.device));
        let in_transfer = transfers().filter_map(|transfer| transfer.host_frame());
        let host = frames(|entry| entry.host).chain(in_transfer);
        self.host.check_integrity(host);
        let in_transfer = transfers().filter_map(|transfer| transfer.disk_frame());
        let disk = frames(|entry| entry.disk).chain(in_transfer);
        self.disk.check_integrity(disk);
    }

    fn check_entries(&self) {
        let mut unused = vec![false; self.entries.len()];
        for page in &self.unused {
            unused[page.index()] = true;
        }
        for (id, entry) in (0..).map(PageId).zip(&self.entries) {
            let frames = [entry.device, entry.host, entry.disk];
            let has_frame = frames.iter().any(Option::is_some);
            assert_eq!(entry.holders > 0, has_frame, "page {} has no frame", id.0);
            let is_unused = entry.holders == 0 && entry.transfer.is_none();
            assert_eq!(is_unused, unused[id.index()], "page {} leaked", id.0);
        }
    }
}
