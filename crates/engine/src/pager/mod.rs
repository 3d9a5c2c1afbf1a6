//! The pager: moves pages of sessions between the slab, host memory and disk.
//!
//! Between slab and host it only says what comes after what, by events: no copy runs on the
//! compute stream, no pass waits for one that it does not need, and a frame is used again
//! once the copy from or to it is done.

mod copies;
mod disk;
mod spiller;
#[cfg(test)]
mod tests;
mod trips;

use std::{collections::VecDeque, ops::Range, sync::Arc};

use djinn_device::{Device, KvLayer, Stream};
use djinn_memory::{Chunk, Frame, Frames, Move, PageId, PageTable, Pages};
use djinn_store::Spill;

pub(crate) use self::copies::{Copies, DeviceCopies};
use self::spiller::Spiller;
pub(crate) use self::spiller::Way;
pub(crate) use self::trips::Arrivals;
use self::trips::{After, Trip, distinct, stage_blocks, stage_of, stages};
use crate::{Blueprint, EngineError};

type Result<T> = std::result::Result<T, EngineError>;

/// What paging came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Paged {
    /// To host memory.
    pub out: Traffic,
    /// And back.
    pub back: Traffic,
    /// From host memory to disk.
    pub spilled: Traffic,
    /// And back.
    pub fetched: Traffic,
    /// The most bytes of pages that were held on the device at once.
    pub device_peak: u64,
    /// The same of host memory.
    pub host_peak: u64,
    /// The same of the disk.
    pub disk_peak: u64,
}

/// Pages of KV in each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPages {
    /// Where passes run.
    pub device: PagesHeld,
    /// In host memory.
    pub host: PagesHeld,
    /// On disk.
    pub disk: PagesHeld,
}

/// How many pages a tier holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesHeld {
    /// Those that sessions hold.
    pub held: usize,
    /// As many as there is room for.
    pub total: usize,
}

/// Bytes that went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// How many.
    pub bytes: u64,
    /// How long they were under way.
    pub seconds: f64,
}

impl Traffic {
    /// GB/s while something moved; 0 where nothing did.
    pub fn gb_per_s(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.bytes as f64 / self.seconds / 1e9,
            false => 0.0,
        }
    }
}

/// Pages copied together: those that take their places need not wait for others.
const TOGETHER: usize = 16;

/// How pages come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// A pass waits for them: block after block from this one on, and then those before it,
    /// which it does not come to.
    From(usize),
    /// Nobody waits yet: each page in one go.
    Whole,
}

/// Bytes a second that pages come back at before any did: what a slow link does.
const UNMEASURED: f64 = 10e9;

pub(crate) struct Pager<C: Copies = DeviceCopies> {
    copies: C,
    pages: Pages,
    spiller: Option<Spiller>,
    /// Bytes of a page, and its blocks.
    bytes: u64,
    blocks: usize,
    /// By frame of the slab: what is on its way there, and what is copied from there, which
    /// only those wait for who use the frame anew.
    arriving: After<C::Event>,
    leaving: After<C::Event>,
    /// By frame of the host: what is copied from or to it.
    host_after: After<C::Event>,
    paged: Paged,
    /// Where the pass at hand begins on the compute stream, while there is one.
    pass: Option<C::Event>,
    /// What went out and came back of late, whose times are still to be read.
    out: VecDeque<Arc<Trip<C::Event>>>,
    back: VecDeque<Arc<Trip<C::Event>>>,
}

impl Pager {
    /// Takes host memory for pages beside those of the slab, which `kv` says, and a file for
    /// those that find no room there.
    pub fn new(
        device: &Arc<dyn Device>,
        kv: KvLayer,
        blocks: usize,
        blueprint: &Blueprint,
    ) -> Result<Self> {
        let settings = &blueprint.settings;
        let copies = DeviceCopies::new(device, kv, blocks, settings.host_pages)?;
        let bytes = copies.page_bytes();
        let spiller = match (&blueprint.spill, &copies.host, settings.disk_pages) {
            (Some(folder), Some(host), 1..) => {
                let spill = Spill::create(folder, bytes, settings.disk_pages)?;
                Some(Spiller::start(spill, Arc::clone(host))?)
            }
            _ => None,
        };
        let disk_pages = spiller.as_ref().map_or(0, |_| settings.disk_pages);
        let pages = Pages::new(kv.pages, settings.host_pages, disk_pages);
        Ok(Pager {
            spiller,
            ..Pager::with(copies, pages, bytes, blocks)
        })
    }
}

