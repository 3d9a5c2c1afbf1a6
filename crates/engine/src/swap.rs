//! Swapping a model out: its KV pages leave the device, so that the device's memory can be given
//! to another model.

use djinn_types::SessionId;

use crate::{
    error::EngineError,
    scheduler::eviction::evict_pages,
    session::{Session, residency::SessionMemory},
};

/// Moves all KV pages from the device to host memory, and makes all device frames unavailable.
/// Pages that host memory has no room for are lost if they are cached, or if a kept session whose
/// turn is over holds them: the session computes them again when it continues. Refuses if another
/// session would lose pages; then nothing changes.
pub(crate) fn vacate_device(residency: &mut SessionMemory<'_>) -> Result<(), EngineError> {
    let may_lose =
        |session: &Session| session.keep && session.state.is_turn_over() && !session.is_active();
    let must_keep = residency.sessions.ids(|session| !may_lose(session));
    let needed = frames_needed(residency, &must_keep);
    let there = residency.pager.pages().host_free();
    if needed > there {
        return Err(EngineError::NoRoomToSwap { needed, there });
    }
    let others = residency.sessions.ids(may_lose);
    for id in must_keep {
        evict(residency, id);
    }
    for id in others {
        if frames_needed(residency, &[id]) <= residency.pager.pages().host_free() {
            evict(residency, id);
        } else {
            let session = residency.sessions.known_mut(id);
            session.interrupt()?;
            residency.pager.discard(&mut session.pages);
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
