use proptest::prelude::*;

use super::{OutOfPages, PageTable, Pages};
use crate::page::{PageCopy, PageId};
use crate::prefix_index::PageContent;

/// Content of a page of prompt tokens.
fn content(tokens: &[u32]) -> PageContent {
    PageContent::new("", tokens.iter().map(|&token| (token, true)))
}

fn evict_all(pages: &mut Pages, table: &PageTable) -> Vec<PageCopy> {
    let sent = table.pages().iter().map(|&page| pages.evict(page).unwrap());
    sent.flatten().collect()
}

#[test]
fn a_write_gets_all_its_frames_or_none() {
    let mut pages = Pages::new(3, 0, 0);
    let mut a = PageTable::new(16);
    pages.prepare_write(&mut a, 0..17).unwrap();
    assert_eq!(a.len(), 2);
    pages.prepare_write(&mut a, 0..5).unwrap();
    assert_eq!(a.len(), 2, "a table never shrinks by a write");
    let mut b = PageTable::new(16);
    let error = pages.prepare_write(&mut b, 0..32).unwrap_err();
    let expect = OutOfPages {
        wanted: 2,
        free: 1,
        total: 3,
    };
    assert_eq!(error, expect);
    assert!(b.is_empty());
    pages.check_integrity([&a, &b].into_iter());
}

#[test]
fn host_copies_stay_until_written_or_reused() {
    let mut pages = Pages::new(4, 4, 0);
    let mut a = PageTable::new(2);
    pages.prepare_write(&mut a, 0..8).unwrap();
    assert_eq!(
        (evict_all(&mut pages, &a).len(), pages.nonresident(&a)),
        (4, 4)
    );
    for page in a.pages().to_vec() {
        assert!(pages.copy_in(page).unwrap().is_some());
        assert!(
            pages.copy_in(page).unwrap().is_none(),
            "the page is on the device"
        );
    }
    assert_eq!(
        (
            pages.nonresident(&a),
            pages.host_copies(),
            pages.host().free()
        ),
        (0, 4, 0)
    );
    // Copies again only the page that was written since.
    pages.prepare_write(&mut a, 7..8).unwrap();
    assert_eq!((pages.host_copies(), pages.host().free()), (3, 1));
    assert_eq!(evict_all(&mut pages, &a).len(), 1);
    let first = a.pages()[0];
    pages.copy_in(first).unwrap().unwrap();
    // Another page takes the host frame of the copy.
    let mut b = PageTable::new(2);
    pages.prepare_write(&mut b, 0..2).unwrap();
    pages.evict(b.pages()[0]).unwrap().unwrap();
    assert_eq!((pages.host_copies(), pages.host().free()), (0, 0));
    assert_eq!(
        pages.evict(first).unwrap_err().wanted,
        1,
        "host memory is full"
    );
    pages.check_integrity([&a, &b].into_iter());
}

#[test]
fn a_page_with_a_host_copy_is_evicted_without_copying() {
    let mut pages = Pages::new(4, 3, 0);
    let mut a = PageTable::new(2);
    pages.prepare_write(&mut a, 0..8).unwrap();
    let all = a.pages().to_vec();
    let copied = all.iter().filter_map(|&page| pages.copy_out(page)).count();
    assert_eq!(copied, 3, "as many as host memory holds");
    assert_eq!((pages.host_copies(), pages.nonresident(&a)), (3, 0));
    assert_eq!(pages.copy_out(all[0]), None, "host memory has the page");
    let sent = pages.evict(all[0]).unwrap();
    assert_eq!(sent, None, "no copy is needed");
    assert_eq!((pages.device().free(), pages.nonresident(&a)), (1, 1));
    // A write invalidates the host copies.
    pages.copy_in(all[0]).unwrap().unwrap();
    pages.prepare_write(&mut a, 4..8).unwrap();
    assert_eq!((pages.host_copies(), pages.host().free()), (2, 1));
    pages.check_integrity(std::iter::once(&a));
}

