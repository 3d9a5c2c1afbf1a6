//! Spilling: pages between host memory and disk, and what happens when the disk fails.

use std::time::{Duration, Instant};

use djinn_kv::{DiskDirection, PageTable, Pager, Pages};
use djinn_types::SessionId;

use super::{
    commitment::PageRoom,
    disk_work::disk_work,
    waiting::{expected, idle_tables},
};
use crate::{
    error::EngineError,
    session::{Session, output::Output, residency::SessionMemory},
    settings::Settings,
};

/// Time after which a disk that refused a page is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Room for pages outside the device, and the state of the disk.
pub(crate) struct SpillPolicy {
    /// Room for pages if the disk accepts them.
    room: PageRoom,
    /// Host frames that only pages from disk take; 0 without a disk.
    reserve: usize,
    /// Host frames to keep free: the reserve, and room for the pages of the largest session that
    /// can be on the device.
    margin: usize,
    /// Maximum number of pages of a session.
    largest: usize,
    /// Error with which the disk refused a page; `None` while the disk accepts pages.
    failure: Option<String>,
    /// Time of the last failure.
    failed_at: Instant,
    /// Time at which the disk last refused a page that only the cache held.
    cache_failed_at: Option<Instant>,
    /// Failure after which the disk was tried once more.
    last_failure: Option<String>,
    /// Number of device frames after the model returns to the device; `None` while it is there.
    pub frames_on_return: Option<usize>,
}

impl SpillPolicy {
    /// Creates the policy for these settings.
    pub fn new(settings: &Settings, pager: &Pager) -> Self {
        let (reserve, margin) = match pager.has_disk() {
            false => (0, 0),
            true => {
                let reserve = PageRoom::host_reserve(settings);
                (reserve, reserve + PageRoom::most_at_once(settings))
            }
        };
        SpillPolicy {
            room: PageRoom::new(settings, 0),
            reserve,
            margin,
            largest: settings.table_pages(),
            failure: None,
            failed_at: Instant::now(),
            cache_failed_at: None,
            last_failure: None,
            frames_on_return: None,
        }
    }

    /// Number of host frames to keep free.
    pub fn margin(&self) -> usize {
        self.margin
    }

    /// Maximum number of pages of a session.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Whether the disk may take pages that only the cache holds.
    pub fn may_spill_cached(&self, now: Instant) -> bool {
        let is_paused = |at: Instant| now.saturating_duration_since(at) < RETRY;
        self.failure.is_none() && !self.cache_failed_at.is_some_and(is_paused)
    }

    /// Number of pages that can leave the device now. Cached pages and host copies of device pages
    /// yield to pages that have no other copy.
    pub fn evictable(&self, pages: &Pages) -> usize {
        pages.host_room().saturating_sub(self.reserve)
    }

    /// Room for pages in all tiers.
    pub fn room(&self, pages: &Pages) -> PageRoom {
        PageRoom {
            // Weights may have taken frames.
            device: self.frames_on_return.unwrap_or(pages.device().total()),
            elsewhere: self.capacity(pages),
            ..self.room
        }
    }

    /// Number of pages that can be outside the device at all.
    fn capacity(&self, pages: &Pages) -> usize {
        let disk = match self.failure {
            None => pages.disk().total(),
            // A disk that accepts no more pages still holds those it has.
            Some(_) => pages.disk().total() - pages.disk_free(),
        };
        pages.host().total() - self.reserve + disk
    }

    /// Tries a disk that refused a page again after a while: it may have room by now. Queued sessions wait
    /// for its room, so no other event would try it.
    pub fn retry_disk(&mut self, now: Instant) {
        if now.saturating_duration_since(self.failed_at) >= RETRY {
            self.failure = None;
        }
    }

