//! One page: its name, the frames it occupies, and its transfer between host and disk.

use crate::frames::Frame;

/// Name of a page, independent of the frames it occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub(crate) u32);

impl PageId {
    /// Number of the page, unique among live pages and below [`Pages::index_bound`].
    ///
    /// [`Pages::index_bound`]: crate::Pages::index_bound
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Copy of a page from a frame of one tier to a frame of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Page to copy.
    pub page: PageId,
    /// Frame that holds the page's bytes.
    pub from: Frame,
    /// Frame that receives the page's bytes.
    pub to: Frame,
}

/// Direction of a transfer between host memory and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskDirection {
    /// From host memory to disk.
    Spill,
    /// From disk to host memory.
    Fetch,
}

/// Transfer of a page between host memory and disk that has not finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskTransfer {
    from: Frame,
    to: Frame,
    direction: DiskDirection,
    /// Whether a table released or rewrote the page during the transfer, so that the arriving
    /// bytes are useless. A stale transfer holds its source frame; otherwise the page holds it.
    is_stale: bool,
}

impl DiskTransfer {
    /// Starts the transfer of `copy`.
    pub fn new(copy: PageCopy, direction: DiskDirection) -> Self {
        DiskTransfer {
            from: copy.from,
            to: copy.to,
            direction,
            is_stale: false,
        }
    }

    /// Direction of the transfer.
    pub fn direction(&self) -> DiskDirection {
        self.direction
    }

    /// Whether the arriving bytes are useless.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Host frame that the transfer holds, if the page does not hold it.
    pub fn host_frame(&self) -> Option<Frame> {
        match self.direction {
            DiskDirection::Spill => self.is_stale.then_some(self.from),
            DiskDirection::Fetch => Some(self.to),
        }
    }

    /// Disk frame that the transfer holds, if the page does not hold it.
    pub fn disk_frame(&self) -> Option<Frame> {
        match self.direction {
            DiskDirection::Spill => Some(self.to),
            DiskDirection::Fetch => self.is_stale.then_some(self.from),
        }
    }
}

/// State of a page: its frame in each tier, and the number of tables that hold it. If a page has
/// several frames, their bytes are equal. A page without holders is cached, or has no frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageEntry {
    pub holders: u32,
    /// Time at which the last table released the page, if the page is cached.
    pub released: Option<u64>,
    pub device: Option<Frame>,
    pub host: Option<Frame>,
    pub disk: Option<Frame>,
    /// Transfer between host and disk that is in flight.
    pub transfer: Option<DiskTransfer>,
}

impl PageEntry {
    /// Whether the host frame duplicates the device frame of a held page. Another page can then
    /// take the host frame at once.
    pub fn has_spare_host_frame(&self) -> bool {
        let is_twice = self.device.is_some() && self.host.is_some();
        self.holders > 0 && is_twice && self.transfer.is_none()
    }

    /// Whether the disk frame duplicates another frame. Another page can then take the disk frame
    /// at once.
    pub fn has_spare_disk_frame(&self) -> bool {
        let is_elsewhere = self.device.is_some() || self.host.is_some();
        self.disk.is_some() && is_elsewhere && self.transfer.is_none()
    }

    /// Takes the host and disk frames, except the source of a transfer in flight. The transfer
    /// becomes stale and holds its source until it finishes.
    pub fn take_copies(&mut self) -> (Option<Frame>, Option<Frame>) {
        let (host, disk) = (self.host.take(), self.disk.take());
        match &mut self.transfer {
            Some(transfer) if !transfer.is_stale => {
                transfer.is_stale = true;
                match transfer.direction {
                    DiskDirection::Spill => (None, disk),
                    DiskDirection::Fetch => (host, None),
                }
            }
            _ => (host, disk),
        }
    }
}
