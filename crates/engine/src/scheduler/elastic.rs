//! Elastic policy: when weights yield to KV pages, and when they return.
//!
//! The rule is simple: weights yield as soon as running sessions need more pages than there are
//! frames, and as far as they need them. Sessions that merely wait for input push out no weights:
//! their pages go to host memory. Weights return once the need has stayed lower for a number of
//! passes, one unit at a time. The policy counts passes and pages and knows no time.

use std::cmp::Reverse;

use djinn_kv::{PageId, Pager};

use super::spill_policy::SpillPolicy;
use crate::session::{Session, table::SessionTable};

/// Number of passes with a lower need before weights return.
const CALM_PASSES: usize = 64;
/// Number of passes that a call without a running session counts for.
const IDLE_PASSES: usize = 16;
/// Number of units that return between two passes.
const RETURN_UNITS: usize = 1;
/// Number of units that return at once while no session runs.
const IDLE_RETURN_UNITS: usize = 16;
/// Number of tokens per session that weights yield room for ahead of the need, so that the level
/// does not change with every page.
const TOKENS_AHEAD: usize = 64;
/// Share of the need that must stay free when weights return: one page in this many.
const MARGIN: usize = 16;

/// Number of pages that sessions need on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageNeed {
    /// Pages of running sessions for their next tokens.
    pub now: usize,
    /// Pages of running sessions for the tokens after them.
    pub soon: usize,
    /// Pages of running sessions up to the end of their turns, at most.
    pub most: usize,
    /// Pages of waiting sessions that no other tier has room for.
    pub stuck: usize,
    /// Whether a session runs.
    pub is_active: bool,
}

/// Returns the need of all sessions. At most `batch` sessions run in a pass, so the others have no
/// need yet: the sessions that need most count.
pub(crate) fn page_need(
    sessions: &SessionTable,
    pager: &Pager,
    spill: &SpillPolicy,
    batch: usize,
) -> PageNeed {
    let pages = pager.pages();
    let mut is_held = vec![false; pages.index_bound()];
    let mut needs: Vec<PageNeed> = Vec::new();
    for session in sessions.iter().filter(|session| session.is_active()) {
        let own = session.pages.pages().iter();
        let first_seen = |page: &&PageId| !std::mem::replace(&mut is_held[page.index()], true);
        let held = own.filter(first_seen).count();
        let tokens = |ahead: usize| {
            let more = session.pages.missing(session.tokens.len() + ahead);
            held + more.min(session.pages_left()) + session.copied_pages(pages)
        };
        needs.push(PageNeed {
            now: tokens(1),
            soon: tokens(TOKENS_AHEAD),
            most: held + session.more_pages(pages),
            stuck: 0,
            is_active: true,
        });
    }
    needs.sort_by_key(|need| Reverse(need.soon));
    needs.truncate(batch);
    let mut need = needs
        .into_iter()
        .fold(PageNeed::default(), |all, one| PageNeed {
            now: all.now + one.now,
            soon: all.soon + one.soon,
            most: all.most + one.most,
            stuck: 0,
            is_active: true,
        });
    let mut idle = 0;
    let waits = |session: &&Session| session.state.awaits().is_some();
    for page in sessions.iter().filter(waits).flat_map(|s| s.pages.pages()) {
        let was_held = std::mem::replace(&mut is_held[page.index()], true);
        idle += usize::from(!was_held && pages.device_frame(*page).is_some());
    }
    need.stuck = idle.saturating_sub(spill.evictable(pages));
    need
}

/// Decides the level. Levels are counted from the lowest one of the layout.
pub(crate) struct ElasticPolicy {
    /// Number of KV frames at each level.
    frames: Vec<usize>,
    /// Number of passes for which a lower level would have been enough.
    calm: usize,
    /// Largest need in these passes.
    peak: usize,
}

impl ElasticPolicy {
    /// Creates the policy for levels with these numbers of frames.
    pub fn new(frames: Vec<usize>) -> Self {
        assert!(frames.is_sorted(), "a higher level has more frames");
        ElasticPolicy {
            frames,
            calm: 0,
            peak: 0,
        }
    }

    /// Lowest level with at least this many frames, or the highest one.
    fn level_for(&self, pages: usize) -> usize {
        let level = self.frames.partition_point(|&frames| frames < pages);
        level.min(self.frames.len() - 1)
    }

