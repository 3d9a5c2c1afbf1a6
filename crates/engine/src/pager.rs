//! The pager: moves pages of sessions between the slab and host memory.
//!
//! It only says what comes after what, by events: no copy runs on the compute stream, no
//! pass waits for one that it does not need, and a place is used again once the copy from
//! or to it is done.

use std::{ops::Range, sync::Arc};

use djinn_device::{Device, Event, HostSlab, KvLayer, Span, Stream};
use djinn_memory::{PageId, PagePool, PageTable, Pages};

use crate::EngineError;

type Result<T> = std::result::Result<T, EngineError>;

/// What paging came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Paged {
    /// To host memory.
    pub out: Traffic,
    /// And back.
    pub back: Traffic,
    /// The most bytes of pages that were held on the device at once.
    pub device_peak: u64,
    /// The same of host memory.
    pub host_peak: u64,
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

/// What the pager asks of a device: copies on its page streams, and points in streams.
pub(crate) trait Copies {
    /// A point in a stream.
    type Event: Clone;
    fn record(&self, stream: Stream) -> Result<Self::Event>;
    fn wait(&self, stream: Stream, event: &Self::Event) -> Result<()>;
    /// Copies a page to the host, on [`Stream::PageOut`].
    fn send(&self, page: PageId, host: PageId) -> Result<()>;
    /// Copies it back, on [`Stream::PageIn`].
    fn bring(&self, host: PageId, page: PageId) -> Result<()>;
    /// Waits until both are past, and says how long it was from one to the other.
    fn seconds(&self, from: &Self::Event, to: &Self::Event) -> Result<f64>;
    /// Waits until nothing is under way.
    fn settle(&self);
}

/// Pages of a slab and of host memory.
pub(crate) struct DeviceCopies {
    device: Arc<dyn Device>,
    /// Where they wait; nothing where there is no room for any.
    host: Option<HostSlab>,
    /// Where pages lie in the slab, and the bytes of one.
    first: u64,
    bytes: u64,
}

impl DeviceCopies {
    fn span(&self, page: PageId) -> Span {
        Span {
            offset: self.first + self.bytes * u64::from(page.0),
            bytes: self.bytes,
        }
    }

    fn host(&self, page: PageId) -> (&HostSlab, u64) {
        let host = self.host.as_ref().expect("a page lies there");
        (host, self.bytes * u64::from(page.0))
    }
}

impl Copies for DeviceCopies {
    type Event = Event;

    fn record(&self, stream: Stream) -> Result<Event> {
        Ok(self.device.record(stream)?)
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        Ok(self.device.wait(stream, event)?)
    }

    fn send(&self, page: PageId, host: PageId) -> Result<()> {
        let (host, at) = self.host(host);
        Ok(self
            .device
            .send(Stream::PageOut, self.span(page), host, at)?)
    }

    fn bring(&self, host: PageId, page: PageId) -> Result<()> {
        let (host, at) = self.host(host);
        Ok(self
            .device
            .bring(Stream::PageIn, host, at, self.span(page))?)
    }

    fn seconds(&self, from: &Event, to: &Event) -> Result<f64> {
        self.device.wait_here(to)?;
        Ok(self.device.seconds_between(from, to)?)
    }

    fn settle(&self) {
        // A device that fails here too is told of by the next pass.
        for stream in [Stream::PageIn, Stream::PageOut, Stream::Compute] {
            let _ = self.device.synchronize(stream);
        }
    }
}

/// Copies that are under way, from one event to another.
struct Trip<E> {
    began: E,
    ended: E,
    bytes: u64,
}

/// Trips each way whose times may be unread: the one before so many is long past.
const UNREAD: usize = 1000;

pub(crate) struct Pager<C: Copies = DeviceCopies> {
    copies: C,
    pages: Pages,
    /// Bytes of a page.
    bytes: u64,
    /// What has to be past before a place is used again, by page of each tier.
    slab_after: Vec<Option<C::Event>>,
    host_after: Vec<Option<C::Event>>,
    paged: Paged,
    /// What went out and came back of late, whose times are still to be read.
    out: Vec<Trip<C::Event>>,
    back: Vec<Trip<C::Event>>,
}

