//! The pass decision: which sessions run in the next pass, and which pages are evicted for them.
//!
//! Pure logic over numbers. A session pays for every pass it runs in, a price that its class
//! sets, and the session with the least virtual time comes first. A session that does not run
//! keeps its virtual time while the others advance, so every session is scheduled eventually. A
//! time slice lasts several passes, during which the order of a session does not change: moving
//! its pages pays only if they stay for a while.

use djinn_kv::{PageId, PageTable, Pages};

use super::{
    ready::{BatchLimits, ReadySession},
    rows::FreeRows,
};

/// Decision about the next pass. Sessions are indexes into the slice of ready sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassDecision {
    /// Pages to evict from the device.
    pub evict: Vec<PageId>,
    /// Sessions that run, in order, each with its number of tokens. Their pages are paged in
    /// after the eviction.
    pub run: Vec<(usize, usize)>,
    /// Virtual time of the first session in the order.
    pub virtual_time: u64,
}

/// Device frames while a decision is made.
struct FrameBudget<'a> {
    pages: &'a Pages,
    /// Number of frames that no session holds. Frames of cached pages count as free.
    free: usize,
    /// Number of pages that can still be evicted, because another tier has room for them.
    elsewhere: usize,
    /// Number of held pages on the device that no session earlier in the order claims.
    unclaimed: usize,
    /// By page: whether the page stays on the device or is paged in.
    stays: Vec<bool>,
    /// By page: whether the page is evicted.
    goes: Vec<bool>,
}

impl FrameBudget<'_> {
    fn is_here(&self, page: PageId) -> bool {
        self.pages.device_frame(page).is_some()
    }

    /// Whether a page may be evicted.
    fn can_go(&self, page: PageId) -> bool {
        self.is_here(page) && !self.stays[page.index()] && !self.goes[page.index()]
    }

    /// Claims the device pages of a session, so that sessions behind it cannot evict them.
    fn claim(&mut self, table: &PageTable) {
        for &page in table.pages() {
            if self.can_go(page) {
                self.unclaimed -= 1;
                self.stays[page.index()] = true;
            }
        }
    }

    /// Marks all pages of a session as staying on the device or being paged in.
    fn keep(&mut self, table: &PageTable) {
        for page in table.pages() {
            self.stays[page.index()] = true;
        }
    }

    /// Number of pages of a session to page in; `None` if some of them cannot be.
    fn to_page_in(&self, table: &PageTable) -> Option<usize> {
        let can_come =
            |page: &PageId| !self.goes[page.index()] && !self.pages.is_only_on_disk(*page);
        let comes = |page: &&PageId| !self.is_here(**page) && !self.stays[page.index()];
        let all = table.pages();
        all.iter()
            .all(can_come)
            .then(|| all.iter().filter(comes).count())
    }

    /// Evicts pages of a session, the last first, until `wanted` frames are free.
    fn evict(&mut self, wanted: usize, table: &PageTable, evicted: &mut Vec<PageId>) {
        for &page in table.pages().iter().rev() {
            if self.free >= wanted || self.elsewhere == 0 {
                return;
            }
            if self.can_go(page) {
                self.goes[page.index()] = true;
                self.unclaimed -= 1;
                self.elsewhere -= 1;
                self.free += 1;
                evicted.push(page);
            }
        }
    }
}

/// Decides the next pass. `idle` are the tables of sessions that do not run now, in order of
/// eviction; `elsewhere` is the number of pages that other tiers have room for. Generating
/// sessions run one token each, and prompts share the rows that are left, in order. A session
/// with pages on disk does not run yet.
pub(crate) fn decide(
    ready: &[ReadySession<'_>],
    idle: &[&PageTable],
    pages: &Pages,
    elsewhere: usize,
    limits: BatchLimits,
) -> PassDecision {
    let mut order: Vec<usize> = (0..ready.len()).collect();
    order.sort_by_key(|&i| (ready[i].fair_share.rank(), i));
    let mut decision = PassDecision {
        virtual_time: order
            .first()
            .map_or(0, |&i| ready[i].fair_share.virtual_time),
        ..PassDecision::default()
    };
    let mut frames = FrameBudget {
        pages,
        free: pages.device_room(),
        elsewhere,
        unclaimed: pages.device().total() - pages.device_room(),
        stays: vec![false; pages.index_bound()],
        goes: vec![false; pages.index_bound()],
    };
    // Eviction takes idle sessions first, then ready sessions in reverse order.
    let later = order.iter().rev().map(|&i| ready[i].table);
    let mut victims = idle.iter().copied().chain(later).peekable();
    let mut free_rows = FreeRows::new(ready, limits);
    for &i in &order {
        if decision.run.len() == limits.sessions {
            break;
        }
        let session = &ready[i];
        frames.claim(session.table);
        // A session that lost pages to one before it cannot run in this pass.
        let Some(coming) = frames.to_page_in(session.table) else {
            continue;
        };
        let rows = free_rows.available(session, i == order[0]);
        if rows == 0 {
            continue;
        }
        let tokens = session.computed..session.computed + rows;
        let needed = coming + pages.frames_needed(session.table, &tokens);
        let available = frames.free + frames.unclaimed.min(frames.elsewhere);
        // The first session evicts what it can, so that those pages move to disk meanwhile.
        if needed > available && i != order[0] {
            continue;
        }
        while frames.free < needed.min(available) {
            let table = victims.peek().expect("unclaimed pages belong to a victim");
            frames.evict(needed, table, &mut decision.evict);
            if frames.free < needed {
                victims.next();
            }
        }
        if needed > available {
            continue;
        }
        frames.keep(session.table);
        frames.free -= needed;
        free_rows.take(session, rows);
        decision.run.push((i, rows));
    }
    decision
}
