//! Pages: a fixed number of tokens of KV, in which tiers each is, and who holds it.
//!
//! A page has a frame in one tier or in several; where it has several, their bytes are the
//! same. Sessions whose beginnings are equal hold the same pages. A page that others hold
//! too is never written: whoever wants to takes a copy of it.

mod disk;
mod frames;
mod prefixes;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;

use disk::Trip;
pub use frames::{Frame, Frames, OutOfPages};
pub use prefixes::Chunk;
use prefixes::Prefixes;
pub use table::PageTable;

/// Names a page, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(u32);

impl PageId {
    /// A number that no other page has now; below [`Pages::numbers`].
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// A page that goes from one frame to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which page.
    pub page: PageId,
    /// Where it is.
    pub from: Frame,
    /// Where it will be.
    pub to: Frame,
}

#[derive(Clone, Debug, Default)]
struct Page {
    holders: u32,
    device: Option<Frame>,
    host: Option<Frame>,
    disk: Option<Frame>,
    /// Its way from host to disk or back, if it is on it.
    trip: Option<Trip>,
}

impl Page {
    /// Whether the host's frame could be given to others at once and nothing be lost.
    fn is_copy(&self) -> bool {
        self.device.is_some() && self.host.is_some() && self.trip.is_none()
    }
}

/// What has to happen before tokens are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fresh {
    /// Pages others hold too, each with the frame that takes a copy of it.
    pub copies: Vec<(Frame, Frame)>,
    /// Frames that hold nothing yet.
    pub grown: Vec<Frame>,
}

/// All pages, and the frames of every tier.
#[derive(Clone, Debug)]
pub struct Pages {
    pages: Vec<Page>,
    unused: Vec<PageId>,
    device: Frames,
    host: Frames,
    disk: Frames,
    /// Pages whose host frame is a copy of their device frame.
    copies: usize,
    /// The page whose copy last made way for another on the host.
    hand: usize,
    prefixes: Prefixes,
}

impl Pages {
    /// So many free frames of each tier.
    pub fn new(device: usize, host: usize, disk: usize) -> Self {
        Pages {
            pages: Vec::new(),
            unused: Vec::new(),
            device: Frames::new(device),
            host: Frames::new(host),
            disk: Frames::new(disk),
            copies: 0,
            hand: 0,
            prefixes: Prefixes::default(),
        }
    }

    /// Frames where passes run.
    pub fn device(&self) -> &Frames {
        &self.device
    }

    /// Frames in host memory.
    pub fn host(&self) -> &Frames {
        &self.host
    }

    /// Frames on disk.
    pub fn disk(&self) -> &Frames {
        &self.disk
    }

    /// Pages that somebody holds.
    pub fn held(&self) -> usize {
        self.all().count()
    }

    /// Host frames that hold no more than the device does: they make way for others.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// One more than the highest [`PageId::number`].
    pub fn numbers(&self) -> usize {
        self.pages.len()
    }

    /// All pages that somebody holds.
    pub fn all(&self) -> impl Iterator<Item = PageId> {
        let ids = (0..).map(PageId).zip(&self.pages);
        ids.filter(|(_, page)| page.holders > 0).map(|(id, _)| id)
    }

    /// Where a page is on the device, if it is.
    pub fn device_frame(&self, page: PageId) -> Option<Frame> {
        self.page(page).device
    }

    /// Where it is on the host, if it is.
    pub fn host_frame(&self, page: PageId) -> Option<Frame> {
        self.page(page).host
    }

    /// Whether it is on the device and the host has no copy of it.
    pub fn is_here_alone(&self, page: PageId) -> bool {
        let page = self.page(page);
        page.device.is_some() && page.host.is_none()
    }

    /// Whether it is on the device and on the host.
    pub fn is_here_and_there(&self, page: PageId) -> bool {
        let page = self.page(page);
        page.device.is_some() && page.host.is_some()
    }

    /// How many sessions hold it.
    #[cfg(test)]
    fn holders(&self, page: PageId) -> usize {
        self.page(page).holders as usize
    }

    /// The frames of a table's pages; all are where passes run.
    pub fn frames(&self, table: &PageTable) -> impl Iterator<Item = Frame> {
        let frame = |&page: &PageId| self.device_frame(page).expect("a pass has its pages");
        table.pages.iter().map(frame)
    }

    fn page(&self, page: PageId) -> &Page {
        &self.pages[page.number()]
    }

    /// Changes where a page is.
    fn change<T>(&mut self, page: PageId, change: impl FnOnce(&mut Page) -> T) -> T {
        let page = &mut self.pages[page.number()];
        let before = page.is_copy();
        let done = change(page);
        self.copies = self.copies + usize::from(page.is_copy()) - usize::from(before);
        done
    }

