use djinn_kv::{PageId, PageTable, Pages};
use proptest::prelude::*;

use super::{
    commitment::{PageCommitment, PageRoom, admissible},
    decision::decide,
    fair_share::{Class, FairShare},
    ready::{BatchLimits, ReadySession},
};

const CLASSES: [Class; 3] = [Class::Realtime, Class::Interactive, Class::Batch];

/// Creates tables with some pages on the device and some elsewhere.
fn tables(device: usize, host: usize, held: &[(usize, usize)]) -> (Pages, Vec<PageTable>) {
    let mut pages = Pages::new(device, host, 0);
    let mut table = |&(here, away): &(usize, usize)| {
        let mut table = PageTable::new(2);
        pages
            .prepare_write(&mut table, 0..2 * (here + away))
            .unwrap();
        for &page in &table.pages()[here..] {
            pages.evict(page).unwrap();
        }
        table
    };
    let tables = held.iter().map(&mut table).collect();
    (pages, tables)
}

fn ready(place: u64, table: &PageTable, pending: usize) -> ReadySession<'_> {
    let mut fair_share = FairShare::new(Class::Interactive, 0);
    fair_share.virtual_time = place;
    ReadySession {
        fair_share,
        table,
        computed: 2 * table.len(),
        pending,
        whole: false,
        lens_rows: 0,
        head_rows: 0,
    }
}

fn limits(sessions: usize, rows: usize) -> BatchLimits {
    BatchLimits {
        sessions,
        rows,
        lens_rows: 0,
        window: 0,
        head_rows: 0,
    }
}

/// Counts the evicted pages of each table.
fn counts(away: &[PageId], tables: &[PageTable]) -> Vec<usize> {
    let of = |table: &PageTable| away.iter().filter(|p| table.pages().contains(p)).count();
    tables.iter().map(of).collect()
}

#[test]
fn who_paid_least_comes_first_and_the_last_makes_room() {
    let (pages, tables) = tables(13, 100, &[(4, 0), (0, 5), (4, 0), (3, 0)]);
    let all = [
        ready(9, &tables[0], 1),
        ready(3, &tables[1], 1),
        ready(6, &tables[2], 1),
    ];
    let idle = [&tables[3]];
    // The second session needs six pages: two are free, three come from an idle session, and one
    // from the first session, which runs last. The third takes one more there.
    let decision = decide(&all, &idle, &pages, 100, limits(8, 8));
    assert_eq!(counts(&decision.evict, &tables), [2, 0, 0, 3]);
    assert_eq!(
        (decision.run, decision.virtual_time),
        (vec![(1, 1), (2, 1)], 3)
    );
    // Without room elsewhere, only sessions on the device run.
    let decision = decide(&all, &idle, &pages, 0, limits(8, 8));
    assert_eq!(
        (decision.run, decision.evict),
        (vec![(2, 1), (0, 1)], vec![])
    );
    assert_eq!(decide(&all, &idle, &pages, 0, limits(1, 8)).run, [(2, 1)]);
}

#[test]
fn pages_of_several_count_once_and_stay_for_whoever_runs() {
    let (mut pages, mut tables) = tables(6, 9, &[(0, 3), (2, 0)]);
    let fork = pages.share(&tables[0]);
    tables.push(fork);
    // Both need three pages paged in and one new page; the idle session gives up two.
    let all = [ready(1, &tables[0], 1), ready(2, &tables[2], 1)];
    let decision = decide(&all, &[&tables[1]], &pages, 9, limits(8, 8));
    assert_eq!(decision.run, [(0, 1), (1, 1)]);
    assert_eq!(counts(&decision.evict, &tables), [0, 1, 0]);
    // A page that a running session holds is not evicted with the idle session that shares it.
    for &page in tables[0].pages() {
        pages.copy_in(page).unwrap();
    }
    let all = [ready(1, &tables[0], 5)];
    let idle = [&tables[2], &tables[1]];
    let decision = decide(&all, &idle, &pages, 9, limits(8, 8));
    assert_eq!(
        (decision.run, counts(&decision.evict, &tables)),
        (vec![(0, 5)], vec![0, 2, 0])
    );
}

/// Returns limits of one row for each of eight sessions, with a window.
fn windowed(window: usize) -> BatchLimits {
    BatchLimits {
        window,
        ..limits(8, 8)
    }
}