#[test]
fn a_shared_page_is_copied_on_write() {
    let mut pages = Pages::new(5, 0, 0);
    let mut a = PageTable::new(4);
    pages.prepare_write(&mut a, 0..10).unwrap();
    let mut b = pages.share(&a);
    assert_eq!(
        (pages.device().free(), pages.frames_needed(&b, &(10..11))),
        (2, 1)
    );
    let plan = pages.prepare_write(&mut b, 10..11).unwrap();
    let [(from, to)] = plan.copies[..] else {
        panic!("one page is shared: {plan:?}")
    };
    assert_eq!(
        (a.pages()[..2].to_vec(), plan.new_frames.len()),
        (b.pages()[..2].to_vec(), 0)
    );
    assert_eq!(pages.frames(&a).last(), Some(from));
    assert_eq!(pages.frames(&b).last(), Some(to));
    // The other table is again the only holder of its page.
    assert_eq!(pages.prepare_write(&mut a, 10..11).unwrap().copies, []);
    pages.check_integrity([&a, &b].into_iter());
    pages.release(&mut a);
    assert_eq!(pages.device().free(), 2);
    pages.release(&mut b);
    assert_eq!(pages.device().free(), 5);
    pages.check_integrity([].into_iter());
}

#[test]
fn equal_prefixes_share_pages() {
    let mut pages = Pages::new(9, 9, 0);
    let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| PageTable::new(2));
    for table in [&mut a, &mut b] {
        pages.prepare_write(table, 0..4).unwrap();
    }
    pages.insert_prefix(&mut a, 0, content(&[1, 2]));
    pages.insert_prefix(&mut a, 1, content(&[3, 4]));
    // Two equal pages become one when the second is inserted.
    evict_all(&mut pages, &a);
    pages.insert_prefix(&mut b, 0, content(&[1, 2]));
    assert_eq!((a.pages()[0], pages.nonresident(&a)), (b.pages()[0], 1));
    pages.insert_prefix(&mut b, 1, content(&[3, 5]));
    assert_ne!(a.pages()[1], b.pages()[1]);
    assert_eq!(pages.device().free(), 7);
    // A lookup replaces a partly filled page; other tokens or phases find nothing.
    pages.prepare_write(&mut c, 0..1).unwrap();
    assert!(
        pages.lookup_prefix(&mut c, 0, &content(&[1, 2]))
            && pages.lookup_prefix(&mut c, 1, &content(&[3, 4]))
    );
    assert_eq!((c.pages(), pages.device().free()), (a.pages(), 7));
    let generated = PageContent::new("", [(1, true), (2, false)].into_iter());
    assert!(
        !pages.lookup_prefix(&mut d, 0, &generated)
            && !pages.lookup_prefix(&mut d, 0, &content(&[2, 2]))
    );
    // A page that follows a page outside the index is not shared.
    pages.prepare_write(&mut d, 0..4).unwrap();
    pages.insert_prefix(&mut d, 1, content(&[3, 4]));
    assert!(!pages.lookup_prefix(&mut d, 1, &content(&[3, 4])));
    pages.check_integrity([&a, &b, &c, &d].into_iter());
    pages.check_integrity([&a, &b, &c, &d].into_iter());
}

/// Creates a table with pages of these contents, which the prefix index has.
fn filled(pages: &mut Pages, contents: &[u32]) -> PageTable {
    let mut table = PageTable::new(1);
    for (at, &token) in contents.iter().enumerate() {
        if !pages.lookup_prefix(&mut table, at, &content(&[token])) {
            pages.prepare_write(&mut table, at..at + 1).unwrap();
            pages.insert_prefix(&mut table, at, content(&[token]));
        }
    }
    table
}

/// Adds the pages of one set to another, as a file of saved pages would.
fn save_and_add(from: &Pages, to: &mut Pages, most: usize) -> usize {
    let list = from.indexed_pages();
    let mut places: Vec<Option<PageId>> = Vec::new();
    for page in list.into_iter().take(most) {
        let previous = page.previous.map(|previous| places[previous]);
        let is_lost = previous == Some(None);
        let added = (!is_lost).then(|| to.add_indexed(previous.flatten(), page.content));
        places.push(added.flatten().map(|(page, _)| page));
    }
    let added: Vec<PageId> = places.into_iter().flatten().collect();
    to.keep_cached(&added);
    to.check_integrity(std::iter::empty());
    added.len()
}