    /// A page of one holder, on the device.
    fn new_page(&mut self, device: Frame) -> PageId {
        let page = self.unused.pop().unwrap_or_else(|| {
            self.pages.push(Page::default());
            PageId(u32::try_from(self.pages.len() - 1).expect("frames are fewer"))
        });
        self.pages[page.number()] = Page {
            holders: 1,
            device: Some(device),
            ..Page::default()
        };
        page
    }

    /// How many frames of the device have to be free for a range of tokens to be written.
    pub fn needs(&self, table: &PageTable, tokens: &Range<usize>) -> usize {
        table.missing(tokens.end) + self.shared(table, tokens).count()
    }

    /// The pages from the first of some tokens on that are not this table's alone.
    fn shared(&self, table: &PageTable, tokens: &Range<usize>) -> impl Iterator<Item = usize> {
        let first = table.holding(tokens.start).unwrap_or(table.len());
        let is_shared = |&at: &usize| self.page(table.pages[at]).holders > 1;
        (first..table.len()).filter(is_shared)
    }

    /// Takes the frames that a range of tokens needs, or none at all. Pages from the first
    /// of them on are the table's alone then, and on the device alone: they will be written.
    pub fn write(
        &mut self,
        table: &mut PageTable,
        tokens: Range<usize>,
    ) -> Result<Fresh, OutOfPages> {
        self.device.check(self.needs(table, &tokens))?;
        let mut fresh = Fresh::default();
        for at in self.shared(table, &tokens).collect::<Vec<_>>() {
            let old = table.pages[at];
            let from = self.device_frame(old).expect("a pass has its pages");
            let to = self.device.take().expect("counted above");
            table.pages[at] = self.new_page(to);
            self.let_go(old);
            fresh.copies.push((from, to));
        }
        if let Some(at) = table.holding(tokens.start) {
            for page in &table.pages[at..] {
                self.forget_copies(*page);
            }
        }
        for _ in 0..table.missing(tokens.end) {
            let frame = self.device.take().expect("counted above");
            table.pages.push(self.new_page(frame));
            fresh.grown.push(frame);
        }
        Ok(fresh)
    }

    /// Another holds the same pages.
    pub fn share(&mut self, table: &PageTable) -> PageTable {
        for page in &table.pages {
            self.pages[page.number()].holders += 1;
        }
        table.clone()
    }

    /// Gives all pages of a table back.
    pub fn release(&mut self, table: &mut PageTable) {
        for page in table.pages.drain(..).rev() {
            self.let_go(page);
        }
    }

    /// One holder less.
    fn let_go(&mut self, page: PageId) {
        let holders = &mut self.pages[page.number()].holders;
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        self.prefixes.forget(page);
        self.forget_copies(page);
        let device = self.change(page, |page| page.device.take());
        device.into_iter().for_each(|f| self.device.give_back(f));
        if self.page(page).trip.is_none() {
            self.unused.push(page);
        }
    }

    /// A page is neither on the host nor on disk any more.
    fn forget_copies(&mut self, page: PageId) {
        let (host, disk) = self.change(page, Page::take_copies);
        self.give_back(host, disk);
    }

    fn give_back(&mut self, host: Option<Frame>, disk: Option<Frame>) {
        host.into_iter().for_each(|f| self.host.give_back(f));
        disk.into_iter().for_each(|f| self.disk.give_back(f));
    }

    /// Lets a page go from the device, and says what has to be copied, if anything does: to
    /// the host, unless that has its bytes already. Copies there make way for it.
    pub fn send_away(&mut self, page: PageId) -> Result<Option<Move>, OutOfPages> {
        let Some(from) = self.page(page).device else {
            return Ok(None);
        };
        let to = match self.page(page).host {
            Some(_) => None,
            None => Some(self.take_host(page)?),
        };
        self.change(page, |page| {
            page.device = None;
            page.host = page.host.or(to);
        });
        self.device.give_back(from);
        Ok(to.map(|to| Move { page, from, to }))
    }

    /// Has the host keep a page of the device too, where a frame is free there, and says what
    /// has to be copied, if anything does. Once it is, the device's frame can go to others at
    /// once.
    pub fn copy_out(&mut self, page: PageId) -> Option<Move> {
        let found = self.page(page);
        let (Some(from), None) = (found.device, found.host) else {
            return None;
        };
        let to = self.host.take()?;
        self.change(page, |page| page.host = Some(to));
        Some(Move { page, from, to })
    }

