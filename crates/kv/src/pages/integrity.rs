//! Consistency check of pages, frames and tables.

use super::Pages;
use crate::frames::Frame;
use crate::page::{PageEntry, PageId};
use crate::page_table::PageTable;

impl Pages {
    /// Panics unless every frame is free or belongs to one page, every page counts exactly the
    /// `tables` that hold it, and cached pages are in order.
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
        self.cached.check_integrity(&self.entries);
        self.prefixes.check_integrity(|page, previous| {
            let (page, previous) = (self.entry(page), previous.map(|page| self.entry(page)));
            let is_held = |entry: &PageEntry| entry.holders > 0;
            match page.released {
                None => is_held(page) && previous.is_none_or(is_held),
                Some(released) => previous.is_none_or(|previous| {
                    is_held(previous) || previous.released.is_some_and(|time| time > released)
                }),
            }
        });
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
            let is_live = entry.holders > 0 || entry.released.is_some();
            assert_eq!(is_live, has_frame, "page {} has no frame", id.0);
            let is_unused = !is_live && entry.transfer.is_none();
            assert_eq!(is_unused, unused[id.index()], "page {} leaked", id.0);
        }
    }
}