#[test]
fn saved_pages_return_and_the_page_used_last_leaves_last() {
    let mut pages = Pages::new(20, 0, 0);
    let mut tables = [[1, 2, 3], [1, 2, 4], [5, 6, 7]].map(|tokens| filled(&mut pages, &tokens));
    // The first table is used last; the third one is still held.
    pages.release(&mut tables[1]);
    pages.release(&mut tables[0]);
    let order: Vec<PageId> = pages.indexed_pages().iter().map(|page| page.page).collect();
    let expect = [tables[2].pages(), &order[3..]].concat();
    assert_eq!(order, expect, "held pages come first");
    for (frames, expect) in [
        (7, [3, 3, 3]),
        (6, [3, 2, 3]),
        (4, [1, 1, 3]),
        (2, [0, 0, 2]),
    ] {
        let mut other = Pages::new(frames, 0, 0);
        assert_eq!(save_and_add(&pages, &mut other, 100), frames);
        let found = [[1, 2, 3], [1, 2, 4], [5, 6, 7]].map(|tokens| cached(&other, &tokens));
        assert_eq!(found, expect, "{frames} frames");
        // A new page takes the frame of the page that was used first.
        let mut table = PageTable::new(1);
        other.prepare_write(&mut table, 0..1).unwrap();
        let left = [[1, 2, 3], [1, 2, 4], [5, 6, 7]].map(|tokens| cached(&other, &tokens));
        assert_eq!(
            left.iter().sum::<usize>() + 1,
            expect.iter().sum::<usize>() - usize::from(frames == 4)
        );
    }
    // Pages fill the device first, then host memory, then the disk. A second copy adds nothing.
    let mut tiers = Pages::new(2, 2, 1);
    assert_eq!(save_and_add(&pages, &mut tiers, 100), 5);
    assert_eq!(save_and_add(&pages, &mut tiers, 100), 0);
    let stats = tiers.cache_stats();
    assert_eq!((stats.device, stats.host, stats.disk), (2, 2, 1));
}

#[test]
fn a_page_that_cannot_be_read_leaves_the_index() {
    let mut pages = Pages::new(2, 0, 0);
    let (first, _) = pages.add_indexed(None, content(&[1])).unwrap();
    let (second, _) = pages.add_indexed(Some(first), content(&[2])).unwrap();
    pages.drop_unread(second);
    pages.keep_cached(&[first]);
    pages.check_integrity(std::iter::empty());
    assert_eq!((cached(&pages, &[1, 2]), pages.device().free()), (1, 1));
}

/// Number of leading pages with these contents that the cache has.
fn cached(pages: &Pages, contents: &[u32]) -> usize {
    let mut pages = pages.clone();
    let mut table = PageTable::new(1);
    let found = contents.iter().enumerate();
    let mut found = found.map(|(at, &token)| (at, content(&[token])));
    found
        .position(|(at, content)| !pages.lookup_prefix(&mut table, at, &content))
        .unwrap_or(contents.len())
}

#[test]
fn released_pages_stay_until_their_frames_are_needed() {
    let mut pages = Pages::new(4, 0, 0);
    let mut a = filled(&mut pages, &[1, 2, 3]);
    pages.release(&mut a);
    assert_eq!(
        (pages.held(), pages.device().free(), pages.device_room()),
        (0, 1, 4)
    );
    assert_eq!(cached(&pages, &[1, 2, 3, 4]), 3);
    // The end of a prefix leaves first.
    let mut b = PageTable::new(1);
    pages.prepare_write(&mut b, 0..3).unwrap();
    assert_eq!(cached(&pages, &[1, 2, 3]), 1);
    assert_eq!(pages.cache_stats().evicted, 2);
    // A held page is not cached, so its frame is taken.
    let c = filled(&mut pages, &[1]);
    assert_eq!((pages.cache_stats().pages, pages.device_room()), (0, 0));
    assert!(pages.prepare_write(&mut b, 3..4).is_err());
    pages.check_integrity([&b, &c].into_iter());
}