impl Pager {
    /// Takes host memory for so many pages beside those of the slab, which `kv` says.
    pub fn new(device: &Arc<dyn Device>, kv: KvLayer, host_pages: usize) -> Result<Self> {
        let bytes = kv.page_bytes;
        let host = match host_pages {
            0 => None,
            count => {
                let slab = device.host_slab(bytes * count as u64)?;
                slab.seal()?;
                Some(slab)
            }
        };
        let copies = DeviceCopies {
            device: Arc::clone(device),
            host,
            first: kv.offset,
            bytes,
        };
        Ok(Pager::with(copies, Pages::new(kv.pages, host_pages), bytes))
    }
}

impl<C: Copies> Pager<C> {
    fn with(copies: C, pages: Pages, bytes: u64) -> Self {
        Pager {
            copies,
            bytes,
            slab_after: vec![None; pages.device.total()],
            host_after: vec![None; pages.host.total()],
            pages,
            paged: Paged::default(),
            out: Vec::new(),
            back: Vec::new(),
        }
    }

    /// Pages of either tier.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// What went over the link so far; waits for what is under way.
    pub fn paged(&mut self) -> Result<Paged> {
        self.read_times(0)?;
        Ok(self.paged)
    }

    /// Reads the times of all but the last trips.
    fn read_times(&mut self, but: usize) -> Result<()> {
        let ways = [
            (&mut self.out, &mut self.paged.out),
            (&mut self.back, &mut self.paged.back),
        ];
        for (trips, traffic) in ways {
            for trip in trips.drain(..trips.len().saturating_sub(but)) {
                traffic.seconds += self.copies.seconds(&trip.began, &trip.ended)?;
                traffic.bytes += trip.bytes;
            }
        }
        Ok(())
    }

    /// Notes how many pages are held now.
    fn note_peaks(&mut self) {
        let held = |pool: &PagePool| self.bytes * (pool.total() - pool.free()) as u64;
        let (device, host) = (held(&self.pages.device), held(&self.pages.host));
        self.paged.device_peak = self.paged.device_peak.max(device);
        self.paged.host_peak = self.paged.host_peak.max(host);
    }

    /// Takes pages for tokens up to a number, or none at all. What computes next may write
    /// those from the first on.
    pub fn grow(&mut self, table: &mut PageTable, tokens: Range<usize>) -> Result<()> {
        table.write_from(tokens.start, &mut self.pages);
        for page in table.grow_to(tokens.end, &mut self.pages.device)? {
            if let Some(event) = self.slab_after[page.0 as usize].take() {
                self.copies.wait(Stream::Compute, &event)?;
            }
        }
        self.note_peaks();
        Ok(())
    }

    /// Lets up to `count` pages go to host memory, as far as there is room.
    pub fn send_away(&mut self, table: &mut PageTable, count: usize) -> Result<()> {
        let moves = table.send_away(count, &mut self.pages);
        let places = moves.iter().map(|page| (page.from, page.to)).collect();
        self.copy(Stream::PageOut, places).map(drop)
    }

    /// Brings all pages of a table back, or none at all, and says by when they are there,
    /// if any were away.
    pub fn bring_back(&mut self, table: &mut PageTable) -> Result<Option<C::Event>> {
        let moves = table.bring_back(&mut self.pages)?;
        let places = moves.iter().map(|page| (page.to, page.from)).collect();
        self.copy(Stream::PageIn, places)
    }

