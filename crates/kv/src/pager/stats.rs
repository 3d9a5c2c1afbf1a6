//! Statistics of paging: traffic between tiers, and how full each tier is.

use crate::frames::FramePool;
use crate::pages::Pages;

/// Traffic between the tiers since the start, and the peak use of each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PagingStats {
    /// Traffic from the device to host memory.
    pub copied_out: Traffic,
    /// Traffic from host memory to the device.
    pub copied_in: Traffic,
    /// Traffic from host memory to the KV window, for pages that do not stay on the device.
    pub streamed: Traffic,
    /// Traffic from host memory to disk.
    pub spilled: Traffic,
    /// Traffic from disk to host memory.
    pub fetched: Traffic,
    /// Peak bytes of pages of sessions on the device.
    pub device_peak: u64,
    /// Peak bytes of pages of sessions in host memory.
    pub host_peak: u64,
    /// Peak bytes of pages of sessions on disk.
    pub disk_peak: u64,
}

/// Number of KV pages in each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUsage {
    /// Pages on the device.
    pub device: TierUsage,
    /// Pages in host memory.
    pub host: TierUsage,
    /// Pages on disk.
    pub disk: TierUsage,
}

impl KvUsage {
    /// Counts the frames of each tier.
    pub fn new(pages: &Pages) -> Self {
        let tier = |frames: &FramePool, cached: usize| TierUsage {
            used: frames.taken() - cached,
            cached,
            total: frames.total(),
        };
        let cached = pages.cache_stats();
        KvUsage {
            device: tier(pages.device(), cached.device),
            host: tier(pages.host(), cached.host),
            disk: tier(pages.disk(), cached.disk),
        }
    }
}

/// Number of KV pages of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// Number of frames in use, without frames that only the prefix cache uses.
    pub used: usize,
    /// Number of frames that only the prefix cache uses. They count as free.
    pub cached: usize,
    /// Number of frames, in use or free.
    pub total: usize,
}

/// Number of bytes moved in one direction, and the duration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Number of bytes moved.
    pub bytes: u64,
    /// Seconds from the start to the end of each transfer, added up.
    pub seconds: f64,
}

impl Traffic {
    /// Average rate in GB/s; 0 if nothing moved.
    pub fn gb_per_s(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.bytes as f64 / self.seconds / 1e9,
            false => 0.0,
        }
    }
}
