//! Memory budget: the number of pages of each tier.

use std::path::PathBuf;

/// Memory that KV pages may use, as set by the user.
#[derive(Clone, Debug, Default)]
pub struct KvMemory {
    /// Bytes of device memory. The default is the memory that the weights leave free, or an
    /// eighth of the memory if the weights do not fit.
    pub device: Option<u64>,
    /// Disk behind host memory, if any.
    pub spill: Option<SpillConfig>,
}

impl KvMemory {
    /// Divisor of the device memory that gives the share of pages if weights stream.
    const STREAMED_SHARE: u64 = 8;

    /// Bytes of device memory for pages if weights stream, out of `budget` bytes.
    pub fn streamed_device_bytes(&self, budget: u64) -> u64 {
        self.device.unwrap_or(budget / Self::STREAMED_SHARE)
    }
}

/// Disk space for pages that do not fit in host memory.
#[derive(Clone, Debug)]
pub struct SpillConfig {
    /// Folder of the spill file.
    pub folder: PathBuf,
    /// Largest size of the spill file in bytes.
    pub bytes: u64,
}

/// Number of pages that page tables need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageDemand {
    /// Pages of all tables together.
    pub total: usize,
    /// Pages of the longest table.
    pub longest: usize,
}

/// Host memory holds fewer pages than a disk tier needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a disk tier needs {needed} KV pages of host memory, but host memory has {host}")]
pub struct TooFewHostPages {
    /// Pages that host memory needs.
    pub needed: usize,
    /// Pages that host memory has.
    pub host: usize,
}

impl PageDemand {
    /// Number of device pages if `spare_bytes` of device memory are left in addition to the
    /// longest table.
    pub fn device_pages(&self, spare_bytes: u64, page_bytes: u64) -> usize {
        let fits = pages_in(spare_bytes, page_bytes);
        self.longest.saturating_add(fits).min(self.total)
    }

    /// Number of host pages for `device_pages` pages on the device, in at most `host_bytes` of
    /// host memory. Host memory is large enough for all tables: the pages of a waiting table stay
    /// there and return without an eviction.
    pub fn host_pages(&self, device_pages: usize, host_bytes: u64, page_bytes: u64) -> usize {
        match self.total > device_pages {
            true => (self.total + self.longest).min(pages_in(host_bytes, page_bytes)),
            false => 0,
        }
    }

    /// Number of disk pages for the tables that fit neither on the device nor in host memory, in
    /// at most `spill_bytes` of disk space. Pages pass through host memory on their way to disk,
    /// so a disk tier needs host memory for the longest table, and for the pages of another that
    /// leave the device.
    pub fn disk_pages(
        &self,
        device_pages: usize,
        host_pages: usize,
        spill_bytes: u64,
        page_bytes: u64,
    ) -> Result<usize, TooFewHostPages> {
        // The disk gets three tables more than the demand: host memory keeps a reserve for pages
        // that return from disk, and one table must always have room to leave.
        let wanted = self.total + 3 * self.longest;
        let wanted = wanted.saturating_sub(device_pages + host_pages);
        if self.total <= device_pages || wanted == 0 {
            return Ok(0);
        }
        let needed = self.longest + self.longest.min(device_pages);
        let host = host_pages;
        if host < needed {
            return Err(TooFewHostPages { needed, host });
        }
        Ok(wanted.min(pages_in(spill_bytes, page_bytes)))
    }
}

fn pages_in(bytes: u64, page_bytes: u64) -> usize {
    usize::try_from(bytes / page_bytes.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PageDemand, TooFewHostPages};

    const DEMAND: PageDemand = PageDemand {
        total: 100,
        longest: 10,
    };

    #[test]
    fn device_pages_hold_the_longest_table_and_no_more_than_all() {
        assert_eq!(DEMAND.device_pages(0, 4), 10);
        assert_eq!(DEMAND.device_pages(43, 4), 20);
        assert_eq!(DEMAND.device_pages(u64::MAX, 4), 100);
        assert_eq!(
            DEMAND.device_pages(u64::MAX, 0),
            100,
            "a page without bytes"
        );
    }

    #[test]
    fn host_pages_only_if_the_device_does_not_hold_all() {
        assert_eq!(DEMAND.host_pages(100, u64::MAX, 4), 0);
        assert_eq!(DEMAND.host_pages(99, u64::MAX, 4), 110);
        assert_eq!(DEMAND.host_pages(99, 40, 4), 10);
    }

    #[test]
    fn disk_pages_need_host_memory_for_two_tables() {
        let disk = |host| DEMAND.disk_pages(20, host, u64::MAX, 4);
        let error = TooFewHostPages {
            needed: 20,
            host: 19,
        };
        assert_eq!(disk(19), Err(error));
        assert_eq!(disk(20), Ok(90));
        assert_eq!(disk(110), Ok(0), "everything fits in memory");
        assert_eq!(DEMAND.disk_pages(100, 0, u64::MAX, 4), Ok(0));
        assert_eq!(DEMAND.disk_pages(20, 20, 43, 4), Ok(10));
    }

    proptest! {
        /// Checks that with enough disk space the tiers together hold all tables and room to
        /// swap.
        #[test]
        fn tiers_hold_all_tables(
            total in 1usize..500, longest in 1usize..50, spare in 0u64..2000, host in 0u64..4000,
        ) {
            let demand = PageDemand { total: total.max(longest), longest };
            let device = demand.device_pages(spare, 4);
            prop_assert!((longest..=demand.total).contains(&device));
            let host = demand.host_pages(device, host, 4);
            let Ok(disk) = demand.disk_pages(device, host, u64::MAX, 4) else {
                prop_assert!(host < 2 * longest);
                return Ok(());
            };
            prop_assert!(device + host + disk >= demand.total);
            if disk > 0 {
                prop_assert_eq!(device + host + disk, demand.total + 3 * longest);
            }
        }
    }
}