    /// Copies pages between places of the slab and of the host, one way or the other, and
    /// says by when that is done.
    fn copy(&mut self, stream: Stream, places: Vec<(PageId, PageId)>) -> Result<Option<C::Event>> {
        self.note_peaks();
        if places.is_empty() {
            return Ok(None);
        }
        // What computes may still be at these pages, and other copies at either place.
        let computed = self.copies.record(Stream::Compute)?;
        self.copies.wait(stream, &computed)?;
        for (slab, host) in &places {
            let after = [
                self.slab_after[slab.0 as usize].take(),
                self.host_after[host.0 as usize].take(),
            ];
            for event in after.iter().flatten() {
                self.copies.wait(stream, event)?;
            }
        }
        let began = self.copies.record(stream)?;
        for &(slab, host) in &places {
            match stream {
                Stream::PageOut => self.copies.send(slab, host)?,
                _ => self.copies.bring(host, slab)?,
            }
        }
        let ended = self.copies.record(stream)?;
        for (slab, host) in &places {
            self.slab_after[slab.0 as usize] = Some(ended.clone());
            self.host_after[host.0 as usize] = Some(ended.clone());
        }
        let trip = Trip {
            began,
            ended: ended.clone(),
            bytes: self.bytes * places.len() as u64,
        };
        match stream {
            Stream::PageOut => self.out.push(trip),
            _ => self.back.push(trip),
        }
        self.read_times(UNREAD)?;
        Ok(Some(ended))
    }

    /// What computes next comes after an event.
    pub fn compute_after(&self, event: &C::Event) -> Result<()> {
        self.copies.wait(Stream::Compute, event)
    }

    /// After a failure: waits until nothing moves any more, so that any place can be used.
    pub fn settle(&mut self) {
        self.copies.settle();
        self.slab_after.fill(None);
        self.host_after.fill(None);
    }

    /// Lets copies on the host go that a table can do without, and says how many.
    pub fn drop_copies(&mut self, table: &mut PageTable, count: usize) -> usize {
        table.drop_copies(count, &mut self.pages)
    }

    /// Gives all pages of a table back.
    pub fn release(&mut self, table: &mut PageTable) {
        table.release(&mut self.pages);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        collections::VecDeque,
    };

    use djinn_device::Stream;
    use djinn_memory::{PageId, PageTable, Pages};
    use proptest::prelude::*;

    use super::{Copies, Pager, Result};

    /// A device whose streams run when chance wants them to, as far as events allow.
    struct Late {
        slab: RefCell<Vec<u64>>,
        host: RefCell<Vec<u64>>,
        streams: RefCell<[VecDeque<Item>; 3]>,
        /// Which events are past.
        past: RefCell<Vec<bool>>,
        random: Cell<u64>,
    }

    enum Item {
        Record(usize),
        Wait(usize),
        Send(PageId, PageId),
        Bring(PageId, PageId),
        /// What computes finds a number in a page, and leaves another.
        Compute(PageId, Option<u64>, u64),
    }

    fn number(stream: Stream) -> usize {
        match stream {
            Stream::Compute => 0,
            Stream::PageIn => 1,
            Stream::PageOut => 2,
            Stream::Copy => unreachable!("weights have no part in this"),
        }
    }

    impl Late {
        fn new(device: usize, host: usize, seed: u64) -> Self {
            Late {
                slab: RefCell::new(vec![u64::MAX; device]),
                host: RefCell::new(vec![u64::MAX; host]),
                streams: RefCell::default(),
                past: RefCell::default(),
                random: Cell::new(seed),
            }
        }

        fn below(&self, limit: usize) -> usize {
            let next = self.random.get().wrapping_mul(6_364_136_223_846_793_005);
            self.random.set(next.wrapping_add(1));
            (self.random.get() >> 33) as usize % limit
        }

        /// Puts something on a stream, and lets some of what is on any happen.
        fn put(&self, stream: Stream, item: Item) {
            self.streams.borrow_mut()[number(stream)].push_back(item);
            for _ in 0..self.below(4) {
                self.run(self.below(3));
            }
        }

        /// The next of a stream, if it need not wait. Says whether it did something.
        fn run(&self, stream: usize) -> bool {
            let mut streams = self.streams.borrow_mut();
            let queue = &mut streams[stream];
            if let Some(Item::Wait(event)) = queue.front()
                && !self.past.borrow()[*event]
            {
                return false;
            }
            let Some(item) = queue.pop_front() else {
                return false;
            };
            let (mut slab, mut host) = (self.slab.borrow_mut(), self.host.borrow_mut());
            match item {
                Item::Record(event) => self.past.borrow_mut()[event] = true,
                Item::Wait(_) => {}
                Item::Send(page, to) => host[to.0 as usize] = slab[page.0 as usize],
                Item::Bring(from, page) => slab[page.0 as usize] = host[from.0 as usize],
                Item::Compute(page, expect, leave) => {
                    let found = std::mem::replace(&mut slab[page.0 as usize], leave);
                    assert!(
                        expect.is_none_or(|expect| expect == found),
                        "another's number"
                    );
                }
            }
            true
        }
    }

