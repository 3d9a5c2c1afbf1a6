//! Pager: moves pages between the device, host memory and disk.
//!
//! Between device and host the pager orders copies by events. The compute stream copies no page
//! except for copy-on-write. A pass waits only for the copies that it needs. A frame is reused
//! after the copies from or to it are done.

mod cache;
mod copier;
mod disk;
mod host;
mod residency;
mod saved;
mod stats;
#[cfg(test)]
mod tests;
mod transfers;
mod window;

use std::{collections::VecDeque, ops::Range, path::PathBuf, sync::Arc};

use djinn_device::{Device, Stream};

pub use self::copier::{DeviceCopier, PageCopier, WindowCopy};
pub use self::disk::FailedDiskTransfer;
pub use self::host::Granularity;
pub use self::saved::PageReader;
pub use self::stats::{KvUsage, PagingStats, TierUsage, Traffic};
pub use self::transfers::PendingPages;
use self::transfers::{FrameTransfers, PageTransfer};
pub use self::window::PageStream;
use crate::error::Result;
use crate::frames::Frame;
use crate::page_table::PageTable;
use crate::pages::Pages;
use crate::prefix_index::PageContent;
use crate::region::KvRegion;
use crate::spill_file::SpillFile;
use crate::spill_threads::SpillThreads;

/// Assumed rate in bytes per second of copies to the device, until a copy is measured: the rate
/// of a slow link.
const UNMEASURED_RATE: f64 = 10e9;

/// Size and location of the disk tier.
#[derive(Clone, Debug)]
pub struct DiskTier {
    /// Folder of the spill file.
    pub folder: PathBuf,
    /// Number of pages that the spill file may hold.
    pub pages: usize,
}

/// Moves pages between the device, host memory and disk.
pub struct Pager<C: PageCopier = DeviceCopier> {
    copier: Arc<C>,
    pages: Pages,
    spill: Option<SpillThreads>,
    region: KvRegion,
    /// Last copy into each device frame. Readers of the page wait for this copy.
    arriving: FrameTransfers<C::Event>,
    /// Last copy from each device frame. The next writer of the frame waits for this copy.
    leaving: FrameTransfers<C::Event>,
    /// Last copy from or to each host frame.
    host_transfers: FrameTransfers<C::Event>,
    stats: PagingStats,
    /// Event at the start of the running pass on the compute stream.
    pass_start: Option<C::Event>,
    /// Copies to host memory that have no measured time yet.
    copies_out: VecDeque<Arc<PageTransfer<C::Event>>>,
    /// Copies to the device that have no measured time yet.
    copies_in: VecDeque<Arc<PageTransfer<C::Event>>>,
    /// Copies to the KV window that have no measured time yet.
    streamed: VecDeque<Arc<PageTransfer<C::Event>>>,
}

impl Pager {
    /// Allocates host memory for `host_pages` pages, and creates a spill file if there is a disk
    /// tier. `region` is the place of the pages in the device's slab.
    pub fn new(
        device: &Arc<dyn Device>,
        region: KvRegion,
        host_pages: usize,
        disk: Option<DiskTier>,
    ) -> Result<Self> {
        let copier = DeviceCopier::new(device, region, host_pages)?;
        let (mut disk_pages, mut spill) = (0, None);
        if let (Some(disk), Some(host)) = (disk, copier.host_slab())
            && disk.pages > 0
        {
            let file = SpillFile::create(&disk.folder, region.page_bytes(), disk.pages)?;
            spill = Some(SpillThreads::start(file, Arc::clone(host))?);
            disk_pages = disk.pages;
        }
        let pages = Pages::new(region.frames(), host_pages, disk_pages);
        Ok(Pager {
            spill,
            ..Pager::with(copier, pages, region)
        })
    }
}

impl<C: PageCopier> Pager<C> {
    fn with(copier: C, pages: Pages, region: KvRegion) -> Self {
        Pager {
            copier: Arc::new(copier),
            region,
            spill: None,
            arriving: vec![None; pages.device().capacity()],
            leaving: vec![None; pages.device().capacity()],
            host_transfers: vec![None; pages.host().total()],
            pages,
            stats: PagingStats::default(),
            pass_start: None,
            copies_out: VecDeque::new(),
            copies_in: VecDeque::new(),
            streamed: VecDeque::new(),
        }
    }

    /// Frames and holders of every page.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Statistics since the start. This call waits for copies in flight.
    pub fn stats(&mut self) -> Result<PagingStats> {
        let in_flight = self.copies_out.iter().chain(&self.copies_in);
        for transfer in in_flight.chain(&self.streamed) {
            self.copier.wait_here(transfer.end())?;
        }
        self.read_times()?;
        Ok(self.stats)
    }

    /// Statistics since the start, without the copies that are in flight. This call waits for none.
    pub fn stats_so_far(&mut self) -> Result<PagingStats> {
        self.read_times()?;
        Ok(self.stats)
    }

    /// Whether the last statistics lack copies that were in flight.
    pub fn has_copies_in_flight(&self) -> bool {
        let all = [&self.copies_out, &self.copies_in, &self.streamed];
        all.into_iter().any(|transfers| !transfers.is_empty())
    }

    /// Number of pages in each tier.
    pub fn usage(&self) -> KvUsage {
        KvUsage::new(&self.pages)
    }

    /// Expected seconds to copy `pages` pages to the device, at the rate measured so far.
    pub fn copy_in_seconds(&self, pages: usize) -> f64 {
        let bytes = self.region.page_bytes() * pages as u64;
        match self.stats.copied_in.gb_per_s() {
            0.0 => bytes as f64 / UNMEASURED_RATE,
            rate => bytes as f64 / (rate * 1e9),
        }
    }