#[test]
fn the_least_recently_used_pages_leave_first() {
    let mut pages = Pages::new(4, 0, 0);
    for contents in [[1, 2], [3, 4]] {
        let mut table = filled(&mut pages, &contents);
        pages.release(&mut table);
    }
    let mut again = filled(&mut pages, &[1, 2]);
    pages.release(&mut again);
    let mut new = PageTable::new(1);
    pages.prepare_write(&mut new, 0..2).unwrap();
    assert_eq!((cached(&pages, &[1, 2]), cached(&pages, &[3, 4])), (2, 0));
    pages.check_integrity(std::iter::once(&new));
}

#[test]
fn the_limit_bounds_the_cache() {
    let mut pages = Pages::new(8, 0, 0);
    pages.set_cache_limit(3);
    for contents in [[1, 2], [1, 3], [4, 5]] {
        let mut table = filled(&mut pages, &contents);
        pages.release(&mut table);
        pages.check_integrity([].into_iter());
    }
    let left = [[1, 2], [1, 3], [4, 5]].map(|contents| cached(&pages, &contents));
    assert_eq!(left, [1, 1, 2]);
    pages.set_cache_limit(0);
    let mut table = filled(&mut pages, &[1, 2]);
    pages.release(&mut table);
    assert_eq!((pages.cache_stats().pages, pages.device().free()), (0, 8));
    pages.check_integrity([].into_iter());
}

#[test]
fn pages_of_a_failed_session_are_not_cached() {
    let mut pages = Pages::new(8, 0, 0);
    let mut a = filled(&mut pages, &[1, 2, 3]);
    let mut b = filled(&mut pages, &[1, 2, 4]);
    pages.release(&mut b);
    pages.discard(&mut a);
    assert_eq!((cached(&pages, &[1, 2, 3]), pages.device().free()), (0, 8));
    // A page that another session holds stays.
    let mut a = filled(&mut pages, &[1, 2, 3]);
    let b = filled(&mut pages, &[1]);
    pages.discard(&mut a);
    assert_eq!(cached(&pages, &[1, 2, 3]), 1);
    // Lost contents leave the index even if a table holds the page.
    pages.forget(b.pages()[0]);
    assert_eq!(cached(&pages, &[1]), 0);
    pages.check_integrity(std::iter::once(&b));
}

#[test]
fn cached_pages_move_to_slower_tiers() {
    let mut pages = Pages::new(2, 2, 2);
    let mut a = filled(&mut pages, &[1, 2]);
    let [first, second] = [a.pages()[0], a.pages()[1]];
    pages.release(&mut a);
    assert_eq!(pages.cached_only_on_device(1), [second]);
    assert_eq!(pages.cached_only_on_device(2), [second, first]);
    for page in [second, first] {
        pages.copy_out_cached(page, 0).unwrap();
    }
    let mut b = filled(&mut pages, &[5, 6]);
    assert_eq!((cached(&pages, &[1, 2]), pages.cache_stats().host), (2, 2));
    assert_eq!(pages.cached_only_in_host_memory(1), [second]);
    pages.spill_cached(second).unwrap();
    assert_eq!(pages.host_room(), 1, "a transfer holds its frame");
    pages.finish_transfer(second, true);
    assert_eq!((pages.host_room(), pages.cache_stats().disk), (2, 1));
    // Newer pages take the place of older ones.
    pages.release(&mut b);
    assert_eq!(pages.cached_only_on_device(2).len(), 2);
    for page in pages.cached_only_on_device(2) {
        pages.copy_out_cached(page, 0);
    }
    let left = [cached(&pages, &[1, 2]), cached(&pages, &[5, 6])];
    assert_eq!(left, [0, 2], "without its first page a prefix is useless");
    pages.check_integrity([].into_iter());
}

