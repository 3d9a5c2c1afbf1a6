//! The pass decision: which sessions run in the next pass, and which pages are evicted for them.
//!
//! Pure logic over numbers. A session pays for every pass it runs in, a price that its class
//! sets, and the session with the least virtual time comes first. A session that does not run
//! keeps its virtual time while the others advance, so every session is scheduled eventually. A
//! time slice lasts several passes, during which the order of a session does not change: moving
//! its pages pays only if they stay for a while.
//!
//! A session that is larger than the device runs with some of its pages there: the pages that the
//! pass writes, and as many others as no other session needs. The rest streams through the KV
//! window.

use std::ops::Range;

use djinn_kv::{PageId, PageTable, Pages};

use super::{
    frame_budget::{FrameBudget, ResidencyPlan},
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
    /// Sessions that run without all of their pages on the device, each with the pages to page
    /// in. Their other pages stream.
    pub stream: Vec<(usize, Vec<PageId>)>,
    /// Virtual time of the first session in the order.
    pub virtual_time: u64,
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
    let mut frames = FrameBudget::new(pages, elsewhere, limits.window);
    let is_large = |i: &usize| {
        let rows = ready[*i].pending.min(limits.rows);
        frames.is_too_large(ready[*i].table, &next_tokens(&ready[*i], rows))
    };
    // Eviction takes idle sessions first. Pages of sessions larger than the device come next,
    // because those sessions run without them. Ready sessions follow in reverse order.
    let (large, small): (Vec<usize>, Vec<usize>) = order.iter().rev().copied().partition(is_large);
    let later = large.iter().chain(&small).map(|&i| ready[i].table);
    let mut victims = idle.iter().copied().chain(later).peekable();
    let mut free_rows = FreeRows::new(ready, limits);
    let mut is_first_blocked = false;
    for &i in &order {
        if decision.run.len() == limits.sessions {
            break;
        }
        let (session, is_first) = (&ready[i], i == order[0]);
        let rows = free_rows.available(session, is_first);
        let plan = claim(&mut frames, session, rows, is_first);
        // A session that lost pages to one before it cannot run in this pass.
        let Some((plan, streams)) = plan.filter(|_| rows > 0) else {
            continue;
        };
        // Pages that stream stay in host memory, and their session takes frames. While the first
        // session waits for either, they leave both to it.
        let is_short = elsewhere == 0 || is_first_blocked;
        let waits = !is_first && !is_first_running(&decision, order[0]) && is_short;
        if streams && waits {
            continue;
        }
        let needed = |rows| plan.needed(&frames, session.table, &next_tokens(session, rows));
        let available = frames.available();
        let rows = match streams && !session.whole {
            true => most_rows(rows, |rows| needed(rows) <= available),
            false => rows,
        };
        let needed = needed(rows);
        // The first session evicts what it can, so that those pages move to disk meanwhile.
        if needed > available && !is_first {
            continue;
        }
        while frames.free() < needed.min(available) {
            let table = victims.peek().expect("unclaimed pages belong to a victim");
            frames.evict(needed, table, &mut decision.evict);
            if frames.free() < needed {
                victims.next();
            }
        }
        if needed > available {
            is_first_blocked = true;
            continue;
        }
        if streams {
            decision.stream.push((i, plan.arriving(&frames)));
        }
        frames.keep(plan, needed);
        free_rows.take(session, rows);
        decision.run.push((i, rows));
    }
    if !is_first_blocked {
        for (i, arriving) in &mut decision.stream {
            frames.fill(ready[*i].table, arriving);
        }
    }
    decision
}

/// Claims the device pages that a session needs for its next rows. Returns which pages it needs, and
/// whether its others stream. The first session streams rather than wait for frames.
fn claim(
    frames: &mut FrameBudget<'_>,
    session: &ReadySession<'_>,
    rows: usize,
    is_first: bool,
) -> Option<(ResidencyPlan, bool)> {
    let tokens = next_tokens(session, rows);
    if rows > 0 && frames.is_too_large(session.table, &tokens) {
        let plan = frames.claim_part(session.table, session.computed);
        return plan.map(|plan| (plan, true));
    }
    let plan = frames.claim(session.table)?;
    let is_blocked = plan.needed(frames, session.table, &tokens) > frames.available();
    if is_first
        && is_blocked
        && frames.has_window()
        && let Some(plan) = frames.claim_part(session.table, session.computed)
    {
        return Some((plan, true));
    }
    Some((plan, false))
}

/// Whether the first session in the order runs.
fn is_first_running(decision: &PassDecision, first: usize) -> bool {
    decision.run.first().is_some_and(|(i, _)| *i == first)
}

/// Returns the next `rows` tokens of a session.
fn next_tokens(session: &ReadySession<'_>, rows: usize) -> Range<usize> {
    session.computed..session.computed + rows
}

/// Returns the number of rows, at most `rows`, for which there are frames: `rows` halved until
/// it fits, and at least one.
fn most_rows(rows: usize, fits: impl Fn(usize) -> bool) -> usize {
    let mut halves = std::iter::successors(Some(rows), |rows| Some(rows / 2));
    let found = halves.find(|&rows| rows <= 1 || fits(rows));
    found.unwrap_or(rows)
}