impl<C: Copies> Pager<C> {
    fn with(copies: C, pages: Pages, bytes: u64, blocks: usize) -> Self {
        Pager {
            copies,
            bytes,
            blocks,
            spiller: None,
            arriving: vec![None; pages.device().total()],
            leaving: vec![None; pages.device().total()],
            host_after: vec![None; pages.host().total()],
            pages,
            paged: Paged::default(),
            pass: None,
            out: VecDeque::new(),
            back: VecDeque::new(),
        }
    }

    /// Where pages are.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// What went each way so far; waits for what is under way.
    pub fn paged(&mut self) -> Result<Paged> {
        for trip in self.out.iter().chain(&self.back) {
            self.copies.wait_here(trip.ended())?;
        }
        self.read_times()?;
        Ok(self.paged)
    }

    /// Seconds that so many pages are under way when they come back, going by those that
    /// did.
    pub fn seconds_back(&self, pages: usize) -> f64 {
        let bytes = self.bytes * pages as u64;
        match self.paged.back.gb_per_s() {
            0.0 => bytes as f64 / UNMEASURED,
            rate => bytes as f64 / (rate * 1e9),
        }
    }

    /// Reads the times of trips that have ended.
    fn read_times(&mut self) -> Result<()> {
        let ways = [
            (&mut self.out, &mut self.paged.out),
            (&mut self.back, &mut self.paged.back),
        ];
        for (trips, traffic) in ways {
            while let Some(trip) = trips.front()
                && trip.is_over(&self.copies)?
            {
                traffic.seconds += self.copies.seconds(&trip.began, trip.ended())?;
                traffic.bytes += trip.bytes;
                trips.pop_front();
            }
        }
        Ok(())
    }

    /// Notes how many pages are held now.
    fn note_peaks(&mut self) {
        let held = |frames: &Frames| self.bytes * (frames.total() - frames.free()) as u64;
        let paged = &mut self.paged;
        paged.device_peak = paged.device_peak.max(held(self.pages.device()));
        paged.host_peak = paged.host_peak.max(held(self.pages.host()));
        paged.disk_peak = paged.disk_peak.max(held(self.pages.disk()));
    }

    /// Takes what tokens that are computed next will be written to, or nothing at all.
    pub fn write(&mut self, table: &mut PageTable, tokens: Range<usize>) -> Result<()> {
        let fresh = self.pages.write(table, tokens)?;
        for (from, _) in &fresh.copies {
            if let Some(trip) = self.arriving[from.0 as usize].take() {
                self.copies.wait(Stream::Compute, trip.ended())?;
            }
        }
        let anew = fresh.copies.iter().map(|(_, to)| to).chain(&fresh.grown);
        for frame in anew {
            for trip in self.take_slab(*frame).into_iter().flatten() {
                self.copies.wait(Stream::Compute, trip.ended())?;
            }
        }
        for (from, to) in fresh.copies {
            self.copies.copy(from, to)?;
        }
        self.note_peaks();
        Ok(())
    }

    /// Lets pages go from the slab, as far as the host has room.
    pub fn send_away(&mut self, pages: &[PageId]) -> Result<()> {
        // Those that the host has already first: others would take their frames there.
        let mut pages = pages.to_vec();
        pages.sort_by_key(|&page| self.pages.host_frame(page).is_none());
        let mut moves = Vec::new();
        for page in pages {
            let Ok(sent) = self.pages.send_away(page) else {
                break;
            };
            moves.extend(sent);
        }
        self.send(&moves)
    }