    /// Returns the level of the next pass.
    pub fn decide(&mut self, level: usize, need: PageNeed) -> usize {
        if need.now + need.stuck > self.frames[level] {
            self.restart();
            return self.level_for(need.soon + need.stuck).max(level);
        }
        let margin = need.soon.div_ceil(MARGIN);
        let wanted = (need.soon + margin).min(need.most) + need.stuck;
        if self.level_for(wanted) >= level {
            self.restart();
            return level;
        }
        self.peak = self.peak.max(wanted);
        self.calm += if need.is_active { 1 } else { IDLE_PASSES };
        if self.calm < CALM_PASSES {
            return level;
        }
        let units = if need.is_active {
            RETURN_UNITS
        } else {
            IDLE_RETURN_UNITS
        };
        let lower = self.level_for(self.peak).max(level.saturating_sub(units));
        if lower >= level {
            // The need was higher in between. Its next lower stretch counts from here.
            self.restart();
        }
        lower.min(level)
    }

    /// Forgets the passes with a lower need.
    pub fn restart(&mut self) {
        (self.calm, self.peak) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CALM_PASSES, ElasticPolicy, PageNeed};

    fn need(pages: usize) -> PageNeed {
        PageNeed {
            now: pages,
            soon: pages + pages / 10,
            most: 2 * pages,
            stuck: 0,
            is_active: pages > 0,
        }
    }

    fn policy() -> ElasticPolicy {
        ElasticPolicy::new((0..=10).map(|level| 100 + 20 * level).collect())
    }

    #[test]
    fn weights_yield_at_once_and_return_after_a_while() {
        let mut policy = policy();
        assert_eq!(policy.decide(0, need(90)), 0);
        assert_eq!(policy.decide(0, need(150)), 4, "room for 165 pages");
        for _ in 1..CALM_PASSES {
            assert_eq!(policy.decide(4, need(50)), 4);
        }
        let mut level = 4;
        for expect in [3, 2, 1, 0, 0] {
            level = policy.decide(level, need(50));
            assert_eq!(level, expect);
        }
    }

    #[test]
    fn a_need_in_between_keeps_its_level() {
        let mut policy = policy();
        let mut level = 8;
        for pass in 0..10 * CALM_PASSES {
            // Every thirtieth pass needs 165 pages, with the pages ahead and the margin 193.
            level = policy.decide(level, need(if pass % 30 == 0 { 165 } else { 20 }));
        }
        assert_eq!(level, 5);
    }

    #[test]
    fn an_idle_engine_returns_to_the_lowest_level_in_few_calls() {
        let mut policy = policy();
        let levels: Vec<usize> = (0..8)
            .scan(10, |level, _| {
                *level = policy.decide(*level, need(0));
                Some(*level)
            })
            .collect();
        assert_eq!(levels, [10, 10, 10, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn sessions_near_their_end_need_no_margin() {
        let mut policy = policy();
        let last = PageNeed {
            most: 100,
            ..need(95)
        };
        let mut level = 3;
        for _ in 0..CALM_PASSES + 3 {
            level = policy.decide(level, last);
        }
        assert_eq!(level, 0, "the lowest level has 100 frames");
    }

    #[test]
    fn pages_that_cannot_leave_keep_their_frames() {
        let mut policy = policy();
        let stuck = PageNeed {
            stuck: 130,
            ..PageNeed::default()
        };
        let mut level = 6;
        for _ in 0..20 {
            level = policy.decide(level, stuck);
        }
        assert_eq!(level, 2);
    }

    proptest! {
        #[test]
        fn the_level_follows_the_need_without_flapping(
            steps in prop::collection::vec((0usize..400, 1usize..150), 1..40),
            frames in prop::collection::vec(0usize..40, 1..30),
        ) {
            let mut total = 50;
            let frames: Vec<usize> = frames.iter().map(|more| { total += more; total }).collect();
            let mut policy = ElasticPolicy::new(frames.clone());
            let (mut level, mut grown) = (0, None::<usize>);
            let mut pass = 0;
            for (pages, passes) in steps {
                for _ in 0..passes {
                    pass += 1;
                    let next = policy.decide(level, need(pages));
                    // Need is met as far as memory allows.
                    let enough = frames[next] >= pages || next == frames.len() - 1;
                    prop_assert!(enough, "{pages} pages at level {next} of {frames:?}");
                    if next > level {
                        grown = Some(pass);
                    }
                    if next < level {
                        prop_assert!(level - next <= 16, "bounded work");
                        prop_assert!(frames[next] >= pages + pages / 10);
                        let calm = grown.is_none_or(|at| pass - at >= CALM_PASSES / 16);
                        prop_assert!(calm, "weights return right after they yielded");
                    }
                    level = next;
                }
            }
            for _ in 0..CALM_PASSES + frames.len() {
                level = policy.decide(level, need(0));
            }
            prop_assert_eq!(level, policy.level_for(0), "without need the lowest level returns");
        }
    }
}