    /// A host frame, from copies of other pages where none is free.
    fn take_host(&mut self, but: PageId) -> Result<Frame, OutOfPages> {
        if self.host.free() == 0 && self.copies > 0 {
            // From where the last was found: who wants one wants many.
            let (before, after) = (0..self.hand, self.hand..self.pages.len());
            let ids = after.chain(before).map(|at| PageId(at as u32));
            let mut others = ids.filter(|&id| id != but);
            if let Some(copy) = others.find(|&id| self.page(id).is_copy()) {
                self.hand = copy.number();
                let frame = self.change(copy, |page| page.host.take());
                self.host.give_back(frame.expect("a copy"));
            }
        }
        self.host.check(1)?;
        Ok(self.host.take().expect("one is free"))
    }

    /// Whether so many frames of the device are free.
    pub fn check_device(&self, wanted: usize) -> Result<(), OutOfPages> {
        self.device.check(wanted)
    }

    /// Brings a page of the host back to the device, and says what has to be copied, if
    /// anything does. The host keeps its frame as a copy.
    pub fn bring_back(&mut self, page: PageId) -> Result<Option<Move>, OutOfPages> {
        let found = self.page(page);
        let (None, Some(from)) = (found.device, found.host) else {
            return Ok(None);
        };
        self.device.check(1)?;
        let to = self.device.take().expect("one is free");
        self.change(page, |page| page.device = Some(to));
        Ok(Some(Move { page, from, to }))
    }

    /// What page `at` of a table comes after, if that is known.
    fn after(&self, table: &PageTable, at: usize) -> Option<Option<PageId>> {
        if at == 0 {
            return Some(None);
        }
        let before = table.pages[at - 1];
        self.prefixes.knows(before).then_some(Some(before))
    }

    /// Takes the page that holds these tokens as page `at` of a table, in place of what was
    /// begun there, if somebody has it.
    pub fn adopt(&mut self, table: &mut PageTable, at: usize, chunk: &Chunk) -> bool {
        let after = self.after(table, at);
        let Some(page) = after.and_then(|after| self.prefixes.find(after, chunk)) else {
            return false;
        };
        self.pages[page.number()].holders += 1;
        match table.pages.get_mut(at) {
            Some(place) => {
                let begun = std::mem::replace(place, page);
                self.let_go(begun);
            }
            None => table.pages.push(page),
        }
        true
    }

    /// Page `at` of a table is full of these tokens. Others can have it from now on; where
    /// somebody has the same already, the two become one.
    pub fn settle(&mut self, table: &mut PageTable, at: usize, chunk: Chunk) {
        let Some(after) = self.after(table, at) else {
            return;
        };
        let own = table.pages[at];
        match self.prefixes.find(after, &chunk) {
            Some(same) if same == own => {}
            Some(same) => {
                self.pages[same.number()].holders += 1;
                table.pages[at] = same;
                // It has just been written, so it is on the device and nowhere else.
                if self.page(same).device.is_none() && self.page(own).holders == 1 {
                    let frame = self.change(own, |page| page.device.take());
                    self.change(same, |page| page.device = frame);
                }
                self.let_go(own);
            }
            None => self.prefixes.learn(own, after, chunk),
        }
    }

    /// Panics unless every frame is either free or of one page, and every page held by as
    /// many of `tables` as it says.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) {
        let mut holders = vec![0; self.pages.len()];
        for page in tables.flat_map(|table| &table.pages) {
            holders[page.number()] += 1;
        }
        let found: Vec<u32> = self.pages.iter().map(|page| page.holders).collect();
        assert_eq!(found, holders, "holders differ");
        let trips = || self.pages.iter().filter_map(|page| page.trip);
        let frames = |frame: fn(&Page) -> Option<Frame>| self.pages.iter().filter_map(frame);
        self.device.check_integrity(frames(|page| page.device));
        let host = frames(|page| page.host).chain(trips().filter_map(|trip| trip.host()));
        self.host.check_integrity(host);
        let disk = frames(|page| page.disk).chain(trips().filter_map(|trip| trip.disk()));
        self.disk.check_integrity(disk);
        let mut unused = vec![false; self.pages.len()];
        for page in &self.unused {
            unused[page.number()] = true;
        }
        for (id, page) in (0..).map(PageId).zip(&self.pages) {
            let is_somewhere = [page.device, page.host, page.disk]
                .iter()
                .any(Option::is_some);
            assert_eq!(page.holders > 0, is_somewhere, "page {} is nowhere", id.0);
            let is_unused = page.holders == 0 && page.trip.is_none();
            assert_eq!(is_unused, unused[id.number()], "page {} leaked", id.0);
        }
        let copies = self.pages.iter().filter(|page| page.is_copy()).count();
        assert_eq!(copies, self.copies, "copies differ");
        self.prefixes
            .check_integrity(|page| self.page(page).holders > 0);
    }
}