#[test]
fn pages_are_spilled_and_fetched() {
    let mut pages = Pages::new(2, 2, 2);
    let mut a = PageTable::new(1);
    pages.prepare_write(&mut a, 0..2).unwrap();
    let [first, second] = [a.pages()[0], a.pages()[1]];
    assert!(
        pages.spill(first).is_none(),
        "a page on the device is not spilled"
    );
    evict_all(&mut pages, &a);
    assert!(pages.spill(first).is_some() && pages.spill(second).is_some());
    assert!(
        pages.in_disk_transfer(first) && !pages.is_only_on_disk(first) && pages.host().free() == 0
    );
    // The first write fails, the second succeeds.
    pages.finish_transfer(first, false);
    pages.finish_transfer(second, true);
    assert!(!pages.is_only_on_disk(first) && pages.is_only_on_disk(second));
    assert_eq!((pages.host().free(), pages.disk().free()), (1, 1));
    assert!(
        pages.copy_in(second).unwrap().is_none(),
        "the page is not in host memory"
    );
    let back = pages.fetch(second).unwrap();
    assert!(pages.is_only_on_disk(second) && pages.fetch(second).is_none());
    pages.finish_transfer(second, true);
    assert_eq!(pages.host_frame(second), Some(back.to));
    // The disk keeps its copy, so the next spill needs no write.
    assert_eq!(pages.disk().free(), 1);
    assert!(pages.spill(second).is_none() && pages.is_only_on_disk(second));
    pages.check_integrity([&a].into_iter());
    // Releasing the table makes transfers in flight stale.
    pages.fetch(second).unwrap();
    pages.spill(first).unwrap();
    pages.release(&mut a);
    pages.check_integrity([].into_iter());
    assert_eq!((pages.host().free(), pages.disk().free()), (0, 0));
    pages.finish_transfer(first, true);
    pages.finish_transfer(second, false);
    pages.check_integrity([].into_iter());
    assert_eq!((pages.host().free(), pages.disk().free()), (2, 2));
}

#[test]
fn a_fetched_page_may_be_in_host_memory_already() {
    let mut pages = Pages::new(4, 4, 4);
    let [mut a, mut b] = [(); 2].map(|()| PageTable::new(1));
    pages.prepare_write(&mut a, 0..1).unwrap();
    pages.insert_prefix(&mut a, 0, content(&[1]));
    let page = a.pages()[0];
    pages.evict(page).unwrap();
    pages.spill(page).unwrap();
    pages.finish_transfer(page, true);
    pages.fetch(page).unwrap();
    // Another table computes the same page meanwhile. The two pages become one, which is then
    // evicted.
    pages.prepare_write(&mut b, 0..1).unwrap();
    pages.insert_prefix(&mut b, 0, content(&[1]));
    assert!(pages.evict(page).unwrap().is_some());
    pages.finish_transfer(page, true);
    pages.check_integrity([&a, &b].into_iter());
    assert_eq!(pages.host().free(), 3);
}

/// Pages, and the tokens up to the end of each page as the bytes of its frames.
struct Simulated {
    pages: Pages,
    device: Vec<Vec<u32>>,
    host: Vec<Vec<u32>>,
    disk: Vec<Vec<u32>>,
    tables: Vec<PageTable>,
    /// Tokens of each table.
    tokens: Vec<Vec<u32>>,
}

impl Simulated {
    const PAGE: usize = 4;

    fn new(device: usize, host: usize, disk: usize) -> Self {
        Simulated {
            pages: Pages::new(device, host, disk),
            device: vec![Vec::new(); device],
            host: vec![Vec::new(); host],
            disk: vec![Vec::new(); disk],
            tables: vec![PageTable::new(Self::PAGE); 5],
            tokens: vec![Vec::new(); 5],
        }
    }

    /// Content of a page of a sequence.
    fn content(tokens: &[u32], at: usize) -> PageContent {
        content(&tokens[at * Self::PAGE..(at + 1) * Self::PAGE])
    }

    fn clear(&mut self, index: usize, is_kept: bool) {
        match is_kept {
            true => self.pages.release(&mut self.tables[index]),
            false => self.pages.discard(&mut self.tables[index]),
        }
        self.tokens[index].clear();
    }

