use proptest::prelude::*;

use super::{OutOfPages, PageTable, Pages};
use crate::page::PageCopy;
use crate::prefix_index::PageContent;

/// A page's tokens that were all given.
fn content(tokens: &[u32]) -> PageContent {
    PageContent::new("", tokens.iter().map(|&token| (token, true)))
}

fn evict_all(pages: &mut Pages, table: &PageTable) -> Vec<PageCopy> {
    let sent = table.pages().iter().map(|&page| pages.evict(page).unwrap());
    sent.flatten().collect()
}

#[test]
fn grows_all_or_nothing() {
    let mut pages = Pages::new(3, 0, 0);
    let mut a = PageTable::new(16);
    pages.prepare_write(&mut a, 0..17).unwrap();
    assert_eq!(a.len(), 2);
    pages.prepare_write(&mut a, 0..5).unwrap();
    assert_eq!(a.len(), 2, "a table never shrinks by growing");
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
fn the_host_keeps_copies_until_they_are_written_or_needed() {
    let mut pages = Pages::new(4, 4, 0);
    let mut a = PageTable::new(2);
    pages.prepare_write(&mut a, 0..8).unwrap();
    assert_eq!(
        (evict_all(&mut pages, &a).len(), pages.nonresident(&a)),
        (4, 4)
    );
    for page in a.pages().to_vec() {
        assert!(pages.copy_in(page).unwrap().is_some());
        assert!(pages.copy_in(page).unwrap().is_none(), "it is there");
    }
    assert_eq!(
        (
            pages.nonresident(&a),
            pages.host_copies(),
            pages.host().free()
        ),
        (0, 4, 0)
    );
    // Only what is written since is sent again.
    pages.prepare_write(&mut a, 7..8).unwrap();
    assert_eq!((pages.host_copies(), pages.host().free()), (3, 1));
    assert_eq!(evict_all(&mut pages, &a).len(), 1);
    let first = a.pages()[0];
    pages.copy_in(first).unwrap().unwrap();
    // Another takes its copy's frame.
    let mut b = PageTable::new(2);
    pages.prepare_write(&mut b, 0..2).unwrap();
    pages.evict(b.pages()[0]).unwrap().unwrap();
    assert_eq!((pages.host_copies(), pages.host().free()), (0, 0));
    assert_eq!(pages.evict(first).unwrap_err().wanted, 1, "no room is left");
    pages.check_integrity([&a, &b].into_iter());
}

#[test]
fn what_the_host_has_too_makes_way_at_once() {
    let mut pages = Pages::new(4, 3, 0);
    let mut a = PageTable::new(2);
    pages.prepare_write(&mut a, 0..8).unwrap();
    let all = a.pages().to_vec();
    let copied = all.iter().filter_map(|&page| pages.copy_out(page)).count();
    assert_eq!(copied, 3, "as far as there is room");
    assert_eq!((pages.host_copies(), pages.nonresident(&a)), (3, 0));
    assert_eq!(pages.copy_out(all[0]), None, "the host has it");
    let sent = pages.evict(all[0]).unwrap();
    assert_eq!(sent, None, "nothing has to be copied");
    assert_eq!((pages.device().free(), pages.nonresident(&a)), (1, 1));
    // What is written is no longer what the host has.
    pages.copy_in(all[0]).unwrap().unwrap();
    pages.prepare_write(&mut a, 4..8).unwrap();
    assert_eq!((pages.host_copies(), pages.host().free()), (2, 1));
    pages.check_integrity(std::iter::once(&a));
}

#[test]
fn a_fork_copies_only_what_it_writes() {
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
    // The other's page is its own again.
    assert_eq!(pages.prepare_write(&mut a, 10..11).unwrap().copies, []);
    pages.check_integrity([&a, &b].into_iter());
    pages.release(&mut a);
    assert_eq!(pages.device().free(), 2);
    pages.release(&mut b);
    assert_eq!(pages.device().free(), 5);
    pages.check_integrity([].into_iter());
}

#[test]
fn equal_beginnings_are_one() {
    let mut pages = Pages::new(9, 9, 0);
    let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| PageTable::new(2));
    for table in [&mut a, &mut b] {
        pages.prepare_write(table, 0..4).unwrap();
    }
    pages.insert_prefix(&mut a, 0, content(&[1, 2]));
    pages.insert_prefix(&mut a, 1, content(&[3, 4]));
    // The same, computed twice, becomes one as soon as that is seen.
    evict_all(&mut pages, &a);
    pages.insert_prefix(&mut b, 0, content(&[1, 2]));
    assert_eq!((a.pages()[0], pages.nonresident(&a)), (b.pages()[0], 1));
    pages.insert_prefix(&mut b, 1, content(&[3, 5]));
    assert_ne!(a.pages()[1], b.pages()[1]);
    assert_eq!(pages.device().free(), 7);
    // Who has begun drops what it has; who was given other tokens finds nothing.
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
    // After a page that is its own, nothing is shared.
    pages.prepare_write(&mut d, 0..4).unwrap();
    pages.insert_prefix(&mut d, 1, content(&[3, 4]));
    assert!(!pages.lookup_prefix(&mut d, 1, &content(&[3, 4])));
    pages.check_integrity([&a, &b, &c, &d].into_iter());
    // The last who holds a page takes it along.
    pages.release(&mut a);
    pages.release(&mut c);
    assert!(
        pages.lookup_prefix(&mut c, 0, &content(&[1, 2]))
            && !pages.lookup_prefix(&mut c, 1, &content(&[3, 4]))
    );
    pages.check_integrity([&b, &c, &d].into_iter());
}

