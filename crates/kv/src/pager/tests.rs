use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Range,
};

use djinn_device::Stream;
use proptest::prelude::*;

use super::{Granularity, PageCopier, Pager};
use crate::error::Result;
use crate::frames::Frame;
use crate::page::PageCopy;
use crate::page_table::PageTable;
use crate::pages::Pages;

/// Blocks of a page, each of one number.
const BLOCKS: usize = 3;

/// A device whose streams run when chance wants them to, as far as events allow.
struct Late {
    slab: RefCell<Vec<[u64; BLOCKS]>>,
    host: RefCell<Vec<[u64; BLOCKS]>>,
    streams: RefCell<[VecDeque<Item>; 4]>,
    /// Which events are past.
    past: RefCell<Vec<bool>>,
    random: Cell<u64>,
}

enum Item {
    Record(usize),
    Wait(usize),
    CopyOut(Frame, Frame),
    CopyIn(Frame, Frame, Range<usize>),
    Copy(Frame, Frame),
    /// What computes finds a number in a block of a page, and leaves another.
    Compute(Frame, usize, Option<u64>, u64),
}

fn number(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::PageIn => 1,
        Stream::PageOut => 2,
        Stream::Copy => 3,
    }
}

impl Late {
    fn new(device: usize, host: usize, seed: u64) -> Self {
        Late {
            slab: RefCell::new(vec![[u64::MAX; BLOCKS]; device]),
            host: RefCell::new(vec![[u64::MAX; BLOCKS]; host]),
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
            self.run(self.below(4));
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
        let at = |frame: Frame| frame.0 as usize;
        match item {
            Item::Record(event) => self.past.borrow_mut()[event] = true,
            Item::Wait(_) => {}
            Item::CopyOut(from, to) => host[at(to)] = slab[at(from)],
            Item::CopyIn(from, to, blocks) => {
                slab[at(to)][blocks.clone()].copy_from_slice(&host[at(from)][blocks]);
            }
            Item::Copy(from, to) => slab[at(to)] = slab[at(from)],
            Item::Compute(frame, block, expect, leave) => {
                let found = std::mem::replace(&mut slab[at(frame)][block], leave);
                let is_own = expect.is_none_or(|expect| expect == found);
                assert!(is_own, "another's number");
            }
        }
        true
    }
}

impl PageCopier for Late {
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

    fn is_past(&self, event: &usize) -> Result<bool> {
        Ok(self.past.borrow()[*event])
    }

    fn wait_here(&self, event: &usize) -> Result<()> {
        while !self.past.borrow()[*event] {
            assert!((0..4).any(|stream| self.run(stream)), "it never comes");
        }
        Ok(())
    }

    fn copy_out(&self, page: PageCopy) -> Result<()> {
        self.put(Stream::PageOut, Item::CopyOut(page.from, page.to));
        Ok(())
    }

    fn copy_in(&self, pages: &[PageCopy], blocks: Range<usize>) -> Result<()> {
        for page in pages {
            let item = Item::CopyIn(page.from, page.to, blocks.clone());
            self.put(Stream::PageIn, item);
        }
        Ok(())
    }

    fn copy_on_device(&self, from: Frame, to: Frame) -> Result<()> {
        self.put(Stream::Compute, Item::Copy(from, to));
        Ok(())
    }

    fn seconds_between(&self, _: &usize, _: &usize) -> Result<f64> {
        Ok(0.0)
    }

