//! Swapping a model out: its KV pages leave the device, so that the device's memory can be given
//! to another model.

use djinn_kv::Pages;
use djinn_types::SessionId;

use crate::{
    error::EngineError,
    scheduler::eviction::evict_pages,
    session::{Session, residency::SessionMemory, state::Transition, table::SessionTable},
};

/// Whether the KV pages of a model can leave the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapRoom {
    /// Host memory has room for them now.
    Now,
    /// Host memory has room for them when turns that have begun are over.
    AfterTurns,
    /// Sessions that wait for their owners hold more pages than host memory has room for.
    AfterSessions,
}

impl SwapRoom {
    /// Determines whether the pages of these sessions can leave the device.
    pub(crate) fn of(sessions: &SessionTable, pages: &Pages) -> Self {
        let may_stay = |session: &Session| must_keep_pages(session) && !session.is_active();
        if HostDemand::of(sessions, pages, must_keep_pages).fits() {
            SwapRoom::Now
        } else if HostDemand::of(sessions, pages, may_stay).fits() {
            SwapRoom::AfterTurns
        } else {
            SwapRoom::AfterSessions
        }
    }
}

/// Whether a session would lose work with its pages. A kept session between two turns, or before the
/// first pass of a turn, computes its tokens again.
fn must_keep_pages(session: &Session) -> bool {
    let is_between_turns = session.state.is_turn_over() && !session.is_active();
    !session.keep || !(is_between_turns || session.awaits_first_pass_of_turn())
}

/// Host frames that some sessions need before all their pages can leave the device.
struct HostDemand {
    /// Number of pages that must move to host memory.
    needed: usize,
    /// Number of host frames that are free, or that only the other sessions hold.
    there: usize,
}

impl HostDemand {
    fn of(sessions: &SessionTable, pages: &Pages, must_keep: impl Fn(&Session) -> bool) -> Self {
        let mut seen = vec![false; pages.index_bound()];
        let mut count = |kept: bool, counts: &dyn Fn(djinn_kv::PageId) -> bool| {
            let some = sessions.iter().filter(|session| must_keep(session) == kept);
            let held = some.flat_map(|session| session.pages.pages());
            let new = held.filter(|page| !std::mem::replace(&mut seen[page.index()], true));
            new.filter(|&&page| counts(page)).count()
        };
        let has_host = |page| pages.host_frame(page).is_some();
        let needs_host = |page| pages.device_frame(page).is_some() && !has_host(page);
        // A page that both kinds of sessions hold stays.
        let needed = count(true, &needs_host);
        let there = pages.host_free() + count(false, &has_host);
        HostDemand { needed, there }
    }

    fn fits(&self) -> bool {
        self.needed <= self.there
    }
}

/// Moves all KV pages from the device to host memory, and makes all device frames unavailable.
/// Host memory may have too little room. Cached pages are then lost, and so are the pages of kept sessions
/// between two turns, which compute them again when they continue. If any other session would lose pages,
/// the call fails and changes nothing.
pub(crate) fn vacate_device(residency: &mut SessionMemory<'_>) -> Result<(), EngineError> {
    let pages = residency.pager.pages();
    let demand = HostDemand::of(residency.sessions, pages, must_keep_pages);
    if !demand.fits() {
        let HostDemand { needed, there } = demand;
        return Err(EngineError::NoRoomToSwap { needed, there });
    }
    let must_keep = residency.sessions.ids(must_keep_pages);
    let others = residency.sessions.ids(|session| !must_keep_pages(session));
    for &id in &others {
        let pages = residency.pager.pages();
        if frames_needed(residency, &must_keep) <= pages.host_free() {
            break;
        }
        let mut held = residency.sessions.known(id).pages.pages().iter();
        if held.any(|&page| pages.host_frame(page).is_some()) {
            lose_pages(residency, id)?;
        }
    }
    for id in must_keep {
        evict(residency, id);
    }
    for id in others {
        if frames_needed(residency, &[id]) <= residency.pager.pages().host_free() {
            evict(residency, id);
        } else {
            lose_pages(residency, id)?;
        }
    }
    let frames = residency.pager.pages().device().total();
    // Pages that cannot be copied only leave the cache.
    if residency.pager.copy_out_cached(frames, 0, frames).is_err() {
        residency.pager.drain();
        residency.pager.clear_cache();
    }
    Ok(residency.pager.set_device_frames(0)?)
}

/// Number of host frames that sessions need before all their pages can leave the device.
fn frames_needed(residency: &SessionMemory<'_>, ids: &[SessionId]) -> usize {
    let pages = residency.pager.pages();
    let mut seen = vec![false; pages.index_bound()];
    let tables = ids
        .iter()
        .map(|&id| residency.sessions.known(id).pages.pages());
    let needs_frame = tables.flatten().filter(|&&page| {
        let was_seen = std::mem::replace(&mut seen[page.index()], true);
        !was_seen && pages.device_frame(page).is_some() && pages.host_frame(page).is_none()
    });
    needs_frame.count()
}

/// Evicts the pages of a session, for which host memory has room.
fn evict(residency: &mut SessionMemory<'_>, id: SessionId) {
    let pages = residency.pager.pages();
    let own = residency.sessions.known(id).pages.pages().iter().copied();
    let own: Vec<_> = own
        .filter(|&page| pages.device_frame(page).is_some())
        .collect();
    evict_pages(residency, &own);
}

/// Releases the pages of a kept session that runs no turn. A turn that has not begun waits for admission.
fn lose_pages(residency: &mut SessionMemory<'_>, id: SessionId) -> Result<(), EngineError> {
    let session = residency.sessions.known_mut(id);
    let has_turn = session.is_active();
    // The turn before captured these.
    let captured = std::mem::take(&mut session.captured);
    session.interrupt()?;
    session.captured = captured;
    if has_turn {
        session.apply(Transition::Resume)?;
    }
    residency.pager.discard(&mut session.pages);
    Ok(())
}