    /// Appends tokens to a table, if there is room for them.
    fn write(&mut self, index: usize, count: usize, number: usize) {
        let (table, tokens) = (&mut self.tables[index], &mut self.tokens[index]);
        if self.pages.nonresident(table) > 0 {
            return;
        }
        let range = tokens.len()..tokens.len() + count;
        let needs = self.pages.frames_needed(table, &range);
        let room = self.pages.device_room();
        let wrote = self.pages.prepare_write(table, range.clone());
        assert_eq!(wrote.is_ok(), needs <= room);
        let Ok(plan) = wrote else { return };
        assert_eq!(plan.copies.len() + plan.new_frames.len(), needs);
        for (from, to) in plan.copies {
            self.device[to.index()] = self.device[from.index()].clone();
        }
        let first = tokens.len() / Self::PAGE;
        tokens.extend(range.clone().map(|at| (number + at) as u32 % 3));
        for (at, page) in table.pages().iter().enumerate().skip(first) {
            assert!(self.pages.holders(*page) == 1 && self.pages.host_frame(*page).is_none());
            let frame = self.pages.device_frame(*page).unwrap();
            let end = tokens.len().min((at + 1) * Self::PAGE);
            self.device[frame.index()] = tokens[..end].to_vec();
        }
        for at in first..range.end / Self::PAGE {
            let content = Self::content(tokens, at);
            self.pages.insert_prefix(table, at, content);
        }
    }

    /// Starts a table with tokens whose pages the cache may have, and reads their bytes.
    fn lookup(&mut self, index: usize, tokens: &[u32]) {
        self.clear(index, true);
        for at in 0..tokens.len() / Self::PAGE {
            let content = Self::content(tokens, at);
            if !self
                .pages
                .lookup_prefix(&mut self.tables[index], at, &content)
            {
                break;
            }
            self.tokens[index].extend(&tokens[at * Self::PAGE..(at + 1) * Self::PAGE]);
        }
    }

    /// Changes the number of device frames, if the held pages fit.
    fn resize(&mut self, count: usize) {
        let held = self.pages.device().total() - self.pages.device_room();
        let moved = self.pages.set_device_frames(count);
        assert_eq!(moved.is_ok(), held <= count);
        for (from, to) in moved.into_iter().flatten() {
            assert!(from.index() >= count && to.index() < count);
            self.device[to.index()] = self.device[from.index()].clone();
        }
        assert!(held > count || self.pages.device().total() == count);
    }

    /// Makes a copy between the device and host memory.
    fn copy(&mut self, copy: Option<PageCopy>, is_out: bool) {
        match copy {
            Some(PageCopy { from, to, .. }) if is_out => {
                self.host[to.index()] = self.device[from.index()].clone();
            }
            Some(PageCopy { from, to, .. }) => {
                self.device[to.index()] = self.host[from.index()].clone();
            }
            None => {}
        }
    }

    /// Makes a copy between host memory and disk. Its frames stay taken until it is finished, so
    /// the time of the copy does not matter.
    fn transfer(&mut self, spilled: Option<PageCopy>, fetched: Option<PageCopy>) {
        if let Some(PageCopy { from, to, .. }) = spilled {
            self.disk[to.index()] = self.host[from.index()].clone();
        }
        if let Some(PageCopy { from, to, .. }) = fetched {
            self.host[to.index()] = self.disk[from.index()].clone();
        }
    }

    /// Moves cached pages to slower tiers.
    fn demote(&mut self, frames: usize) {
        for page in self.pages.cached_only_on_device(frames) {
            let copy = self.pages.copy_out_cached(page, frames % 3);
            self.copy(copy, true);
        }
        for page in self.pages.cached_only_in_host_memory(frames) {
            let spilled = self.pages.spill_cached(page);
            self.transfer(spilled, None);
        }
    }

    /// Finishes the transfer of any page between host memory and disk.
    fn finish(&mut self, number: usize) {
        let all = (0..self.pages.index_bound()).map(|at| PageId(at as u32));
        let moving: Vec<PageId> = all
            .filter(|page| self.pages.in_disk_transfer(*page))
            .collect();
        if !moving.is_empty() {
            let page = moving[number % moving.len()];
            let is_held = self.pages.holders(page) > 0;
            // A page that could not be read is lost; only tables that hold it would know.
            let is_ok = !number.is_multiple_of(3) || (is_held && self.pages.is_only_on_disk(page));
            let was_fetched = self.pages.is_only_on_disk(page);
            self.pages.finish_transfer(page, is_ok);
            if was_fetched && !is_ok {
                self.pages.forget(page);
            }
        }
    }

