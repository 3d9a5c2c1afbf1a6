//! Simulation of the scheduler over random sessions, some of them larger than the device: no
//! session starves, nothing deadlocks, and pages are never mixed up. A failure prints its inputs.

use std::collections::BTreeSet;

use djinn_kv::{PageContent, PageId, PageTable, Pages};
use proptest::prelude::*;

use super::{
    commitment::{PageCommitment, PageRoom, admissible},
    decision::{PassDecision, decide},
    disk_work::disk_work,
    fair_share::{Class, FairShare, SLICE_PASSES},
    owner_shares::{ActiveShare, OwnerShares},
    ready::{BatchLimits, ReadySession},
};
use crate::{probe::probe_limits::ProbeLimits, settings::Settings};

const CLASSES: [Class; 3] = [Class::Realtime, Class::Interactive, Class::Batch];
const PAGE: usize = 2;

/// A simulated session.
struct Simulated {
    table: PageTable,
    fair_share: FairShare,
    most: usize,
    tokens: usize,
    wanted: usize,
    /// Kind of prompt: prompts of one kind have equal beginnings.
    prompt: u32,
    /// Steps until the session arrives or returns.
    waits: usize,
    admitted: bool,
    /// Passes since the session last ran in which it could have run.
    hungry: usize,
}

impl Simulated {
    fn is_ready(&self) -> bool {
        self.waits == 0 && self.tokens < self.wanted
    }

    /// Content of a page of the prompt.
    fn content(&self, at: usize) -> PageContent {
        let tokens = at * PAGE..(at + 1) * PAGE;
        let token = |position| (self.prompt + position as u32 / 8, true);
        PageContent::new("", tokens.map(token))
    }

    /// Number of pages that the session may still allocate.
    fn more(&self, pages: &Pages) -> usize {
        let at = self.tokens..self.tokens + 1;
        let copied = pages.frames_needed(&self.table, &at) - self.table.missing(at.end);
        self.most - self.table.len() + copied
    }
}

/// All sessions, and the pages that they share.
struct World {
    pages: Pages,
    all: Vec<Simulated>,
    limits: BatchLimits,
    clock: u64,
    room: PageRoom,
    /// Host frames reserved for pages from disk.
    reserve: usize,
    /// Host frames to keep free where there is a disk.
    margin: usize,
    /// Pages in transit between host and disk.
    moving: Vec<PageId>,
    /// Consecutive passes in which nothing moved.
    stuck: usize,
    random: u64,
    /// Number of passes in which pages streamed.
    streamed: usize,
}

impl World {
    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    fn elsewhere(&self) -> usize {
        self.pages.host().total() - self.reserve + self.pages.disk().total()
    }

    fn room(&self) -> PageRoom {
        PageRoom {
            elsewhere: self.elsewhere(),
            ..self.room
        }
    }

    fn promised(&self) -> PageCommitment {
        let held = PageCommitment::new(self.room(), self.pages.held());
        let admitted = self.all.iter().filter(|s| s.admitted);
        admitted.fold(held, |all, s| all.and(s.most, s.more(&self.pages)))
    }

    fn come_and_go(&mut self) {
        for s in self.all.iter_mut().filter(|s| s.waits > 0) {
            s.waits -= 1;
            if s.waits == 0 {
                s.fair_share = match s.tokens {
                    0 => FairShare::new(s.fair_share.class, self.clock),
                    _ => s.fair_share.rejoin(self.clock),
                };
            }
        }
        let is_queued = |&i: &usize| self.all[i].is_ready() && !self.all[i].admitted;
        let mut queue: Vec<usize> = (0..self.all.len()).filter(is_queued).collect();
        queue.sort_by_key(|&i| (self.all[i].fair_share.virtual_time, i));
        let most = queue.iter().map(|&i| self.all[i].most);
        let count = admissible(self.promised(), most);
        for &i in &queue[..count] {
            self.all[i].admitted = true;
            self.all[i].fair_share = self.all[i].fair_share.rejoin(self.clock);
        }
    }