    impl Copies for Late {
        type Event = usize;

        fn record(&self, stream: Stream) -> Result<usize> {
            let event = self.past.borrow().len();
            self.past.borrow_mut().push(false);
            self.put(stream, Item::Record(event));
            Ok(event)
        }

        fn wait(&self, stream: Stream, event: &usize) -> Result<()> {
            self.put(stream, Item::Wait(*event));
            Ok(())
        }

        fn send(&self, page: PageId, host: PageId) -> Result<()> {
            self.put(Stream::PageOut, Item::Send(page, host));
            Ok(())
        }

        fn bring(&self, host: PageId, page: PageId) -> Result<()> {
            self.put(Stream::PageIn, Item::Bring(host, page));
            Ok(())
        }

        fn seconds(&self, _: &usize, _: &usize) -> Result<f64> {
            Ok(0.0)
        }

        fn settle(&self) {
            while (0..3).any(|stream| self.run(stream)) {}
        }
    }

    /// A session: its pages, the number in each, and by when they are there.
    struct Held {
        table: PageTable,
        numbers: Vec<u64>,
        arriving: Option<usize>,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        /// Whatever goes and comes, is given up and taken again, and however late streams
        /// run: what computes finds what it left, and nobody waits for ever.
        #[test]
        fn every_page_has_its_own_numbers(
            device in 1usize..12, host in 0usize..12, seed: u64,
            moves in prop::collection::vec((0usize..4, 0u8..6, 1usize..6), 1..120),
        ) {
            let mut pager = Pager::with(Late::new(device, host, seed), Pages::new(device, host), 1);
            let mut all: Vec<Held> = (0..4)
                .map(|_| Held { table: PageTable::new(1), numbers: Vec::new(), arriving: None })
                .collect();
            let mut fresh = 0;
            for (who, what, count) in moves {
                let held = &mut all[who];
                match what {
                    0 => {
                        pager.release(&mut held.table);
                        held.numbers.clear();
                        held.arriving = None;
                    }
                    1 => pager.send_away(&mut held.table, count).unwrap(),
                    // Ahead of its turn.
                    2 => {
                        if let Ok(Some(event)) = pager.bring_back(&mut held.table) {
                            held.arriving = Some(event);
                        }
                    }
                    3 => {
                        pager.drop_copies(&mut held.table, count);
                    }
                    // It runs, where it finds room.
                    _ => {
                        let Ok(arriving) = pager.bring_back(&mut held.table) else { continue };
                        for event in held.arriving.take().iter().chain(&arriving) {
                            pager.compute_after(event).unwrap();
                        }
                        // The last page is written to, and all are read.
                        let written = held.table.len().saturating_sub(1);
                        let tokens = written..held.table.len() + count - 1;
                        let _ = pager.grow(&mut held.table, tokens);
                        let pages: Vec<PageId> = held.table.pages().collect();
                        for (i, page) in pages.into_iter().enumerate() {
                            let expect = held.numbers.get(i).copied();
                            if let (Some(number), true) = (expect, i < written) {
                                let item = Item::Compute(page, expect, number);
                                pager.copies.put(Stream::Compute, item);
                                continue;
                            }
                            fresh += 1;
                            let item = Item::Compute(page, expect, fresh);
                            pager.copies.put(Stream::Compute, item);
                            match held.numbers.get_mut(i) {
                                Some(number) => *number = fresh,
                                None => held.numbers.push(fresh),
                            }
                        }
                    }
                }
                pager.pages().check_integrity(all.iter().map(|held| &held.table));
            }
            pager.copies.settle();
            let left: usize = pager.copies.streams.borrow().iter().map(VecDeque::len).sum();
            prop_assert_eq!(left, 0, "somebody waits for ever");
        }
    }
}