    /// Reads the times of finished transfers.
    fn read_times(&mut self) -> Result<()> {
        let directions = [
            (&mut self.copies_out, &mut self.stats.copied_out),
            (&mut self.copies_in, &mut self.stats.copied_in),
            (&mut self.streamed, &mut self.stats.streamed),
        ];
        for (transfers, traffic) in directions {
            while let Some(transfer) = transfers.front()
                && transfer.is_done(&*self.copier)?
            {
                let (start, end) = (&transfer.start, transfer.end());
                traffic.seconds += self.copier.seconds_between(start, end)?;
                traffic.bytes += transfer.bytes;
                transfers.pop_front();
            }
        }
        Ok(())
    }

    /// Updates the peak use of every tier.
    fn update_peaks(&mut self) {
        let usage = KvUsage::new(&self.pages);
        let page_bytes = self.region.page_bytes();
        let bytes = |tier: TierUsage| page_bytes * tier.used as u64;
        let stats = &mut self.stats;
        stats.device_peak = stats.device_peak.max(bytes(usage.device));
        stats.host_peak = stats.host_peak.max(bytes(usage.host));
        stats.disk_peak = stats.disk_peak.max(bytes(usage.disk));
    }

    /// Prepares the pages of a table for a write to `tokens`: adds frames and makes copy-on-write
    /// copies. If frames are missing, this call changes nothing.
    pub fn prepare_write(&mut self, table: &mut PageTable, tokens: Range<usize>) -> Result<()> {
        let plan = self.pages.prepare_write(table, tokens)?;
        for (from, _) in &plan.copies {
            if let Some(transfer) = self.arriving[from.index()].take() {
                self.copier.wait(Stream::Compute, transfer.end())?;
            }
        }
        let targets = plan.copies.iter().map(|(_, to)| to);
        for frame in targets.chain(&plan.new_frames) {
            for transfer in self.take_frame_transfers(*frame).into_iter().flatten() {
                self.copier.wait(Stream::Compute, transfer.end())?;
            }
        }
        for (from, to) in plan.copies {
            self.copier.copy_on_device(from, to)?;
        }
        self.update_peaks();
        Ok(())
    }

    /// Makes the first `count` device frames available, between two passes. Pages in other frames
    /// move to free ones. Afterwards no work uses the other frames, except work that is on the
    /// compute stream or precedes it. If too few frames are free, this call changes nothing.
    pub fn set_device_frames(&mut self, count: usize) -> Result<()> {
        let before = self.pages.device().total();
        let moves = self.pages.set_device_frames(count)?;
        for &(from, to) in &moves {
            let mut after: Vec<_> = self.arriving[from.index()].take().into_iter().collect();
            after.extend(self.take_frame_transfers(to).into_iter().flatten());
            for transfer in after {
                self.copier.wait(Stream::Compute, transfer.end())?;
            }
            self.copier.copy_on_device(from, to)?;
        }
        for at in count..before {
            let frame = Frame(u32::try_from(at).expect("a frame number has 32 bits"));
            for transfer in self.take_frame_transfers(frame).into_iter().flatten() {
                self.copier.wait(Stream::Compute, transfer.end())?;
            }
        }
        Ok(())
    }

    /// Takes the transfers to wait for before a device frame is reused.
    fn take_frame_transfers(&mut self, frame: Frame) -> [Option<Arc<PageTransfer<C::Event>>>; 2] {
        let at = frame.index();
        [self.arriving[at].take(), self.leaving[at].take()]
    }

    /// Starts a pass. The pages of the pass do not move until [`Pager::end_pass`].
    pub fn begin_pass(&mut self) -> Result<()> {
        self.pass_start = Some(self.copier.record(Stream::Compute)?);
        Ok(())
    }

    /// Ends the running pass.
    pub fn end_pass(&mut self) {
        self.pass_start = None;
    }

    /// Waits until no copy is in flight. After a failure this makes every frame reusable.
    pub fn drain(&mut self) {
        self.copier.drain();
        self.arriving.fill(None);
        self.leaving.fill(None);
        self.host_transfers.fill(None);
    }

    /// Creates a second table that holds the same pages.
    pub fn share(&mut self, table: &PageTable) -> PageTable {
        self.pages.share(table)
    }

    /// Looks up a page with this content in the prefix cache and puts it at index `at` of a
    /// table. Returns whether a page was found.
    pub fn lookup_prefix(
        &mut self,
        table: &mut PageTable,
        at: usize,
        content: &PageContent,
    ) -> bool {
        self.pages.lookup_prefix(table, at, content)
    }

    /// Inserts the full page at index `at` of a table into the prefix cache.
    pub fn insert_prefix(&mut self, table: &mut PageTable, at: usize, content: PageContent) {
        self.pages.insert_prefix(table, at, content);
    }

    /// Releases all pages of a table. Full pages that the prefix cache has stay in it until other
    /// tables need their frames.
    pub fn release(&mut self, table: &mut PageTable) {
        self.pages.release(table);
    }

    /// Releases the pages of a table after the first `len`.
    pub fn truncate(&mut self, table: &mut PageTable, len: usize) {
        self.pages.truncate(table, len);
    }

    /// Releases all pages of a table whose contents are in doubt. A page that no other table holds
    /// leaves the prefix cache.
    pub fn discard(&mut self, table: &mut PageTable) {
        self.pages.discard(table);
    }
}
