//! Order of cached pages: pages of the prefix index that no table holds.

use std::collections::BTreeSet;

use crate::page::{PageEntry, PageId};

/// Cached pages of one tier, or of all, in order of the time of their release.
type ByRelease = BTreeSet<(u64, PageId)>;

/// Cached pages in order of their release.
#[derive(Clone, Debug)]
pub(crate) struct CachedPages {
    /// Maximum number of cached pages.
    pub limit: usize,
    /// Number of releases so far.
    pub clock: u64,
    pub all: ByRelease,
    /// Pages with a device frame.
    pub device: ByRelease,
    /// Pages with a host frame that is not part of a transfer.
    pub host: ByRelease,
    /// Pages with a disk frame that is not part of a transfer.
    pub disk: ByRelease,
    /// Number of pages that left the cache because their frames were needed.
    pub evicted: u64,
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
