use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Range,
};

use djinn_device::{KvLayer, Stream};
use djinn_types::DType;
use proptest::prelude::*;

use super::{Granularity, PageCopier, Pager, WindowCopy};
use crate::error::Result;
use crate::frames::Frame;
use crate::page::{PageCopy, PageId};
use crate::page_table::PageTable;
use crate::pages::Pages;
use crate::region::{KvRegion, WINDOW_HALVES};

/// Number of pages that stream through the window.
const WINDOW: usize = 6;

/// Number of blocks of a page; each block holds one number.
const BLOCKS: usize = 3;

/// Region of pages with one number in each block.
fn region(frames: usize) -> KvRegion {
    let layer = KvLayer {
        offset: 0,
        page_bytes: 0,
        pages: frames,
        page_tokens: 1,
        kv_heads: 1,
        d_head: 1,
        dtype: DType::F32,
    };
    KvRegion::new(layer, BLOCKS, WINDOW)
}

/// Simulated device with streams that run at random times, in any order that events allow.
struct LateDevice {
    slab: RefCell<Vec<[u64; BLOCKS]>>,
    region: KvRegion,
    /// Number in each slice of the region; only those of the window are used.
    window: RefCell<Vec<u64>>,
    host: RefCell<Vec<[u64; BLOCKS]>>,
    streams: RefCell<[VecDeque<StreamItem>; 4]>,
    /// Whether each event is past.
    past: RefCell<Vec<bool>>,
    random: Cell<u64>,
}

enum StreamItem {
    Record(usize),
    Wait(usize),
    CopyOut(Frame, Frame),
    CopyIn(Frame, Frame, Range<usize>),
    Copy(Frame, Frame),
    /// Copy of a block of a page in host memory to a slice.
    CopySlice(Frame, usize, usize),
    /// Computation that expects a number in a slice.
    ReadSlice(usize, u64),
    /// Computation that expects a number in a block of a page, and writes another.
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

impl LateDevice {
    fn new(device: usize, host: usize, seed: u64) -> Self {
        LateDevice {
            slab: RefCell::new(vec![[u64::MAX; BLOCKS]; device]),
            region: region(device),
            window: RefCell::new(vec![u64::MAX; region(device).slices()]),
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

    /// Puts an item on a stream, and runs some random items of any stream.
    fn put(&self, stream: Stream, item: StreamItem) {
        self.streams.borrow_mut()[number(stream)].push_back(item);
        for _ in 0..self.below(4) {
            self.run(self.below(4));
        }
    }

    /// Runs the next item of a stream, unless it waits. Returns whether an item ran.
    fn run(&self, stream: usize) -> bool {
        let mut streams = self.streams.borrow_mut();
        let queue = &mut streams[stream];
        if let Some(StreamItem::Wait(event)) = queue.front()
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
            StreamItem::Record(event) => self.past.borrow_mut()[event] = true,
            StreamItem::Wait(_) => {}
            StreamItem::CopyOut(from, to) => host[at(to)] = slab[at(from)],
            StreamItem::CopyIn(from, to, blocks) => {
                slab[at(to)][blocks.clone()].copy_from_slice(&host[at(from)][blocks]);
            }
            StreamItem::CopySlice(from, block, slice) => {
                self.window.borrow_mut()[slice] = host[at(from)][block];
            }
            StreamItem::ReadSlice(slice, expect) => {
                let found = self.window.borrow()[slice];
                assert_eq!(found, expect, "the slice holds another page");
            }
            StreamItem::Copy(from, to) => slab[at(to)] = slab[at(from)],
            StreamItem::Compute(frame, block, expect, leave) => {
                let found = std::mem::replace(&mut slab[at(frame)][block], leave);
                let is_own = expect.is_none_or(|expect| expect == found);
                assert!(is_own, "the block holds the number of another page");
            }
        }
        true
    }
}

impl PageCopier for LateDevice {
    type Event = usize;

    fn record(&self, stream: Stream) -> Result<usize> {
        let event = self.past.borrow().len();
        self.past.borrow_mut().push(false);
        self.put(stream, StreamItem::Record(event));
        Ok(event)
    }

    fn wait(&self, stream: Stream, event: &usize) -> Result<()> {
        self.put(stream, StreamItem::Wait(*event));
        Ok(())
    }

    fn is_past(&self, event: &usize) -> Result<bool> {
        Ok(self.past.borrow()[*event])
    }

    fn wait_here(&self, event: &usize) -> Result<()> {
        while !self.past.borrow()[*event] {
            assert!(
                (0..4).any(|stream| self.run(stream)),
                "deadlock: no stream can run"
            );
        }
        Ok(())
    }

    fn copy_out(&self, page: PageCopy) -> Result<()> {
        self.put(Stream::PageOut, StreamItem::CopyOut(page.from, page.to));
        Ok(())
    }

