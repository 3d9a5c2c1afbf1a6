//! Waiting sessions: in which order they are evicted, and which are expected soon.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use djinn_kv::{PageTable, Pager};
use djinn_types::SessionId;

use crate::session::table::SessionTable;

/// Time before its expected return at which the pages of a session are prefetched. A gigabyte
/// takes some twenty milliseconds over a link of 55 GB/s, and other sessions may come first.
pub(crate) const PREFETCH_AHEAD: Duration = Duration::from_millis(300);

/// Returns the waiting sessions that are expected within [`PREFETCH_AHEAD`], the soonest first.
pub(crate) fn expected(sessions: &SessionTable, now: Instant) -> Vec<SessionId> {
    let by = now + PREFETCH_AHEAD;
    let mut expected: Vec<(Instant, SessionId)> = Vec::new();
    for session in sessions.iter() {
        if let Some(Some(at)) = session.state.awaits()
            && at <= by
        {
            expected.push((at, session.id));
        }
    }
    expected.sort_unstable();
    expected.into_iter().map(|(_, id)| id).collect()
}

/// Returns the page tables of waiting and paused sessions in order of eviction.
pub(crate) fn idle_tables<'s>(sessions: &'s SessionTable, pager: &Pager) -> Vec<&'s PageTable> {
    let mut idle: Vec<_> = sessions
        .iter()
        .filter_map(|session| Some((session.state.awaits()?, session)))
        .collect();
    // A session without an expected time is taken to return last. Among those the oldest session
    // goes first, not the one that waits longest: tool calls end, so a long wait is likely over
    // soon. Sessions with a copy to the host in flight come last, because their frames are not
    // free before the copy ends.
    idle.sort_by_cached_key(|(expected, session)| {
        let is_leaving = pager.is_copying_out(&session.pages);
        (is_leaving, expected.is_some(), Reverse(*expected))
    });
    let tables = idle.into_iter().map(|(_, session)| &session.pages);
    tables.collect()
}