    /// Forks a session.
    fn fork(&mut self, i: usize) {
        let s = &self.all[i];
        let left = s.most - s.table.len();
        let not_yet = 1 - (s.more(&self.pages) - left);
        let promised = self.promised().and_fork(s.most, left + not_yet, 1);
        if s.tokens == 0 || !promised.fits() {
            return;
        }
        let fork = Simulated {
            table: self.pages.share(&self.all[i].table),
            ..Simulated {
                table: PageTable::new(PAGE),
                ..*s
            }
        };
        self.all.push(fork);
    }

    /// Gives sessions that start the pages of their prompt that the prefix cache has.
    fn look_up(&mut self) {
        let starts = |s: &&mut Simulated| s.admitted && s.is_ready() && s.tokens == 0;
        for s in self.all.iter_mut().filter(starts) {
            while s.tokens + PAGE < s.wanted {
                let at = s.tokens / PAGE;
                let content = s.content(at);
                if !self.pages.lookup_prefix(&mut s.table, at, &content) {
                    break;
                }
                s.tokens += PAGE;
            }
        }
    }

    /// Moves cached pages to slower tiers.
    fn demote(&mut self) {
        let (device, host) = (self.draw(8), self.draw(8));
        for page in self.pages.cached_only_on_device(device) {
            self.pages.copy_out_cached(page, self.reserve);
        }
        for page in self.pages.cached_only_in_host_memory(host) {
            if self.moving.len() < 4 {
                let going = self.pages.spill_cached(page);
                self.moving.extend(going.map(|going| going.page));
            }
        }
    }

    /// Copies pages of a session to the host.
    fn copy_out(&mut self, i: usize) {
        for _ in 0..self.draw(self.all[i].table.len() + 1) {
            let at = self.draw(self.all[i].table.len());
            if self.pages.host_free() > self.reserve {
                self.pages.copy_out(self.all[i].table.pages()[at]);
            }
        }
    }

    /// Finishes a disk transfer, with or without an error.
    fn arrive(&mut self) {
        for _ in 0..self.draw(4).min(self.moving.len()) {
            let at = self.draw(self.moving.len());
            let page = self.moving.swap_remove(at);
            // Writing fails now and then; reading does not.
            let is_whole = self.pages.is_only_on_disk(page) || self.draw(5) > 0;
            self.pages.finish_transfer(page, is_whole);
        }
    }

    fn work_on_disk(&mut self, ids: &[usize], idle: &[usize], running: &[usize]) {
        if self.pages.disk().total() == 0 {
            return;
        }
        let mut order = ids.to_vec();
        order.sort_by_key(|&i| {
            (
                self.all[i].fair_share.virtual_time,
                self.all[i].fair_share.class,
                i,
            )
        });
        let tables = |ids: &[usize]| -> Vec<&PageTable> {
            ids.iter().map(|&i| &self.all[i].table).collect()
        };
        let (wanted, idle, running) = (tables(&order), tables(idle), tables(running));
        let work = disk_work(&wanted, &idle, &running, &self.pages, self.margin);
        for page in work.fetch {
            self.moving
                .extend(self.pages.fetch(page).map(|going| going.page));
        }
        for page in work.spill {
            self.moving
                .extend(self.pages.spill(page).map(|going| going.page));
        }
    }

    /// Moves the pages of the sessions that run, as the selection does.
    fn page_in(&mut self, ids: &[usize], decision: &PassDecision) {
        for &(i, rows) in &decision.run {
            let s = &mut self.all[ids[i]];
            let part = decision.stream.iter().find(|(session, _)| *session == i);
            let arriving = part.map_or(s.table.pages(), |(_, arriving)| arriving);
            for &page in arriving {
                self.pages.copy_in(page).expect("room was made");
            }
            let tokens = s.tokens..s.tokens + rows;
            self.pages
                .prepare_write(&mut s.table, tokens)
                .expect("room was made");
        }
    }

    /// Checks that pages of running sessions that are not on the device are in host memory and fit
    /// in the window.
    fn check_window(&mut self, running: &[usize]) -> Result<(), TestCaseError> {
        let tables = running.iter().map(|&i| &self.all[i].table);
        let pages: BTreeSet<PageId> = tables.flat_map(PageTable::pages).copied().collect();
        let away = |page: &&PageId| self.pages.device_frame(**page).is_none();
        let away: Vec<&PageId> = pages.iter().filter(away).collect();
        let in_host = |page: &&PageId| self.pages.host_frame(**page).is_some();
        prop_assert!(away.iter().all(in_host), "a page cannot stream");
        prop_assert!(away.len() <= self.limits.window, "the window overflows");
        self.streamed += usize::from(!away.is_empty());
        Ok(())
    }

