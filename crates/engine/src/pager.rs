//! The pager: moves pages of sessions between the slab and host memory.
//!
//! It only says what comes after what, by events: no copy runs on the compute stream, no
//! pass waits for one that it does not need, and a place is used again once the copy from
//! or to it is done.

use std::sync::Arc;

use djinn_device::{Device, Event, HostSlab, KvLayer, Span, Stream};
use djinn_memory::{Move, PageId, PagePool, PageTable, Pages};

use crate::EngineError;

type Result<T> = std::result::Result<T, EngineError>;

/// What paging came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Paged {
    /// To host memory.
    pub out: Traffic,
    /// And back.
    pub back: Traffic,
    /// The most bytes of pages that were held on the device at once, and in host memory.
    pub device_peak: u64,
    /// See above.
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

/// Copies that are under way, from one event to another.
struct Trip {
    began: Event,
    ended: Event,
    bytes: u64,
}

/// Trips each way whose times may be unread: the one before so many is long past.
const UNREAD: usize = 1000;

pub(crate) struct Pager {
    device: Arc<dyn Device>,
    pages: Pages,
    /// Where pages lie in the slab, and the bytes of one.
    first: u64,
    bytes: u64,
    /// Where they wait; nothing where there is no room for any.
    host: Option<HostSlab>,
    /// What has to be past before a place is used again, by page of each tier.
    slab_after: Vec<Option<Event>>,
    host_after: Vec<Option<Event>>,
    paged: Paged,
    /// What went out and came back of late, whose times are still to be read.
    out: Vec<Trip>,
    back: Vec<Trip>,
}

impl Pager {
    /// Takes host memory for so many pages beside those of the slab, which `kv` says.
    pub fn new(device: &Arc<dyn Device>, kv: KvLayer, host_pages: usize) -> Result<Self> {
        let (first, bytes) = (kv.offset, kv.page_bytes);
        let host = match host_pages {
            0 => None,
            count => {
                let slab = device.host_slab(bytes * count as u64)?;
                slab.seal()?;
                Some(slab)
            }
        };
        Ok(Pager {
            device: Arc::clone(device),
            pages: Pages::new(kv.pages, host_pages),
            first,
            bytes,
            host,
            slab_after: vec![None; kv.pages],
            host_after: vec![None; host_pages],
            paged: Paged::default(),
            out: Vec::new(),
            back: Vec::new(),
        })
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
        let device = &*self.device;
        let ways = [
            (&mut self.out, &mut self.paged.out),
            (&mut self.back, &mut self.paged.back),
        ];
        for (trips, traffic) in ways {
            for trip in trips.drain(..trips.len().saturating_sub(but)) {
                device.wait_here(&trip.ended)?;
                traffic.seconds += device.seconds_between(&trip.began, &trip.ended)?;
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

    /// Takes pages for so many tokens, or none at all. What computes next may write them.
    pub fn grow(&mut self, table: &mut PageTable, tokens: usize) -> Result<()> {
        for page in table.grow_to(tokens, &mut self.pages.device)? {
            if let Some(event) = self.slab_after[page.0 as usize].take() {
                self.device.wait(Stream::Compute, &event)?;
            }
        }
        self.note_peaks();
        Ok(())
    }

    /// Lets up to `count` pages go to host memory, as far as there is room.
    pub fn send_away(&mut self, table: &mut PageTable, count: usize) -> Result<()> {
        let moves = table.send_away(count, &mut self.pages);
        let (Some(host), false) = (&self.host, moves.is_empty()) else {
            return Ok(());
        };
        let written = self.device.record(Stream::Compute)?;
        self.device.wait(Stream::PageOut, &written)?;
        for Move { from, to } in &moves {
            // It may still be on its way here, and what lay there on its way back.
            let after = [
                self.slab_after[from.0 as usize].take(),
                self.host_after[to.0 as usize].take(),
            ];
            for event in after.iter().flatten() {
                self.device.wait(Stream::PageOut, event)?;
            }
        }
        let began = self.device.record(Stream::PageOut)?;
        for &Move { from, to } in &moves {
            let (span, at) = (self.span(from), self.bytes * u64::from(to.0));
            self.device.send(Stream::PageOut, span, host, at)?;
        }
        let sent = self.device.record(Stream::PageOut)?;
        for Move { from, to } in &moves {
            self.slab_after[from.0 as usize] = Some(sent.clone());
            self.host_after[to.0 as usize] = Some(sent.clone());
        }
        self.out.push(Trip {
            began,
            ended: sent,
            bytes: self.bytes * moves.len() as u64,
        });
        self.note_peaks();
        self.read_times(UNREAD)
    }

    /// Brings all pages of a table back, or none at all, and says by when they are there,
    /// if any were away.
    pub fn bring_back(&mut self, table: &mut PageTable) -> Result<Option<Event>> {
        let moves = table.bring_back(&mut self.pages)?;
        let (Some(host), false) = (&self.host, moves.is_empty()) else {
            return Ok(None);
        };
        // Whoever had these places last may still be computing.
        let past = self.device.record(Stream::Compute)?;
        self.device.wait(Stream::PageIn, &past)?;
        for &Move { from, to } in &moves {
            let after = [
                self.host_after[from.0 as usize].take(),
                self.slab_after[to.0 as usize].take(),
            ];
            for event in after.iter().flatten() {
                self.device.wait(Stream::PageIn, event)?;
            }
        }
        let began = self.device.record(Stream::PageIn)?;
        for &Move { from, to } in &moves {
            let (at, span) = (self.bytes * u64::from(from.0), self.span(to));
            self.device.bring(Stream::PageIn, host, at, span)?;
        }
        let arrived = self.device.record(Stream::PageIn)?;
        for Move { from, to } in &moves {
            self.host_after[from.0 as usize] = Some(arrived.clone());
            self.slab_after[to.0 as usize] = Some(arrived.clone());
        }
        self.back.push(Trip {
            began,
            ended: arrived.clone(),
            bytes: self.bytes * moves.len() as u64,
        });
        self.note_peaks();
        self.read_times(UNREAD)?;
        Ok(Some(arrived))
    }

    /// What computes next comes after an event.
    pub fn compute_after(&self, event: &Event) -> Result<()> {
        Ok(self.device.wait(Stream::Compute, event)?)
    }

    /// After a failure: waits until nothing moves any more, so that any place can be used.
    pub fn settle(&mut self) {
        // A device that fails here too is told of by the next pass.
        for stream in [Stream::PageIn, Stream::PageOut, Stream::Compute] {
            let _ = self.device.synchronize(stream);
        }
        self.slab_after.fill(None);
        self.host_after.fill(None);
    }

    /// Gives all pages of a table back.
    pub fn release(&mut self, table: &mut PageTable) {
        table.release(&mut self.pages);
    }

    fn span(&self, page: PageId) -> Span {
        Span {
            offset: self.first + self.bytes * u64::from(page.0),
            bytes: self.bytes,
        }
    }
}
