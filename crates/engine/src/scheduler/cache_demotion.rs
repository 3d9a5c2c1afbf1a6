//! Demotion of cached pages: the pages that leave a tier next are copied to the slower tier before
//! their frames are needed, so that a session takes their frames at once and the cache keeps them.

use std::time::Instant;

use super::spill_policy::SpillPolicy;
use crate::session::residency::SessionMemory;

/// Maximum number of pages that are copied to host memory between two passes.
const COPIES_PER_PASS: usize = 32;

/// Maximum number of pages on their way to disk. Their host frames are not free before they arrive.
const PAGES_TO_DISK: usize = 8;

/// Maximum number of frames of a tier whose cached pages have a copy in the slower tier.
const FRAMES_AHEAD: usize = 1024;

/// Number of host frames whose cached pages have a copy on disk: enough for the next session, but not more
/// than half of the frames, because a disk is slow to write.
fn host_frames_ahead(total: usize, largest: usize) -> usize {
    largest.min(total / 2).min(FRAMES_AHEAD)
}

/// Copies cached pages to slower tiers. A device or disk that fails costs only cached pages: the
/// next pass or session that needs it reports the error.
pub(crate) fn demote(residency: &mut SessionMemory<'_>, policy: &SpillPolicy, now: Instant) {
    let pager = &mut *residency.pager;
    let host = pager.pages().host().total();
    if host == 0 {
        return;
    }
    // The next session may take all frames of its pages in one pass.
    let frames = policy.largest().min(FRAMES_AHEAD);
    let mut moved = pager.copy_out_cached(frames, policy.margin(), COPIES_PER_PASS);
    if policy.may_spill_cached(now) {
        let frames = policy.margin() + host_frames_ahead(host, policy.largest());
        moved = moved.and(pager.spill_cached(frames, PAGES_TO_DISK));
    }
    if moved.is_err() {
        pager.drain();
        pager.clear_cache();
    }
}