    fn copy_in(&self, pages: &[PageCopy], blocks: Range<usize>) -> Result<()> {
        for page in pages {
            let item = StreamItem::CopyIn(page.from, page.to, blocks.clone());
            self.put(Stream::PageIn, item);
        }
        Ok(())
    }

    fn copy_to_window(&self, pages: &[WindowCopy], block: usize) -> Result<()> {
        for page in pages {
            let slice = window_slice(&self.region, block, page.at);
            let item = StreamItem::CopySlice(page.from, block, slice);
            self.put(Stream::PageIn, item);
        }
        Ok(())
    }

    fn copy_on_device(&self, from: Frame, to: Frame) -> Result<()> {
        self.put(Stream::Compute, StreamItem::Copy(from, to));
        Ok(())
    }

    fn seconds_between(&self, _: &usize, _: &usize) -> Result<f64> {
        Ok(0.0)
    }

    fn drain(&self) {
        while (0..4).any(|stream| self.run(stream)) {}
    }
}

/// Slice of the region that holds a block of the page at a place of the window.
fn window_slice(region: &KvRegion, block: usize, at: usize) -> usize {
    region.window_index(KvRegion::half_of(block), at) + block
}

/// Runs a pass over a sequence of which only the last page has to be on the device. Block after
/// block, the pass reads all pages, and writes to the last.
fn run_streamed(
    pager: &mut Pager<LateDevice>,
    sequence: &mut Sequence,
    fresh: &mut u64,
) -> Result<()> {
    let Some((last, older)) = sequence.table.pages().split_last() else {
        return Ok(());
    };
    let away = |page: &&PageId| pager.pages().device_frame(**page).is_none();
    if older.iter().filter(away).count() > WINDOW {
        return Ok(());
    }
    pager.copy_in(&[*last], Granularity::FromBlock(0))?;
    let written = sequence.table.len() - 1;
    pager.prepare_write(&mut sequence.table, written..written + 1)?;
    let pending = pager.pending(std::iter::once(&sequence.table))?;
    pager.begin_pass()?;
    let stream = pager.stream(std::iter::once(&sequence.table))?;
    let mut slices = VecDeque::new();
    if let Some(stream) = &stream {
        for block in 0..WINDOW_HALVES {
            slices.push_back(stream.copy_block(block, None)?);
        }
    }
    let number = *fresh;
    for block in 0..BLOCKS {
        for event in pending.events_before(block, block.checked_sub(1)) {
            pager.copier.wait(Stream::Compute, event)?;
        }
        if let Some(event) = slices.pop_front() {
            pager.copier.wait(Stream::Compute, &event)?;
        }
        let half = KvRegion::half_of(block);
        let indexes: Vec<usize> = match &stream {
            Some(stream) => stream
                .indexes(pager.pages(), &sequence.table, half)
                .collect(),
            None => {
                let frames = pager.pages().frames(&sequence.table);
                frames
                    .map(|frame| pager.region.frame_index(frame))
                    .collect()
            }
        };
        for (i, index) in indexes.into_iter().enumerate() {
            let expect = sequence.numbers[i];
            let frame = index / BLOCKS;
            let item = match frame < pager.pages().device().total() {
                true => {
                    let leave = if i < written { expect } else { number };
                    StreamItem::Compute(Frame(frame as u32), block, Some(expect), leave)
                }
                false => StreamItem::ReadSlice(index + block, expect),
            };
            pager.copier.put(Stream::Compute, item);
        }
        if let Some(stream) = &stream
            && block + WINDOW_HALVES < BLOCKS
        {
            let read = pager.copier.record(Stream::Compute)?;
            slices.push_back(stream.copy_block(block + WINDOW_HALVES, Some(&read))?);
        }
    }
    pager.end_pass();
    if let Some(stream) = &stream {
        pager.end_stream(stream)?;
    }
    sequence.numbers[written] = number;
    *fresh += 1;
    Ok(())
}

/// A sequence: its page table, and the number in each page.
struct Sequence {
    table: PageTable,
    numbers: Vec<u64>,
}

/// Runs a pass over a sequence if there is room. Block after block, the pass reads all pages and
/// writes to the last. The pass may start in the middle; the next pass then runs the first
/// blocks.
fn run(
    pager: &mut Pager<LateDevice>,
    sequence: &mut Sequence,
    grow: usize,
    fresh: &mut u64,
) -> Result<()> {
    let begin = grow % BLOCKS;
    pager.copy_in(sequence.table.pages(), Granularity::FromBlock(begin))?;
    let written = sequence.table.len().saturating_sub(1);
    let tokens = written..sequence.table.len() + grow;
    pager.prepare_write(&mut sequence.table, tokens)?;
    let pending = pager.pending(std::iter::once(&sequence.table))?;
    let frames: Vec<Frame> = pager.pages().frames(&sequence.table).collect();
    let first = *fresh;
    for block in (begin..BLOCKS).chain(0..begin) {
        // Blocks before the first one belong to the next pass.
        let (ran, again);
        let pending = match block < begin {
            false => {
                ran = block.checked_sub(1).filter(|ran| *ran >= begin);
                &pending
            }
            true => {
                again = pager.pending(std::iter::once(&sequence.table))?;
                ran = None;
                &again
            }
        };
        for event in pending.events_before(block, ran) {
            pager.copier.wait(Stream::Compute, event)?;
        }
        for (i, &frame) in frames.iter().enumerate() {
            let found = sequence.numbers.get(i).copied();
            let leave = match found {
                Some(number) if i < written => number,
                _ => first + i as u64,
            };
            let item = StreamItem::Compute(frame, block, found, leave);
            pager.copier.put(Stream::Compute, item);
        }
    }
    sequence.numbers.truncate(written);
    let new = (sequence.numbers.len()..frames.len()).map(|i| first + i as u64);
    sequence.numbers.extend(new);
    *fresh += frames.len() as u64;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Checks that each computation finds the numbers that the sequence wrote, and that no stream
    /// waits for ever, for random evictions, copies, forks and releases, and for any timing of
    /// the streams.
    #[test]
    fn every_sequence_finds_its_own_numbers(
        device in 1usize..12, host in 0usize..12, seed: u64,
        moves in prop::collection::vec((0usize..4, 0u8..11, 0usize..6), 1..120),
    ) {
        let pages = Pages::new(device, host, 0);
        let mut pager = Pager::with(LateDevice::new(device, host, seed), pages, region(device));
        let mut all: Vec<Sequence> = (0..4)
            .map(|_| Sequence { table: PageTable::new(1), numbers: Vec::new() })
            .collect();
        let mut fresh = 0;
        for (index, operation, count) in moves {
            let sequence = &mut all[index];
            match operation {
                0 => {
                    pager.release(&mut sequence.table);
                    sequence.numbers.clear();
                }
                1 => {
                    let last = sequence.table.pages().iter().rev().take(count);
                    pager.evict(&last.copied().collect::<Vec<_>>()).unwrap();
                }
                // This step prefetches pages ahead of a pass.
                2 => {
                    pager.order_after_weights().unwrap();
                    let _ = pager.copy_in(sequence.table.pages(), Granularity::WholePage);
                }
                3 => {
                    let other = count % 4;
                    if other != index {
                        let (table, numbers) = (all[other].table.clone(), all[other].numbers.clone());
                        pager.release(&mut all[index].table);
                        all[index] = Sequence { table: pager.share(&table), numbers };
                    }
                }
                4 => { pager.is_resident(&sequence.table).unwrap(); }
                5 => pager.copy_out(sequence.table.pages()).unwrap(),
                6 | 7 => { let _ = run_streamed(&mut pager, sequence, &mut fresh); }
                8 => {
                    // Weights take the last frames, or give them back.
                    let frames = device.saturating_sub(count);
                    if pager.set_device_frames(frames).is_ok() {
                        let copier = &pager.copier;
                        let here = copier.record(Stream::Compute).unwrap();
                        copier.wait(Stream::Copy, &here).unwrap();
                        for frame in (frames..device).map(|at| Frame(at as u32)) {
                            for block in 0..BLOCKS {
                                let weights = StreamItem::Compute(frame, block, None, u64::MAX);
                                copier.put(Stream::Copy, weights);
                            }
                        }
                        let there = copier.record(Stream::Copy).unwrap();
                        copier.wait(Stream::Compute, &there).unwrap();
                    }
                }
                _ => { let _ = run(&mut pager, sequence, count, &mut fresh); }
            }
            pager.pages().check_integrity(all.iter().map(|sequence| &sequence.table));
        }
        pager.copier.drain();
        let left: usize = pager.copier.streams.borrow().iter().map(VecDeque::len).sum();
        prop_assert_eq!(left, 0, "a stream waits for ever");
    }
}

#[test]
fn pages_are_copying_out_until_the_copy_is_done() {
    let mut seen = 0;
    for seed in 0..50 {
        let pages = Pages::new(4, 4, 0);
        let mut pager = Pager::with(LateDevice::new(4, 4, seed), pages, region(4));
        let mut table = PageTable::new(1);
        pager.prepare_write(&mut table, 0..4).unwrap();
        assert!(!pager.is_copying_out(&table));
        pager.copy_out(table.pages()).unwrap();
        assert!(pager.is_resident(&table).unwrap(), "a reader need not wait");
        seen += usize::from(pager.is_copying_out(&table));
        pager.copier.drain();
        assert!(!pager.is_copying_out(&table));
    }
    assert!(seen > 0, "the streams were late at least once");
}
