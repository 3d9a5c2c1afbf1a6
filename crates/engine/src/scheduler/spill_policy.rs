//! Between host memory and disk: what goes there while passes run, and what comes back.

use std::time::Instant;

use djinn_kv::{DiskDirection, PageTable};

use crate::{
    Engine, EngineError, Output, SessionId,
    scheduler::{disk_work, reserve},
    session::Session,
    session::lifecycle::AHEAD,
};

impl Engine {
    /// Frames of the host that only pages from disk take.
    pub(crate) fn reserve(&self) -> usize {
        match self.pager.has_disk() {
            false => 0,
            true => {
                let settings = &self.blueprint.settings;
                reserve(settings.host_pages, settings.table_pages())
            }
        }
    }

    /// Frames of the host that are kept free where there is a disk, since what leaves the device
    /// should seldom wait for that: the reserve, and as many as the largest session may take.
    pub(crate) fn host_margin(&self) -> usize {
        match self.pager.has_disk() {
            false => 0,
            true => self.reserve() + self.blueprint.settings.table_pages(),
        }
    }

    /// Pages that can leave the device now: copies make way for those that are nowhere else.
    pub(crate) fn room_elsewhere(&self) -> usize {
        let pages = self.pager.pages();
        let room = pages.host().free() + pages.host_copies();
        room.saturating_sub(self.reserve())
    }

    /// Pages the disk holds or can: once it would take no more, those that are there.
    pub(crate) fn disk_pages(&self) -> usize {
        let disk = self.pager.pages().disk();
        match self.disk_failure {
            None => disk.total(),
            Some(_) => disk.total() - disk.free(),
        }
    }

    /// Has pages written and read as sessions will need them.
    pub(crate) fn work_on_disk(&mut self, now: Instant) -> Vec<Output> {
        if !self.pager.has_disk() {
            return Vec::new();
        }
        let mut ready: Vec<&Session> = self.sessions.values().filter(|s| s.is_ready()).collect();
        ready.sort_by_key(|s| (s.account.rank(), s.id));
        let mut wanted: Vec<&PageTable> = ready.iter().map(|s| &s.pages).collect();
        wanted.extend(self.expected(now).iter().map(|id| &self.sessions[id].pages));
        let pages = self.pager.pages();
        let margin = self.host_margin();
        let work = disk_work(&wanted, &self.idle(), pages, margin);
        let mut lost = Vec::new();
        for page in work.fetch {
            if let Err(error) = self.pager.fetch(page) {
                lost.extend(self.lose(&[page], &error.into()));
            }
        }
        if self.disk_failure.is_none() {
            for page in work.spill {
                if let Err(error) = self.pager.spill(page) {
                    lost.extend(self.lose(&[page], &error.into()));
                }
            }
        }
        lost
    }

    /// Takes in what arrived on disk or from there; where nothing has yet, waits if told to.
    /// What could not be written stays where it was. Who has pages that could not be read is
    /// over.
    pub(crate) fn take_from_disk(&mut self, wait: bool) -> Vec<Output> {
        let mut lost = Vec::new();
        for failed in self.pager.finish_disk_transfers(wait) {
            let error = EngineError::Spill(failed.error);
            match failed.direction {
                DiskDirection::Spill => self.disk_failure = Some(error.to_string()),
                DiskDirection::Fetch => lost.extend(self.lose(&[failed.page], &error)),
            }
        }
        lost
    }

    /// Nobody can run though somebody is ready, and nothing is on its way: the disk does not
    /// take pages that it was to. It is asked once more; then whoever came in last is over,
    /// so that the others go on.
    pub(crate) fn give_way(&mut self) -> Option<Output> {
        if let Some(failure) = self.disk_failure.take() {
            let was_asked = self.last_failure.replace(failure).is_some();
            if !was_asked {
                return None;
            }
        }
        let holds = |s: &&Session| s.admitted && !s.pages.is_empty();
        let ready = self.sessions.values().filter(|s| s.is_ready()).count();
        // One that is alone would only make room for itself.
        let goes = |s: &&Session| s.is_ready() == (ready > 1);
        let last = |s: &&Session| (s.account.place, s.id);
        let all = || self.sessions.values().filter(holds);
        let last = all()
            .filter(goes)
            .max_by_key(last)
            .or(all().max_by_key(last))?;
        let id: SessionId = last.id;
        let why = self.last_failure.take();
        let why = why.unwrap_or_else(|| "what is there is all in use".to_owned());
        Some(self.fail(id, &EngineError::NoRoom(why)))
    }

    /// Who waits and is expected back within a moment, the soonest first.
    pub(crate) fn expected(&self, now: Instant) -> Vec<SessionId> {
        let by = now + AHEAD;
        let mut expected: Vec<(Instant, SessionId)> = Vec::new();
        for session in self.sessions.values() {
            if let Some(Some(at)) = session.state.awaits()
                && at <= by
            {
                expected.push((at, session.id));
            }
        }
        expected.sort_unstable();
        expected.into_iter().map(|(_, id)| id).collect()
    }
}