#[test]
fn disk_and_back() {
    let mut pages = Pages::new(2, 2, 2);
    let mut a = PageTable::new(1);
    pages.prepare_write(&mut a, 0..2).unwrap();
    let [first, second] = [a.pages()[0], a.pages()[1]];
    assert!(pages.spill(first).is_none(), "not from the device");
    evict_all(&mut pages, &a);
    assert!(pages.spill(first).is_some() && pages.spill(second).is_some());
    assert!(
        pages.in_disk_transfer(first) && !pages.is_only_on_disk(first) && pages.host().free() == 0
    );
    // One could not be written, the other is.
    pages.finish_transfer(first, false);
    pages.finish_transfer(second, true);
    assert!(!pages.is_only_on_disk(first) && pages.is_only_on_disk(second));
    assert_eq!((pages.host().free(), pages.disk().free()), (1, 1));
    assert!(
        pages.copy_in(second).unwrap().is_none(),
        "it is not on the host"
    );
    let back = pages.fetch(second).unwrap();
    assert!(pages.is_only_on_disk(second) && pages.fetch(second).is_none());
    pages.finish_transfer(second, true);
    assert_eq!(pages.host_frame(second), Some(back.to));
    // The disk keeps it, so that it goes again for nothing, unless others need the room.
    assert_eq!(pages.disk().free(), 1);
    assert!(pages.spill(second).is_none() && pages.is_only_on_disk(second));
    pages.check_integrity([&a].into_iter());
    // Given up on the way.
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
fn what_comes_from_disk_may_be_there_already() {
    let mut pages = Pages::new(4, 4, 4);
    let [mut a, mut b] = [(); 2].map(|()| PageTable::new(1));
    pages.prepare_write(&mut a, 0..1).unwrap();
    pages.insert_prefix(&mut a, 0, content(&[1]));
    let page = a.pages()[0];
    pages.evict(page).unwrap();
    pages.spill(page).unwrap();
    pages.finish_transfer(page, true);
    pages.fetch(page).unwrap();
    // Another computes the same meanwhile; the two become one, which leaves the device.
    pages.prepare_write(&mut b, 0..1).unwrap();
    pages.insert_prefix(&mut b, 0, content(&[1]));
    assert!(pages.evict(page).unwrap().is_some());
    pages.finish_transfer(page, true);
    pages.check_integrity([&a, &b].into_iter());
    assert_eq!(pages.host().free(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_page_is_lost_or_written_by_two(
        device in 0usize..30, host in 0usize..30, disk in 0usize..30,
        moves in prop::collection::vec((0usize..5, 0usize..100, 0u8..12), 0..150),
    ) {
        const PAGE: usize = 4;
        let mut pages = Pages::new(device, host, disk);
        let mut tables = vec![PageTable::new(PAGE); 5];
        // The tokens of each, and how many are in its pages.
        let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); 5];
        for (who, number, what) in moves {
            let full = |tokens: &[u32], at: usize| content(&tokens[at * PAGE..(at + 1) * PAGE]);
            match what {
                0 => {
                    pages.release(&mut tables[who]);
                    tokens[who].clear();
                }
                1 => {
                    let other = number % 5;
                    if other != who {
                        pages.release(&mut tables[who]);
                        tables[who] = pages.share(&tables[other].clone());
                        tokens[who] = tokens[other].clone();
                    }
                }
                2 | 3 => {
                    if pages.nonresident(&tables[who]) > 0 { continue; }
                    let range = tokens[who].len()..tokens[who].len() + 1 + number % 9;
                    let (needs, free) = (pages.frames_needed(&tables[who], &range), pages.device().free());
                    let wrote = pages.prepare_write(&mut tables[who], range.clone());
                    prop_assert_eq!(wrote.is_ok(), needs <= free);
                    let Ok(plan) = wrote else { continue };
                    let took = plan.copies.len() + plan.new_frames.len();
                    prop_assert_eq!(took, needs);
                    let before = tokens[who].len();
                    tokens[who].extend(range.clone().map(|at| (number + at) as u32 % 3));
                    for page in &tables[who].pages()[before / PAGE..] {
                        prop_assert!(pages.holders(*page) == 1 && pages.host_frame(*page).is_none());
                    }
                    for at in before / PAGE..range.end / PAGE {
                        let content = full(&tokens[who], at);
                        pages.insert_prefix(&mut tables[who], at, content);
                    }
                }
                4 => {
                    let at = tokens[who].len() / PAGE;
                    let wanted: Vec<u32> = (0..PAGE).map(|i| (number + i) as u32 % 3).collect();
                    tokens[who].truncate(at * PAGE);
                    if pages.lookup_prefix(&mut tables[who], at, &content(&wanted)) {
                        tokens[who].extend(wanted);
                    } else if tables[who].len() > at {
                        // It would have computed what it had begun; here it starts again.
                        pages.release(&mut tables[who]);
                        tokens[who].clear();
                    }
                }
                _ => {
                    let Some(&page) = tables[who].pages().get(number) else { continue };
                    match what {
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
