//! Eviction: pages of waiting sessions leave the device, or the host keeps a copy of them.

use std::collections::VecDeque;

use djinn_kv::PageId;
use djinn_types::SessionId;

use super::{spill_policy::SpillPolicy, waiting::idle_tables};
use crate::{
    error::EngineError,
    session::{Session, residency::SessionMemory},
};

/// Returns, by page number, whether an active session or one of `these` holds the page.
fn pages_in_use(residency: &SessionMemory<'_>, these: &[SessionId]) -> Vec<bool> {
    let sessions = &*residency.sessions;
    let active = sessions.iter().filter(|session| session.is_active());
    let these = these.iter().map(|&id| sessions.known(id));
    let mut used = vec![false; residency.pager.pages().index_bound()];
    for session in active.chain(residency.running).chain(these) {
        let pages = session.pages.pages().iter();
        pages.for_each(|page| used[page.index()] = true);
    }
    used
}

/// Returns the pages of a waiting session that are on the device and that no active session
/// holds, the last first.
fn evictable_pages(residency: &SessionMemory<'_>, id: SessionId) -> Vec<PageId> {
    let (used, pages) = (pages_in_use(residency, &[]), residency.pager.pages());
    let is_here = |&page: &PageId| !used[page.index()] && pages.device_frame(page).is_some();
    let own = residency.sessions.known(id).pages.pages().iter().rev();
    own.copied().filter(is_here).collect()
}

/// Evicts the pages of a waiting session to the host, as far as there is room.
pub(crate) fn evict_session(
    residency: &mut SessionMemory<'_>,
    policy: &SpillPolicy,
    id: SessionId,
) {
    let own = evictable_pages(residency, id);
    evict_as_many(residency, policy, own);
}

/// Evicts `count` pages of waiting sessions, as far as the host has room for them.
pub(crate) fn evict_waiting(residency: &mut SessionMemory<'_>, policy: &SpillPolicy, count: usize) {
    let mut used = pages_in_use(residency, &[]);
    let mut idle = Vec::new();
    let tables = idle_tables(residency.sessions, residency.pager);
    for &page in tables.into_iter().flat_map(|t| t.pages().iter().rev()) {
        let is_used = std::mem::replace(&mut used[page.index()], true);
        if !is_used && residency.pager.pages().device_frame(page).is_some() {
            idle.push(page);
        }
    }
    idle.truncate(count);
    evict_as_many(residency, policy, idle);
}

/// Evicts as many of these pages as the host has room for.
fn evict_as_many(residency: &mut SessionMemory<'_>, policy: &SpillPolicy, mut pages: Vec<PageId>) {
    // Every evicted page occupies a host frame for good. Pages with a host copy go first.
    let all = residency.pager.pages();
    pages.sort_by_key(|&page| all.is_only_on_device(page));
    pages.truncate(policy.evictable(all));
    evict_pages(residency, &pages);
}

/// Copies the pages of a waiting session to the host. The pages stay on the device until other
/// sessions need their frames, and then leave it without a copy. Where the host is short of
/// room, the pages are evicted instead, so that none occupies two frames.
pub(crate) fn copy_to_host(residency: &mut SessionMemory<'_>, policy: &SpillPolicy, id: SessionId) {
    let own = evictable_pages(residency, id);
    let pages = residency.pager.pages();
    let new = own
        .iter()
        .filter(|&&page| pages.is_only_on_device(page))
        .count();
    if new + policy.margin() > pages.host_free() {
        return evict_as_many(residency, policy, own);
    }
    let copied = residency.pager.copy_out(&own);
    residency.defer_failure(copied.map_err(EngineError::from), &own);
}

/// Returns the pages of waiting sessions other than `these` that could leave the device without
/// a copy, in order of eviction.
pub(crate) fn spare_pages(residency: &SessionMemory<'_>, these: &[SessionId]) -> VecDeque<PageId> {
    let mut used = pages_in_use(residency, these);
    let mut spare = VecDeque::new();
    let idle = idle_tables(residency.sessions, residency.pager);
    for &page in idle.into_iter().flat_map(|t| t.pages().iter().rev()) {
        let is_used = std::mem::replace(&mut used[page.index()], true);
        if !is_used && residency.pager.pages().is_on_device_and_host(page) {
            spare.push_back(page);
        }
    }
    spare
}

/// Evicts pages that the host has a copy of, or has room for.
pub(crate) fn evict_pages(residency: &mut SessionMemory<'_>, pages: &[PageId]) {
    let sent = residency.pager.evict(pages);
    residency.defer_failure(sent.map_err(EngineError::from), pages);
}

/// Whether a ready session lacks pages on the device. A session larger than the device always
/// does, and runs without them.
pub(crate) fn is_short(residency: &SessionMemory<'_>) -> bool {
    let pages = residency.pager.pages();
    let fits = |session: &Session| session.pages.len() <= pages.device().total();
    let lacks = |session: &Session| pages.nonresident(&session.pages) > 0;
    let lacks = |session: &Session| session.is_ready() && fits(session) && lacks(session);
    residency.sessions.iter().any(lacks)
}