    /// Starts reading and writing the pages that sessions will need next. The sessions in `running`
    /// are the members of the next pass. Returns the ends of sessions whose pages could not be
    /// moved.
    pub fn start_transfers(
        &self,
        residency: &mut SessionMemory<'_>,
        running: &[(SessionId, usize)],
        now: Instant,
    ) -> Vec<Output> {
        if !residency.pager.has_disk() {
            return Vec::new();
        }
        let sessions = &*residency.sessions;
        let mut ready: Vec<&Session> = sessions.iter().filter(|s| s.is_ready()).collect();
        ready.sort_by_key(|s| (s.fair_share.rank(), s.id));
        let mut wanted: Vec<&PageTable> = ready.iter().map(|s| &s.pages).collect();
        let soon = expected(sessions, now);
        wanted.extend(soon.iter().map(|&id| &sessions.known(id).pages));
        let idle = idle_tables(sessions, residency.pager);
        let running = running.iter().map(|&(id, _)| &sessions.known(id).pages);
        let running: Vec<&PageTable> = running.collect();
        let pages = residency.pager.pages();
        let work = disk_work(&wanted, &idle, &running, pages, self.margin);
        let mut lost = Vec::new();
        for page in work.fetch {
            if let Err(error) = residency.pager.fetch(page) {
                lost.extend(residency.fail_holders(&[page], &error.into()));
            }
        }
        if self.failure.is_none() {
            for page in work.spill {
                if let Err(error) = residency.pager.spill(page) {
                    lost.extend(residency.fail_holders(&[page], &error.into()));
                }
            }
        }
        lost
    }

    /// Takes in pages whose transfer from or to disk has ended; waits for one if `wait` is set.
    /// A page that could not be written stays in host memory. A page that could not be read ends
    /// its holders, whose outputs are returned.
    pub fn finish_transfers(
        &mut self,
        residency: &mut SessionMemory<'_>,
        wait: bool,
    ) -> Vec<Output> {
        let mut lost = Vec::new();
        for failed in residency.pager.finish_disk_transfers(wait) {
            let error = EngineError::Spill(failed.error);
            match failed.direction {
                DiskDirection::Spill => {
                    // A failure that concerns only the cache changes nothing for sessions.
                    if residency.pager.pages().is_held(failed.page) {
                        self.failure = Some(error.to_string());
                        self.failed_at = Instant::now();
                    } else {
                        self.cache_failed_at = Some(Instant::now());
                    }
                }
                DiskDirection::Fetch => lost.extend(residency.lose_page(failed.page, &error)),
            }
        }
        lost
    }

    /// Resolves a deadlock: a session is ready, none can run, and no page is in transit, because
    /// the disk does not accept pages. Tries the disk once more; then takes the pages of the
    /// session that arrived last, so that the others can run.
    pub fn resolve_deadlock(&mut self, residency: &mut SessionMemory<'_>) -> Option<Output> {
        if let Some(failure) = self.failure.take() {
            let was_retried = self.last_failure.replace(failure).is_some();
            if !was_retried {
                return None;
            }
        }
        let id = newest_holder(residency)?;
        let reason = self.last_failure.take();
        let reason = reason.unwrap_or_else(|| "all pages are in use".to_owned());
        residency.fail(id, &EngineError::NoRoom(reason))
    }
}

/// Returns the session with pages that arrived last: a ready one if several are ready, else one
/// that waits. Ending the only ready session would help no other session.
fn newest_holder(residency: &SessionMemory<'_>) -> Option<SessionId> {
    let sessions = &*residency.sessions;
    let holds = |s: &&Session| s.state.is_admitted() && !s.pages.is_empty();
    let ready = sessions.iter().filter(|s| s.is_ready()).count();
    let goes = |s: &&Session| s.is_ready() == (ready > 1);
    let last = |s: &&Session| (s.fair_share.virtual_time, s.id);
    let all = || sessions.iter().filter(holds);
    let newest = all().filter(goes).max_by_key(last);
    Some(newest.or_else(|| all().max_by_key(last))?.id)
}