    /// Has the host keep pages that stay in the slab, as far as frames are free there.
    pub fn copy_out(&mut self, pages: &[PageId]) -> Result<()> {
        let copied = pages.iter().filter_map(|&page| self.pages.copy_out(page));
        let moves: Vec<Move> = copied.collect();
        self.send(&moves)
    }

    fn send(&mut self, moves: &[Move]) -> Result<()> {
        self.note_peaks();
        for part in moves.chunks(TOGETHER) {
            let began = self.begin(Stream::PageOut, part)?;
            for page in part {
                self.copies.send(*page)?;
            }
            let stages = vec![self.copies.record(Stream::PageOut)?];
            let bytes = self.bytes * part.len() as u64;
            let trip = Trip::new(began, stages, 0, bytes);
            for page in part {
                self.leaving[page.from.0 as usize] = Some(Arc::clone(&trip));
                self.host_after[page.to.0 as usize] = Some(Arc::clone(&trip));
            }
            self.out.push_back(trip);
        }
        self.read_times()
    }

    /// Brings pages back that are on the host: all of them, or none.
    pub fn bring_back(&mut self, pages: &[PageId], pace: Pace) -> Result<()> {
        // What lies side by side there comes side by side, where it can.
        let mut pages: Vec<PageId> = pages.to_vec();
        pages.retain(|&page| self.pages.device_frame(page).is_none());
        pages.sort_unstable_by_key(|&page| self.pages.host_frame(page));
        self.pages.check_device(pages.len())?;
        let mut moves = Vec::new();
        for page in pages {
            moves.extend(self.pages.bring_back(page)?);
        }
        self.note_peaks();
        let together = match pace {
            Pace::From(_) => moves.len().max(1),
            Pace::Whole => TOGETHER,
        };
        for part in moves.chunks(together) {
            let began = self.begin(Stream::PageIn, part)?;
            let (count, first) = match pace {
                Pace::From(block) => {
                    let count = stages(part, self.blocks);
                    (count, stage_of(block, count, self.blocks))
                }
                Pace::Whole => (1, 0),
            };
            let mut stages = Vec::new();
            for stage in (first..count).chain(0..first) {
                let blocks = stage_blocks(stage, count, self.blocks);
                self.copies.bring(part, blocks)?;
                stages.push(self.copies.record(Stream::PageIn)?);
            }
            // In order of their blocks again.
            stages.rotate_right(first);
            let last = (first + count - 1) % count;
            let bytes = self.bytes * part.len() as u64;
            let trip = Trip::new(began, stages, last, bytes);
            for page in part {
                self.arriving[page.to.0 as usize] = Some(Arc::clone(&trip));
                self.host_after[page.from.0 as usize] = Some(Arc::clone(&trip));
            }
            self.back.push_back(trip);
        }
        self.read_times()
    }

    /// A pass begins, whose pages stay where they are until it ends.
    pub fn pass_begins(&mut self) -> Result<()> {
        self.pass = Some(self.copies.record(Stream::Compute)?);
        Ok(())
    }

    /// It has.
    pub fn pass_ends(&mut self) {
        self.pass = None;
    }

    /// What comes next into the slab comes after the weights that were asked for so far.
    pub fn after_weights(&self) -> Result<()> {
        let asked = self.copies.record(Stream::Copy)?;
        self.copies.wait(Stream::PageIn, &asked)
    }

    /// What comes next on a page stream comes after all that it must not disturb: what
    /// computes, and other copies at either place.
    fn begin(&mut self, stream: Stream, moves: &[Move]) -> Result<C::Event> {
        // No page of the pass at hand moves, so what came before it is enough.
        let computed = match &self.pass {
            Some(began) => began.clone(),
            None => self.copies.record(Stream::Compute)?,
        };
        self.copies.wait(stream, &computed)?;
        let mut after: Vec<Arc<Trip<C::Event>>> = Vec::new();
        for page in moves {
            let host = match stream {
                Stream::PageIn => {
                    after.extend(self.take_slab(page.to).into_iter().flatten());
                    page.from
                }
                // It stays noted: who reads the page waits for what arrives, not for this.
                _ => {
                    after.extend(self.arriving[page.from.0 as usize].clone());
                    page.to
                }
            };
            after.extend(self.host_after[host.0 as usize].take());
        }
        for trip in distinct(after) {
            self.copies.wait(stream, trip.ended())?;
        }
        self.copies.record(stream)
    }

