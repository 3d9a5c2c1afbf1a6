//! The scheduler: which sessions run in the next pass, and whose pages make room for them.
//!
//! Pure logic over numbers. A session pays for every pass it runs in, a price that its
//! class sets, and those that have paid least come first: whoever does not run keeps its
//! place while the others move on, so everybody's turn comes. A turn lasts several passes,
//! during which a session's place does not change: pages are worth moving only if they
//! then stay for a while.

pub(crate) mod admission;
mod disk_work;
pub(crate) mod eviction;
pub(crate) mod expiry;
mod fair_share;
mod rows;
#[cfg(test)]
mod simulation;
pub(crate) mod spill_policy;
#[cfg(test)]
mod tests;

use djinn_kv::{PageId, PageTable, Pages};

pub(crate) use disk_work::{disk_work, reserve};
pub use fair_share::Class;
pub(crate) use fair_share::FairShare;
use rows::RowsLeft;

/// A session with tokens to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready<'a> {
    pub account: FairShare,
    pub table: &'a PageTable,
    /// Tokens that have run, and that have not.
    pub computed: usize,
    pub pending: usize,
    /// Whether all of the latter run in one pass, or none of them.
    pub whole: bool,
    /// Rows that they have under the lens.
    pub lens: usize,
}

/// What a pass may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub sessions: usize,
    pub rows: usize,
    pub lens: usize,
}

/// What happens before the next pass. Sessions are told by their number in what was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Pages that go away.
    pub away: Vec<PageId>,
    /// Who runs, in order, and how many tokens of it; what is away of these comes back
    /// after the others' have gone.
    pub run: Vec<(usize, usize)>,
    /// Where the first in the order stands.
    pub clock: u64,
}

/// Room that is to be found among pages.
struct Room<'a> {
    pages: &'a Pages,
    free: usize,
    /// Pages that can still go away, since there is room for them elsewhere.
    elsewhere: usize,
    /// Pages on the device that nobody who comes before has a claim on.
    others: usize,
    /// By page: whether it stays or comes back, and whether it goes.
    stays: Vec<bool>,
    goes: Vec<bool>,
}

impl Room<'_> {
    fn is_here(&self, page: PageId) -> bool {
        self.pages.device_frame(page).is_some()
    }

    /// Whether a page could make room.
    fn can_go(&self, page: PageId) -> bool {
        self.is_here(page) && !self.stays[page.index()] && !self.goes[page.index()]
    }

    /// What somebody has here is not for those behind it.
    fn claim(&mut self, table: &PageTable) {
        for &page in table.pages() {
            if self.can_go(page) {
                self.others -= 1;
                self.stays[page.index()] = true;
            }
        }
    }

    /// What is away of it comes back.
    fn expect(&mut self, table: &PageTable) {
        for page in table.pages() {
            self.stays[page.index()] = true;
        }
    }

    /// How many pages of it would have to come, if all can.
    fn coming(&self, table: &PageTable) -> Option<usize> {
        let can_come =
            |page: &PageId| !self.goes[page.index()] && !self.pages.is_only_on_disk(*page);
        let comes = |page: &&PageId| !self.is_here(**page) && !self.stays[page.index()];
        let all = table.pages();
        all.iter()
            .all(can_come)
            .then(|| all.iter().filter(comes).count())
    }

    /// Lets pages of somebody go, the last first, until `wanted` are free.
    fn make(&mut self, wanted: usize, table: &PageTable, away: &mut Vec<PageId>) {
        for &page in table.pages().iter().rev() {
            if self.free >= wanted || self.elsewhere == 0 {
                return;
            }
            if self.can_go(page) {
                self.goes[page.index()] = true;
                self.others -= 1;
                self.elsewhere -= 1;
                self.free += 1;
                away.push(page);
            }
        }
    }
}

/// Decides. `idle` are sessions that do not run now, those needed last first; `elsewhere`
/// more pages can go away from the device. Sessions that generate run one token, and
/// prompts share the rows that are left, in order. Who has pages on disk does not run yet.
pub(crate) fn decide(
    ready: &[Ready<'_>],
    idle: &[&PageTable],
    pages: &Pages,
    elsewhere: usize,
    limits: Limits,
) -> Decision {
    let mut order: Vec<usize> = (0..ready.len()).collect();
    order.sort_by_key(|&i| (ready[i].account.rank(), i));
    let mut decision = Decision {
        clock: order.first().map_or(0, |&i| ready[i].account.place),
        ..Decision::default()
    };
    let mut room = Room {
        pages,
        free: pages.device().free(),
        elsewhere,
        others: pages.device().total() - pages.device().free(),
        stays: vec![false; pages.index_bound()],
        goes: vec![false; pages.index_bound()],
    };
    // Whose pages make room: the idle, then those whose turn is furthest away.
    let later = order.iter().rev().map(|&i| ready[i].table);
    let mut victims = idle.iter().copied().chain(later).peekable();
    let mut rows_left = RowsLeft::new(ready, limits);
    for &i in &order {
        if decision.run.len() == limits.sessions {
            break;
        }
        let session = &ready[i];
        room.claim(session.table);
        // What was taken of it for somebody before it is gone for this pass.
        let Some(coming) = room.coming(session.table) else {
            continue;
        };
        let rows = rows_left.of(session, i == order[0]);
        if rows == 0 {
            continue;
        }
        let tokens = session.computed..session.computed + rows;
        let needed = coming + pages.frames_needed(session.table, &tokens);
        let there_is = room.free + room.others.min(room.elsewhere);
        // The first takes what there is, so that what goes makes its way to disk meanwhile.
        if needed > there_is && i != order[0] {
            continue;
        }
        while room.free < needed.min(there_is) {
            let table = victims
                .peek()
                .expect("there is as much room as was counted");
            room.make(needed, table, &mut decision.away);
            if room.free < needed {
                victims.next();
            }
        }
        if needed > there_is {
            continue;
        }
        room.expect(session.table);
        room.free -= needed;
        rows_left.take(session, rows);
        decision.run.push((i, rows));
    }
    decision
}

/// What sessions that hold pages may come to: how many pages together, and the largest of
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCommitment {
    pub pages: usize,
    pub largest: usize,
}

impl PageCommitment {
    /// Another session of up to `most` pages, of which `more` are still to come.
    pub fn and(self, most: usize, more: usize) -> Self {
        PageCommitment {
            pages: self.pages + more,
            largest: self.largest.max(most),
        }
    }

    /// The same of one that goes on from where another is: it may have to copy the pages it is
    /// at, with both on the device.
    pub fn and_fork(self, most: usize, more: usize, copied: usize) -> Self {
        self.and(most + copied, more + copied)
    }

    /// Whether all of them can come to their end: none is too large, and either all pages
    /// fit where passes run, or there is room to let one session go before another comes
    /// back. Then whoever is first can always run.
    pub fn fits(self, device: usize, elsewhere: usize) -> bool {
        let swaps = self.pages + self.largest <= device + elsewhere;
        self.largest <= device && (self.pages <= device || swaps)
    }
}

/// How many of those that wait to hold pages may: in order of where they came in. Nobody
/// overtakes: a large one would never get in. They are told by the pages they may come to.
pub(crate) fn admitted(
    mut promised: PageCommitment,
    queue: impl Iterator<Item = usize>,
    device: usize,
    elsewhere: usize,
) -> usize {
    let fits = |most: usize| {
        promised = promised.and(most, most);
        promised.fits(device, elsewhere)
    };
    queue.map(fits).take_while(|fits| *fits).count()
}