    fn drain(&self) {
        while (0..4).any(|stream| self.run(stream)) {}
    }
}

/// A session: its pages, and the number in each.
struct Held {
    table: PageTable,
    numbers: Vec<u64>,
}

/// A session runs, where it finds room: block after block, its last page is written to and
/// all are read. It may begin in the middle, and come to the first blocks in the next pass.
fn run(pager: &mut Pager<Late>, held: &mut Held, grow: usize, fresh: &mut u64) -> Result<()> {
    let begin = grow % BLOCKS;
    pager.copy_in(held.table.pages(), Granularity::FromBlock(begin))?;
    let written = held.table.len().saturating_sub(1);
    let tokens = written..held.table.len() + grow;
    pager.prepare_write(&mut held.table, tokens)?;
    let pending = pager.pending(std::iter::once(&held.table))?;
    let frames: Vec<Frame> = pager.pages().frames(&held.table).collect();
    let first = *fresh;
    for block in (begin..BLOCKS).chain(0..begin) {
        // Blocks before the one it begins with are another pass.
        let (ran, again);
        let pending = match block < begin {
            false => {
                ran = block.checked_sub(1).filter(|ran| *ran >= begin);
                &pending
            }
            true => {
                again = pager.pending(std::iter::once(&held.table))?;
                ran = None;
                &again
            }
        };
        for event in pending.events_before(block, ran) {
            pager.copier.wait(Stream::Compute, event)?;
        }
        for (i, &frame) in frames.iter().enumerate() {
            let found = held.numbers.get(i).copied();
            let leave = match found {
                Some(number) if i < written => number,
                _ => first + i as u64,
            };
            let item = Item::Compute(frame, block, found, leave);
            pager.copier.put(Stream::Compute, item);
        }
    }
    held.numbers.truncate(written);
    let new = (held.numbers.len()..frames.len()).map(|i| first + i as u64);
    held.numbers.extend(new);
    *fresh += frames.len() as u64;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Whatever goes and comes, is shared, given up and taken again, and however late
    /// streams run: what computes finds what it left, and nobody waits for ever.
    #[test]
    fn every_page_has_its_own_numbers(
        device in 1usize..12, host in 0usize..12, seed: u64,
        moves in prop::collection::vec((0usize..4, 0u8..8, 0usize..6), 1..120),
    ) {
        let pages = Pages::new(device, host, 0);
        let mut pager = Pager::with(Late::new(device, host, seed), pages, 1, BLOCKS);
        let mut all: Vec<Held> = (0..4)
            .map(|_| Held { table: PageTable::new(1), numbers: Vec::new() })
            .collect();
        let mut fresh = 0;
        for (who, what, count) in moves {
            let held = &mut all[who];
            match what {
                0 => {
                    pager.release(&mut held.table);
                    held.numbers.clear();
                }
                1 => {
                    let last = held.table.pages().iter().rev().take(count);
                    pager.evict(&last.copied().collect::<Vec<_>>()).unwrap();
                }
                // Ahead of its turn.
                2 => {
                    pager.order_after_weights().unwrap();
                    let _ = pager.copy_in(held.table.pages(), Granularity::WholePage);
                }
                3 => {
                    let other = count % 4;
                    if other != who {
                        let (table, numbers) = (all[other].table.clone(), all[other].numbers.clone());
                        pager.release(&mut all[who].table);
                        all[who] = Held { table: pager.share(&table), numbers };
                    }
                }
                4 => { pager.is_resident(&held.table).unwrap(); }
                5 => pager.copy_out(held.table.pages()).unwrap(),
                _ => { let _ = run(&mut pager, held, count, &mut fresh); }
            }
            pager.pages().check_integrity(all.iter().map(|held| &held.table));
        }
        pager.copier.drain();
        let left: usize = pager.copier.streams.borrow().iter().map(VecDeque::len).sum();
        prop_assert_eq!(left, 0, "somebody waits for ever");
    }
}

#[test]
fn what_is_copied_out_is_leaving_until_it_has_been() {
    let mut seen = 0;
    for seed in 0..50 {
        let pages = Pages::new(4, 4, 0);
        let mut pager = Pager::with(Late::new(4, 4, seed), pages, 1, BLOCKS);
        let mut table = PageTable::new(1);
        pager.prepare_write(&mut table, 0..4).unwrap();
        assert!(!pager.is_copying_out(&table));
        pager.copy_out(table.pages()).unwrap();
        assert!(
            pager.is_resident(&table).unwrap(),
            "who reads it need not wait"
        );
        seen += usize::from(pager.is_copying_out(&table));
        pager.copier.drain();
        assert!(!pager.is_copying_out(&table));
    }
    assert!(seen > 0, "streams are late now and then");
}