    /// What has to be past before others use a frame of the slab.
    fn take_slab(&mut self, frame: Frame) -> [Option<Arc<Trip<C::Event>>>; 2] {
        let at = frame.0 as usize;
        [self.arriving[at].take(), self.leaving[at].take()]
    }

    /// Whether all pages of a table are on the device, and none still on its way.
    pub fn is_there(&mut self, table: &PageTable) -> Result<bool> {
        for &page in table.pages() {
            let Some(frame) = self.pages.device_frame(page) else {
                return Ok(false);
            };
            let after = &mut self.arriving[frame.0 as usize];
            let Some(trip) = after else { continue };
            if !trip.is_over(&self.copies)? {
                return Ok(false);
            }
            *after = None;
        }
        Ok(true)
    }

    /// Whether pages of a table are still being copied from where they are on the device.
    pub fn is_leaving(&self, table: &PageTable) -> bool {
        let frame = |&page: &PageId| self.pages.device_frame(page);
        let mut frames = table.pages().iter().filter_map(frame);
        // What cannot be asked is told by what waits for it.
        let is_read = |trip: &Arc<Trip<_>>| !trip.is_over(&self.copies).unwrap_or(true);
        frames.any(|frame| self.leaving[frame.0 as usize].as_ref().is_some_and(is_read))
    }

    /// How many pages of a table are elsewhere or still on their way.
    pub fn awaited(&self, table: &PageTable) -> usize {
        let is_awaited = |&&page: &&PageId| match self.pages.device_frame(page) {
            None => true,
            Some(frame) => self.arriving[frame.0 as usize].is_some(),
        };
        table.pages().iter().filter(is_awaited).count()
    }

    /// What of these tables' pages is still on its way; the pass waits for it.
    pub fn arrivals<'a>(
        &mut self,
        tables: impl Iterator<Item = &'a PageTable>,
    ) -> Result<Arrivals<C::Event>> {
        let mut trips = Vec::new();
        for &page in tables.flat_map(PageTable::pages) {
            let frame = self.pages.device_frame(page).expect("a pass has its pages");
            // It stays noted: a pass may end before the blocks whose pages come last.
            trips.extend(self.arriving[frame.0 as usize].clone());
        }
        let mut under_way = Vec::new();
        for trip in distinct(trips) {
            if !trip.is_over(&self.copies)? {
                under_way.push(trip);
            }
        }
        let (trips, blocks) = (under_way, self.blocks);
        Ok(Arrivals { trips, blocks })
    }

    /// After a failure: waits until nothing moves any more, so that any frame can be used.
    pub fn settle(&mut self) {
        self.copies.settle();
        self.arriving.fill(None);
        self.leaving.fill(None);
        self.host_after.fill(None);
    }

    /// Another holds the same pages.
    pub fn share(&mut self, table: &PageTable) -> PageTable {
        self.pages.share(table)
    }

    /// Takes a page that holds these tokens as page `at` of a table, if somebody has it.
    pub fn adopt(&mut self, table: &mut PageTable, at: usize, chunk: &Chunk) -> bool {
        self.pages.adopt(table, at, chunk)
    }

    /// Page `at` of a table is full of these tokens: others can have it from now on.
    pub fn publish(&mut self, table: &mut PageTable, at: usize, chunk: Chunk) {
        self.pages.settle(table, at, chunk);
    }

    /// Gives all pages of a table back.
    pub fn release(&mut self, table: &mut PageTable) {
        self.pages.release(table);
    }
}