#[test]
fn a_session_larger_than_the_device_streams_and_leaves_others_their_pages() {
    // Device: five pages of the large session, two of an idle and three of a small one.
    let (mut pages, tables) = tables(10, 100, &[(0, 9), (2, 0), (3, 0)]);
    let mut large = pages.share(&tables[0]);
    pages.prepare_write(&mut large, 18..20).unwrap();
    for &page in &large.pages()[..4] {
        pages.copy_in(page).unwrap();
    }
    let all = [ready(1, &large, 1), ready(2, &tables[2], 1)];
    let idle = [&tables[1]];
    let decision = decide(&all, &idle, &pages, 100, windowed(20));
    assert_eq!(decision.run, [(0, 1), (1, 1)]);
    // Both write a new page. The idle session gives up its frames for them.
    assert_eq!(counts(&decision.evict, &tables), [0, 2, 0]);
    assert_eq!(decision.stream, [(0, vec![])]);
    // A third frame comes from the first pages of the large session.
    let all = [ready(1, &large, 3), ready(2, &tables[2], 1)];
    let decision = decide(&all, &idle, &pages, 100, windowed(20));
    assert_eq!(decision.run, [(0, 3), (1, 1)]);
    assert_eq!(decision.evict[2..], large.pages()[..1]);
    // Without a window it does not run, and with a small one it needs two more pages there.
    assert_eq!(decide(&all, &idle, &pages, 100, windowed(0)).run, []);
    let all = [ready(1, &large, 1), ready(2, &tables[2], 1)];
    let decision = decide(&all, &idle, &pages, 100, windowed(3));
    assert_eq!(decision.run, [(0, 1)]);
    assert_eq!(decision.stream, [(0, large.pages()[7..9].to_vec())]);
}

#[test]
fn the_first_session_streams_rather_than_wait_for_frames() {
    // The device is full of a session that has room for only two pages elsewhere.
    let (pages, tables) = tables(8, 100, &[(0, 6), (8, 0)]);
    let (all, idle) = ([ready(1, &tables[0], 1)], [&tables[1]]);
    assert_eq!(decide(&all, &idle, &pages, 2, windowed(0)).run, []);
    let decision = decide(&all, &idle, &pages, 2, windowed(9));
    assert_eq!(decision.run, [(0, 1)]);
    assert_eq!(counts(&decision.evict, &tables), [0, 1]);
}

#[test]
fn who_is_only_on_disk_does_not_run_yet() {
    let mut pages = Pages::new(4, 4, 4);
    let mut table = PageTable::new(2);
    pages.prepare_write(&mut table, 0..4).unwrap();
    for &page in table.pages() {
        pages.evict(page).unwrap();
    }
    pages.spill(table.pages()[0]).unwrap();
    pages.finish_transfer(table.pages()[0], true);
    let other = PageTable::new(2);
    let all = [ready(1, &table, 1), ready(2, &other, 1)];
    assert_eq!(decide(&all, &[], &pages, 4, limits(8, 8)).run, [(1, 1)]);
}

#[test]
fn generating_sessions_never_wait_for_prompts() {
    let (pages, table) = (Pages::new(1000, 0, 0), PageTable::new(2));
    let check = |pending: &[usize], rows: usize, expect: &[usize]| {
        let all = (0..).zip(pending).map(|(i, &n)| ready(i, &table, n));
        let all: Vec<ReadySession<'_>> = all.collect();
        let run = decide(&all, &[], &pages, 0, limits(rows, rows)).run;
        let found: Vec<usize> = run.iter().map(|(_, rows)| *rows).collect();
        assert_eq!(found, expect, "{pending:?} in {rows}");
    };
    check(&[100, 1, 1], 8, &[6, 1, 1]);
    check(&[3, 100, 1], 8, &[3, 4, 1]);
    // Short inputs run together with long ones.
    check(&[1000, 20, 1, 20], 512, &[471, 20, 1, 20]);
    check(&[1000, 60, 60], 100, &[50, 50]);
    check(&[1, 100, 100], 8, &[1, 7]);
    check(&[100, 100, 100], 250, &[100, 100, 50]);
    check(&[5], 512, &[5]);
    check(&[9, 9], 2, &[2]);
    // The first session gets a row even if all rows are reserved.
    check(&[9, 1, 1], 2, &[1, 1]);
    check(&[1, 9, 1], 2, &[1, 1]);
}