    /// Checks the bytes of all frames of the pages that tables hold.
    fn check(&self) {
        for (table, tokens) in self.tables.iter().zip(&self.tokens) {
            for (at, page) in table.pages().iter().enumerate() {
                let end = tokens.len().min((at + 1) * Self::PAGE);
                let (device, host) = (self.pages.device_frame(*page), self.pages.host_frame(*page));
                let bytes = [
                    device.map(|frame| &self.device[frame.index()]),
                    host.map(|frame| &self.host[frame.index()]),
                    self.pages
                        .disk_frame(*page)
                        .map(|frame| &self.disk[frame.index()]),
                ];
                assert!(bytes.iter().flatten().all(|bytes| **bytes == tokens[..end]));
                assert!(bytes.iter().flatten().next().is_some(), "a page is lost");
            }
        }
        self.pages.check_integrity(self.tables.iter());
        let cached = self.pages.cache_stats();
        let (device, host) = (self.pages.device(), self.pages.host());
        assert_eq!(self.pages.device_room(), device.free() + cached.device);
        assert_eq!(self.pages.host_free(), host.free() + cached.host);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Checks that random operations keep every frame with one page, and every written page with
    /// one holder; that every page has the bytes of its tokens, also where the cache had it; and
    /// that cached pages leave all their frames to tables.
    #[test]
    fn no_page_is_lost_or_written_by_two_tables(
        device in 0usize..30, host in 0usize..30, disk in 0usize..30, limit in 0usize..60,
        moves in prop::collection::vec((0usize..5, 0usize..100, 0u8..18), 0..200),
    ) {
        let mut world = Simulated::new(device, host, disk);
        if limit < 30 {
            world.pages.set_cache_limit(limit);
        }
        // Tokens of tables that were released.
        let mut past: Vec<Vec<u32>> = vec![Vec::new()];
        for (index, number, operation) in moves {
            let page = world.tables[index].pages().get(number % 8).copied();
            match (operation, page) {
                (0, _) => {
                    past.push(world.tokens[index].clone());
                    world.clear(index, number % 8 > 0);
                }
                (1, _) => {
                    let other = number % 5;
                    if other != index {
                        world.clear(index, true);
                        world.tables[index] = world.pages.share(&world.tables[other].clone());
                        world.tokens[index] = world.tokens[other].clone();
                    }
                }
                (2..=4, _) => world.write(index, 1 + number % 9, number),
                (5 | 6, _) => {
                    let tokens = past[number % past.len()].clone();
                    world.lookup(index, &tokens);
                }
                (7, Some(page)) => {
                    let (room, was_here) = (world.pages.host_room(), world.pages.is_only_on_device(page));
                    let copy = world.pages.evict(page);
                    prop_assert!(copy.is_ok() || room == 0 && was_here);
                    world.copy(copy.ok().flatten(), true);
                }
                (8 | 9, Some(page)) => {
                    let room = world.pages.device_room();
                    let copy = world.pages.copy_in(page);
                    prop_assert!(copy.is_ok() || room == 0);
                    world.copy(copy.ok().flatten(), false);
                }
                (10, Some(page)) => {
                    let copy = world.pages.spill(page);
                    world.transfer(copy, None);
                }
                (11, Some(page)) => {
                    let copy = world.pages.fetch(page);
                    world.transfer(None, copy);
                }
                (12, Some(page)) => {
                    let copy = world.pages.copy_out(page);
                    world.copy(copy, true);
                }
                (13, _) => world.demote(number % 20),
                (14 | 15, _) => world.finish(number),
                (16, _) if number == 0 => world.pages.clear_cache(),
                (17, _) => world.resize(number % (device + 1)),
                _ => {}
            }
            world.check();
        }
        world.resize(device);
        // All frames are free after the last table and the last transfer.
        for index in 0..5 {
            world.clear(index, true);
        }
        for number in 1..1000 {
            world.finish(3 * number + 1);
        }
        let room = (world.pages.device_room(), world.pages.host_free(), world.pages.disk_free());
        prop_assert_eq!(room, (device, host, disk));
        world.pages.clear_cache();
        let pages = &world.pages;
        let free = (pages.device().free(), pages.host().free(), pages.disk().free());
        prop_assert_eq!(free, (device, host, disk));
    }
}
