use proptest::prelude::*;

use super::{OutOfPages, PageTable, Pages};
use crate::page::PageCopy;
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
    // A page leaves the index with its last holder.
    pages.release(&mut a);
    pages.release(&mut c);
    assert!(
        pages.lookup_prefix(&mut c, 0, &content(&[1, 2]))
            && !pages.lookup_prefix(&mut c, 1, &content(&[3, 4]))
    );
    pages.check_integrity([&b, &c, &d].into_iter());
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Checks that random operations keep every frame with one page, and every written page with
    /// one holder.
    #[test]
    fn no_page_is_lost_or_written_by_two_tables(
        device in 0usize..30, host in 0usize..30, disk in 0usize..30,
        moves in prop::collection::vec((0usize..5, 0usize..100, 0u8..12), 0..150),
    ) {
        const PAGE: usize = 4;
        let mut pages = Pages::new(device, host, disk);
        let mut tables = vec![PageTable::new(PAGE); 5];
        // Tokens of each table.
        let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); 5];
        for (index, number, operation) in moves {
            let full = |tokens: &[u32], at: usize| content(&tokens[at * PAGE..(at + 1) * PAGE]);
            match operation {
                0 => {
                    pages.release(&mut tables[index]);
                    tokens[index].clear();
                }
                1 => {
                    let other = number % 5;
                    if other != index {
                        pages.release(&mut tables[index]);
                        tables[index] = pages.share(&tables[other].clone());
                        tokens[index] = tokens[other].clone();
                    }
                }
                2 | 3 => {
                    if pages.nonresident(&tables[index]) > 0 { continue; }
                    let range = tokens[index].len()..tokens[index].len() + 1 + number % 9;
                    let (needs, free) = (pages.frames_needed(&tables[index], &range), pages.device().free());
                    let wrote = pages.prepare_write(&mut tables[index], range.clone());
                    prop_assert_eq!(wrote.is_ok(), needs <= free);
                    let Ok(plan) = wrote else { continue };
                    let took = plan.copies.len() + plan.new_frames.len();
                    prop_assert_eq!(took, needs);
                    let before = tokens[index].len();
                    tokens[index].extend(range.clone().map(|at| (number + at) as u32 % 3));
                    for page in &tables[index].pages()[before / PAGE..] {
                        prop_assert!(pages.holders(*page) == 1 && pages.host_frame(*page).is_none());
                    }
                    for at in before / PAGE..range.end / PAGE {
                        let content = full(&tokens[index], at);
                        pages.insert_prefix(&mut tables[index], at, content);
                    }
                }
                4 => {
                    let at = tokens[index].len() / PAGE;
                    let wanted: Vec<u32> = (0..PAGE).map(|i| (number + i) as u32 % 3).collect();
                    tokens[index].truncate(at * PAGE);
                    if pages.lookup_prefix(&mut tables[index], at, &content(&wanted)) {
                        tokens[index].extend(wanted);
                    } else if tables[index].len() > at {
                        // The tokens of the partly filled page are gone, so the table starts again.
                        pages.release(&mut tables[index]);
                        tokens[index].clear();
                    }
                }
                _ => {
                    let Some(&page) = tables[index].pages().get(number) else { continue };
                    match operation {
                        5 => { let _ = pages.evict(page); }
                        6 | 7 => { let _ = pages.copy_in(page); }
                        8 => { pages.spill(page); }
                        9 => { pages.fetch(page); }
                        10 => { pages.copy_out(page); }
                        _ if pages.in_disk_transfer(page) => pages.finish_transfer(page, number % 3 > 0),
                        _ => {}
                    }
                }
            }
            pages.check_integrity(tables.iter());
        }
    }
}