proptest! {
    #[test]
    fn who_generates_runs_and_no_row_is_wasted(
        pending in prop::collection::vec(1usize..50, 1..10), extra in 0usize..100,
    ) {
        let rows = pending.len() + extra;
        let (pages, table) = (Pages::new(1000, 0, 0), PageTable::new(2));
        let all = (0..).zip(&pending).map(|(i, &n)| ready(i, &table, n));
        let all: Vec<ReadySession<'_>> = all.collect();
        let run = decide(&all, &[], &pages, 0, limits(10, rows)).run;
        prop_assert!(run.iter().all(|&(i, rows)| 1 <= rows && rows <= pending[i]));
        let total: usize = run.iter().map(|(_, rows)| rows).sum();
        prop_assert_eq!(total, rows.min(pending.iter().sum()));
        let generate = |i: &usize| pending[*i] == 1;
        let all = (0..pending.len()).filter(generate).count();
        prop_assert_eq!(run.iter().filter(|(i, _)| generate(i)).count(), all);
    }
}

/// Runs the first of some sessions and advances the virtual time.
fn run_one(accounts: &mut [FairShare], clock: &mut u64) -> usize {
    let held = vec![(0, 1); accounts.len()];
    let (pages, tables) = (1..=held.len()).fold(
        (Pages::new(1, 9, 0), Vec::new()),
        |(mut pages, mut tables), _| {
            let mut table = PageTable::new(2);
            pages.prepare_write(&mut table, 0..1).unwrap();
            pages.evict(table.pages()[0]).unwrap();
            tables.push(table);
            (pages, tables)
        },
    );
    let one = |(&fair_share, table)| ReadySession {
        fair_share,
        table,
        computed: 1,
        pending: 1,
        whole: false,
        lens_rows: 0,
        head_rows: 0,
    };
    let all: Vec<ReadySession<'_>> = accounts.iter().zip(&tables).map(one).collect();
    let decision = decide(&all, &[], &pages, 9, limits(3, 3));
    let [(chosen, 1)] = decision.run[..] else {
        panic!("one runs")
    };
    *clock = decision.virtual_time.max(*clock);
    accounts[chosen].charge();
    chosen
}

#[test]
fn shares_are_those_of_the_classes() {
    let mut accounts = CLASSES.map(|class| FairShare::new(class, 0));
    let (mut runs, mut clock) = ([0u32; 3], 0);
    for _ in 0..10_000 {
        runs[run_one(&mut accounts, &mut clock)] += 1;
    }
    let share = |i: usize| f64::from(runs[i]) / f64::from(runs[2]);
    let near = |share: f64, expect: f64| (share / expect - 1.0).abs() < 0.05;
    assert!(near(share(0), 8.0) && near(share(1), 4.0), "{runs:?}");
}

#[test]
fn a_long_session_is_not_starved_by_short_ones_that_keep_coming() {
    // Next to two others the share would be 1/3, 1/9 and 1/17.
    for (long, short, least) in [
        (Class::Interactive, Class::Interactive, 0.25),
        (Class::Batch, Class::Interactive, 0.08),
        (Class::Batch, Class::Realtime, 0.04),
    ] {
        let mut clock = 0;
        let mut accounts = vec![FairShare::new(long, 0), FairShare::new(short, 0)];
        accounts.push(FairShare::new(short, 0));
        let mut ages = [0, 0, 0];
        let (mut runs, passes) = (0, 20_000);
        for _ in 0..passes {
            let chosen = run_one(&mut accounts, &mut clock);
            runs += u32::from(chosen == 0);
            ages[chosen] += 1;
            // A short session ends after ten passes, and another one arrives at once.
            if chosen > 0 && ages[chosen] % 10 == 0 {
                accounts[chosen] = FairShare::new(short, clock);
            }
        }
        let share = f64::from(runs) / f64::from(passes);
        assert!(share > least, "{long:?} beside {short:?}: {share}");
    }
}

#[test]
fn nobody_overtakes_and_a_swap_stays_possible() {
    let check = |held: &[usize], queue: &[usize], device, host, expect| {
        let room = PageRoom {
            device,
            session: device,
            window: 0,
            written: 1,
            elsewhere: host,
        };
        let promised = held
            .iter()
            .fold(PageCommitment::new(room, 0), |all, &n| all.and(n, n));
        assert_eq!(admissible(promised, queue.iter().copied()), expect);
    };
    check(&[], &[4, 4], 8, 0, 2);
    check(&[], &[4, 4, 1], 8, 0, 2);
    check(&[4], &[9, 1], 8, 0, 0);
    // Nine of thirteen pages, with room for the largest: four host frames stay free.
    check(&[4], &[4, 1], 8, 5, 2);
    check(&[4, 4], &[2], 8, 5, 0);
}
