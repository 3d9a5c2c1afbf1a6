//! Time: deadlines, leases, and sessions that are expected to return.

use std::time::{Duration, Instant};

use djinn_kv::{Granularity, PageId};

use super::{
    eviction::{copy_to_host, evict_pages, is_short, spare_pages},
    spill_policy::SpillPolicy,
    waiting::expected,
};
use crate::session::{Session, output::Output, residency::SessionMemory, state::Transition};

/// Time after its expected return for which a session is still expected.
const GRACE: Duration = Duration::from_secs(1);

/// Ends sessions whose deadline has passed or whose lease has run out.
pub(crate) fn expire(residency: &mut SessionMemory<'_>, now: Instant) -> Vec<Output> {
    let ended = |session: &Session| {
        let awaits_owner = session.state.awaits().is_some();
        let finish = session.lifetime.expired(now, awaits_owner)?;
        (!session.state.is_done()).then_some((session.id, finish))
    };
    let ended: Vec<_> = residency.sessions.iter().filter_map(ended).collect();
    let ended = ended.into_iter();
    ended
        .map(|(id, finish)| residency.end(id, finish, None))
        .collect()
}

/// Pages in sessions that are expected soon, the soonest first, into frames that are free or
/// that only sessions needed later hold. Ready sessions that lack pages come first. Returns the
/// ends of sessions whose pages could not be moved.
pub(crate) fn prefetch(residency: &mut SessionMemory<'_>, now: Instant) -> Vec<Output> {
    let mut lost = Vec::new();
    let expected = expected(residency.sessions, now);
    let mut spare = None;
    for &id in &expected {
        let (table, pages) = (&residency.sessions.known(id).pages, residency.pager.pages());
        if table
            .pages()
            .iter()
            .any(|&page| pages.is_only_on_disk(page))
        {
            continue;
        }
        // A session larger than the device streams its pages when it runs.
        if table.len() > pages.device().total() {
            continue;
        }
        let short = pages.nonresident(table).saturating_sub(pages.device_room());
        if short > 0 {
            if pages.host_copies() < short || is_short(residency) {
                break;
            }
            let spare = spare.get_or_insert_with(|| spare_pages(residency, &expected));
            if spare.len() < short {
                break;
            }
            let gone: Vec<PageId> = spare.drain(..short).collect();
            evict_pages(residency, &gone);
        }
        let back = residency.move_pages(id, |pager, session| {
            Ok(pager.copy_in(session.pages.pages(), Granularity::WholePage)?)
        });
        lost.extend(back.err().flatten().map(|lost| *lost));
    }
    lost
}

/// Stops expecting sessions that did not return in time, and copies their pages to the host.
pub(crate) fn forget_late(residency: &mut SessionMemory<'_>, policy: &SpillPolicy, now: Instant) {
    let is_late = |session: &Session| match session.state.awaits() {
        Some(Some(expected)) => now.saturating_duration_since(expected) >= GRACE,
        _ => false,
    };
    for id in residency.sessions.ids(is_late) {
        // An earlier failure may have ended this session too.
        let session = residency.sessions.known_mut(id);
        if session.apply(Transition::Wait(None)).is_ok() {
            copy_to_host(residency, policy, id);
        }
    }
}
