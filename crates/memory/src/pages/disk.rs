//! The way between host memory and disk. It takes a while, and a session may be given up or
//! go on meanwhile: frames stay what they are until the bytes have arrived.

use super::{Frame, Move, Page, PageId, Pages};

/// Bytes of a page on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    from: Frame,
    to: Frame,
    is_out: bool,
    /// Whether nobody wants what arrives. The frame it comes from is the page's own
    /// otherwise.
    is_stale: bool,
}

impl Trip {
    /// The host frame it holds.
    pub fn host(&self) -> Option<Frame> {
        match self.is_out {
            true => self.is_stale.then_some(self.from),
            false => Some(self.to),
        }
    }

    /// The disk frame it holds.
    pub fn disk(&self) -> Option<Frame> {
        match self.is_out {
            true => Some(self.to),
            false => self.is_stale.then_some(self.from),
        }
    }
}

impl Pages {
    /// Whether a page is nowhere but on disk, or only just on its way from there.
    pub fn is_on_disk(&self, page: PageId) -> bool {
        let page = self.page(page);
        page.device.is_none() && page.host.is_none()
    }

    /// Whether it is on its way between host and disk.
    pub fn is_moving(&self, page: PageId) -> bool {
        self.page(page).trip.is_some()
    }

    /// Host frames whose pages are on their way to disk.
    pub fn leaving(&self) -> usize {
        let leaves = |page: &&Page| page.trip.is_some_and(|trip| trip.is_out);
        self.pages.iter().filter(leaves).count()
    }

    /// Lets a page that is on the host alone go to disk, and says what has to be written.
    /// Nothing where the disk has its bytes already, or has no room.
    pub fn spill(&mut self, page: PageId) -> Option<Move> {
        let found = self.page(page);
        let (None, Some(from), None) = (found.device, found.host, found.trip) else {
            return None;
        };
        if found.disk.is_some() {
            self.change(page, |page| page.host = None);
            self.host.give_back(from);
            return None;
        }
        let to = self.take_disk()?;
        Some(self.depart(Move { page, from, to }, true))
    }

    /// A page is on its way, to disk or from there.
    fn depart(&mut self, going: Move, is_out: bool) -> Move {
        let trip = Trip {
            from: going.from,
            to: going.to,
            is_out,
            is_stale: false,
        };
        self.change(going.page, |page| page.trip = Some(trip));
        going
    }

    /// A frame of the disk, from a page that is elsewhere too where none is free.
    fn take_disk(&mut self) -> Option<Frame> {
        if self.disk.free() == 0 {
            let spare = self.pages.iter_mut().find(|page| page.has_spare_disk())?;
            let frame = spare.disk.take().expect("it has one");
            self.disk.give_back(frame);
        }
        self.disk.take()
    }

    /// Brings a page from disk to the host, where copies make way for it, and says what has
    /// to be read. Nothing where it is not on disk alone, is on its way, or finds no room.
    pub fn fetch(&mut self, page: PageId) -> Option<Move> {
        let found = self.page(page);
        let (true, Some(from), None) = (self.is_on_disk(page), found.disk, found.trip) else {
            return None;
        };
        let to = self.take_host(page).ok()?;
        Some(self.depart(Move { page, from, to }, false))
    }

    /// What was on its way has arrived, or could not: then it is where it was.
    pub fn arrived(&mut self, page: PageId, is_whole: bool) {
        let trip = self.change(page, |page| page.trip.take());
        let trip = trip.expect("it was on its way");
        let (mut host, mut disk) = (trip.host(), trip.disk());
        if !trip.is_stale && is_whole {
            self.change(page, |page| match trip.is_out {
                // It may have come back to the device meanwhile; the host keeps it then.
                true => {
                    page.disk = disk.take();
                    host = match page.device {
                        None => page.host.take(),
                        Some(_) => None,
                    };
                }
                // It may have been computed again meanwhile, and be there already.
                false if page.host.is_none() => page.host = host.take(),
                false => {}
            });
        }
        self.give_back(host, disk);
        if self.page(page).holders == 0 {
            self.unused.push(page);
        }
    }
}

impl Page {
    /// Whether the disk's frame could be given to others at once and nothing be lost.
    fn has_spare_disk(&self) -> bool {
        let is_elsewhere = self.device.is_some() || self.host.is_some();
        self.disk.is_some() && is_elsewhere && self.trip.is_none()
    }

    /// Takes what it has on the host and on disk, but for what it is on its way from.
    pub(super) fn take_copies(&mut self) -> (Option<Frame>, Option<Frame>) {
        let (host, disk) = (self.host.take(), self.disk.take());
        match &mut self.trip {
            Some(trip) if !trip.is_stale => {
                trip.is_stale = true;
                match trip.is_out {
                    true => (None, disk),
                    false => (host, None),
                }
            }
            _ => (host, disk),
        }
    }
}