    /// Runs one pass.
    fn step(&mut self) -> Result<(), TestCaseError> {
        self.come_and_go();
        self.look_up();
        self.arrive();
        let is_ready = |s: &Simulated| s.admitted && s.is_ready();
        let (ids, idle): (Vec<usize>, Vec<usize>) =
            (0..self.all.len()).partition(|&i| is_ready(&self.all[i]));
        let of = |&i: &usize| ReadySession {
            fair_share: self.all[i].fair_share,
            table: &self.all[i].table,
            computed: self.all[i].tokens,
            // The first tokens are the prompt.
            whole: false,
            lens_rows: 0,
            head_rows: 0,
            pending: match self.all[i].tokens {
                0 => self.all[i].wanted.div_ceil(2),
                _ => 1,
            },
        };
        let ready: Vec<ReadySession<'_>> = ids.iter().map(of).collect();
        let waiting: Vec<&PageTable> = idle.iter().map(|&i| &self.all[i].table).collect();
        let room = self.pages.host_room().saturating_sub(self.reserve);
        let decision = decide(&ready, &waiting, &self.pages, room, self.limits);
        let order = |&i: &usize| {
            (
                ready[i].fair_share.virtual_time,
                ready[i].fair_share.class,
                i,
            )
        };
        let first = (0..ids.len()).min_by_key(order);
        let is_first = decision.run.first().map(|run| run.0) == first;
        self.clock = self.clock.max(decision.virtual_time);
        let evicts = !decision.evict.is_empty();
        for &page in &decision.evict {
            let sent = self.pages.evict(page);
            prop_assert!(sent.is_ok(), "there is room for what goes");
        }
        for &i in &ids {
            self.all[i].hungry += 1;
        }
        let running: Vec<usize> = decision.run.iter().map(|(i, _)| ids[*i]).collect();
        self.page_in(&ids, &decision);
        self.work_on_disk(&ids, &idle, &running);
        self.demote();
        self.check_window(&running)?;
        for (i, rows) in decision.run {
            let s = &mut self.all[ids[i]];
            s.tokens += rows;
            s.fair_share.charge();
            s.hungry = 0;
            let before = s.tokens - rows;
            for at in before / PAGE..s.tokens / PAGE {
                let content = s.content(at);
                self.pages.insert_prefix(&mut s.table, at, content);
            }
            if s.tokens == s.wanted {
                self.pages.release(&mut s.table);
                s.admitted = false;
            } else if self.draw(9) == 0 {
                self.all[ids[i]].waits = 1 + self.draw(40);
                self.copy_out(ids[i]);
            } else if self.draw(20) == 0 && self.all.len() < 30 {
                self.fork(ids[i]);
            }
        }
        // Without a disk the first session always runs. With a disk it may have to wait for a
        // transfer, or for pages that the disk already held and that were evicted at once.
        let moves = is_first || evicts || !self.moving.is_empty();
        self.stuck = if moves { 0 } else { self.stuck + 1 };
        let most = usize::from(self.pages.disk().total() > 0);
        prop_assert!(self.stuck <= most, "the first runs");
        // All other sessions may have a time slice first, returning ones another one, and a
        // disk may delay them.
        let disk = if self.pages.disk().total() > 0 { 8 } else { 1 };
        let bound = 4 * disk * SLICE_PASSES as usize * self.all.len();
        prop_assert!(
            self.all.iter().all(|s| s.hungry <= bound),
            "a session starves"
        );
        self.pages
            .check_integrity(self.all.iter().map(|s| &s.table));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// However sessions arrive, wait, fork and find pages in the prefix cache, and however slow the
    /// disk is: pages never exceed the frames, every session is scheduled in time, and all of them
    /// end.
    #[test]
    fn everybody_gets_there(
        device in 4usize..24, host in 0usize..60, disk in 0usize..60,
        most in 1usize..6, rows in 6usize..20,
        asked in prop::collection::vec((1usize..60, 0usize..3, 0usize..60, 0u32..4), 1..20),
        limit in prop::option::of(0usize..40),
        random: u64,
    ) {
        let sizes = Sizes { device, host, disk, window: 0, most, rows, limit };
        simulate(&sizes, &asked, random)?;
    }

    /// Sessions of up to ten times the device are scheduled in time too, and all of them end.
    #[test]
    fn sessions_larger_than_the_device_get_there(
        device in 8usize..24, window in 1usize..200, host in 0usize..240, disk in 0usize..120,
        most in 1usize..6, rows in 1usize..8,
        asked in prop::collection::vec((1usize..320, 0usize..3, 0usize..60, 0u32..4), 1..9),
        limit in prop::option::of(0usize..40),
        random: u64,
    ) {
        let sizes = Sizes { device, host, disk, window, most, rows, limit };
        simulate(&sizes, &asked, random)?;
    }
}

#[test]
fn sessions_larger_than_the_device_stream_beside_others() {
    let sizes = Sizes {
        device: 12,
        host: 80,
        disk: 0,
        window: 60,
        most: 4,
        rows: 6,
        limit: None,
    };
    // One session of 60 pages, two that fit, and another large one that comes later.
    let asked = [(120, 1, 0, 0), (8, 1, 3, 1), (10, 2, 5, 2), (70, 0, 9, 3)];
    let streamed = simulate(&sizes, &asked, 3).expect("all sessions end");
    assert!(streamed > 60, "{streamed}");
}

/// Sizes of a simulated engine.
struct Sizes {
    device: usize,
    host: usize,
    disk: usize,
    window: usize,
    /// Maximum number of sessions in a pass.
    most: usize,
    rows: usize,
    /// Maximum number of cached pages, if there is one.
    limit: Option<usize>,
}

/// Number of tokens of a session, at most `wanted`, that an engine with this room accepts.
fn accepted(room: PageRoom, wanted: usize) -> usize {
    let fits = |pages: &usize| PageCommitment::new(room, 0).and(*pages, *pages).fits();
    let most = (1..=wanted.div_ceil(PAGE)).rev().find(fits);
    wanted.min(most.unwrap_or(0) * PAGE)
}

/// Runs sessions of `asked` tokens, class, arrival and kind of prompt until all of them end. Returns the number of
/// passes in which pages streamed.
fn simulate(
    sizes: &Sizes,
    asked: &[(usize, usize, usize, u32)],
    random: u64,
) -> Result<usize, TestCaseError> {
    let &Sizes {
        device,
        host,
        disk,
        window,
        most,
        rows,
        limit,
    } = sizes;
    let pages = asked.iter().map(|(wanted, ..)| wanted.div_ceil(PAGE));
    let largest = pages.max().unwrap_or(1);
    // A disk requires host memory for the largest session.
    let disk = if host < 2 * largest.min(device) {
        0
    } else {
        disk
    };
    let settings = Settings {
        rows,
        sessions: most,
        open: asked.len(),
        context: largest * PAGE,
        pages: device,
        window_pages: window,
        host_pages: host,
        disk_pages: disk,
        page_tokens: PAGE,
        logit_rows: most,
        probe_limits: ProbeLimits::default(),
    };
    let reserve = PageRoom::host_reserve(&settings);
    let room = PageRoom::new(&settings, host - reserve + disk);
    let sessions = asked.iter().map(|&(wanted, class, comes, prompt)| {
        let wanted = accepted(room, wanted);
        Simulated {
            table: PageTable::new(PAGE),
            fair_share: FairShare::new(CLASSES[class], 0),
            most: wanted.div_ceil(PAGE),
            tokens: 0,
            wanted,
            prompt,
            waits: 1 + comes,
            admitted: false,
            hungry: 0,
        }
    });
    let all: Vec<Simulated> = sessions.filter(|s| s.wanted > 0).collect();
    let mut world = World {
        pages: Pages::new(device, host, disk),
        all,
        limits: BatchLimits {
            sessions: most,
            rows,
            lens_rows: 0,
            window,
            head_rows: 0,
        },
        clock: 0,
        room,
        reserve,
        margin: reserve + PageRoom::most_at_once(&settings),
        moving: Vec::new(),
        stuck: 0,
        random,
        streamed: 0,
    };
    world.pages.set_cache_limit(limit.unwrap_or(usize::MAX));
    for step in 0.. {
        prop_assert!(step < 100_000, "it never ends");
        if world.all.iter().all(|s| s.tokens == s.wanted) {
            break;
        }
        world.step()?;
    }
    while let Some(page) = world.moving.pop() {
        world.pages.finish_transfer(page, true);
    }
    let pages = &world.pages;
    let room = (pages.device_room(), pages.host_room(), pages.disk_free());
    prop_assert_eq!(room, (device, host, disk));
    world.pages.clear_cache();
    let pages = &world.pages;
    let free = (
        pages.device().free(),
        pages.host().free(),
        pages.disk().free(),
    );
    prop_assert_eq!(free, (device, host, disk));
    Ok(world.streamed)
}

/// Passes of the first session, which is its owner's only one, and the least and most passes of
/// the sessions of another owner with many sessions.
struct Competition {
    single: usize,
    least: usize,
    most: usize,
}

/// Runs passes of an owner with `many` sessions, which were there long before, against an owner
/// with one. With `churn`, the many sessions are replaced by new ones after every slice.
fn competition(many: usize, slots: usize, rows: usize, churn: bool) -> Competition {
    let (pages, table) = (Pages::new(4, 0, 0), PageTable::new(PAGE));
    let owner = |i: usize| if i == 0 { "single" } else { "many" };
    let class = Class::Interactive;
    let mut owners = OwnerShares::default();
    let mut accounts = vec![FairShare::new(class, 0); many + 1];
    let mut passes = vec![0; many + 1];
    let limits = BatchLimits {
        sessions: slots,
        rows: usize::MAX / 2,
        lens_rows: 0,
        window: 0,
        head_rows: 0,
    };
    let before = 3 * SLICE_PASSES as usize;
    for pass in 0..before + 8 * SLICE_PASSES as usize * (many + 1) {
        let first = usize::from(pass < before);
        let active = accounts.iter_mut().enumerate().skip(first);
        let active = active.map(|(i, fair_share)| ActiveShare {
            owner: owner(i),
            fair_share,
            is_ready: true,
        });
        owners.order(active, |_| true);
        let ready = accounts[first..].iter().map(|fair_share| ReadySession {
            fair_share: *fair_share,
            table: &table,
            computed: 0,
            pending: 1,
            whole: false,
            lens_rows: 0,
            head_rows: 0,
        });
        let mut order: Vec<usize> = (first..=many).collect();
        order.sort_by_key(|&i| (accounts[i].rank(), i));
        let decision = decide(&ready.collect::<Vec<_>>(), &[], &pages, 0, limits);
        let chosen: Vec<usize> = decision.run.iter().map(|(i, _)| i + first).collect();
        let expected = &order[..slots.min(order.len())];
        assert!(chosen.is_empty() || chosen == expected);
        for &i in expected {
            passes[i] += usize::from(pass >= before);
            accounts[i].charge();
            owners.charge(owner(i), class, if i == 0 { 1 } else { rows });
            if churn && i > 0 && passes[i].is_multiple_of(SLICE_PASSES as usize) {
                accounts[i] = FairShare::new(class, owners.session_clock("many"));
            }
        }
    }
    Competition {
        single: passes[0],
        least: passes[1..].iter().copied().min().unwrap_or(0),
        most: passes[1..].iter().copied().max().unwrap_or(0),
    }
}

#[test]
fn an_owner_with_many_sessions_gets_no_more_than_an_owner_with_one() {
    for many in [1, 2, 7, 64, 128] {
        let all = 8 * SLICE_PASSES as usize * (many + 1);
        for churn in [false, true] {
            let found = competition(many, 1, 1, churn);
            let share = found.single as f64 / all as f64;
            assert!((0.45..0.6).contains(&share), "{share} against {many}");
            assert!(churn || found.least > 0, "one of {many} starves");
            let spread = 2 * SLICE_PASSES as usize;
            assert!(churn || found.most - found.least <= spread);
        }
        // With room for both, the single session is in every pass.
        let found = competition(many, 2, 1, false);
        assert!(found.single * 100 >= all * 99, "{} of {all}", found.single);
        // Long prompts pay for the time that they take.
        let found = competition(many, 1, 512, false);
        assert!(found.single * 10 > all * 7, "{} of {all}", found.single);
        assert!(found.least > 0, "one of {many} prompts starves");
    }
}
