//! Pages of sessions that wait: what the host has of them too, and whose place others take.

use std::{cmp::Reverse, collections::VecDeque};

use djinn_kv::{KvError, PageId, PageTable};

use crate::{Engine, SessionId, session::Session, session::state::State};

impl Engine {
    /// The pages of sessions that do not run now, those needed last first.
    pub(crate) fn idle(&self) -> Vec<&PageTable> {
        let mut idle: Vec<_> = self
            .sessions
            .values()
            .filter_map(|session| Some((session.state.awaits()?, session)))
            .collect();
        // Who does not say when it comes back is taken to come back last; of those the oldest,
        // not who was away longest: thoughts end, so that one is about to come back. Whose copies
        // are only just being made comes after the others: who takes its place would wait.
        idle.sort_by_cached_key(|(expected, s)| {
            let is_leaving = self.pager.is_copying_out(&s.pages);
            (is_leaving, expected.is_some(), Reverse(*expected))
        });
        idle.into_iter()
            .map(|(_, session)| &session.pages)
            .collect()
    }

    /// By page: whether somebody holds it who is about to run, or one of these.
    fn in_use(&self, these: &[SessionId]) -> Vec<bool> {
        let runs = |s: &&Session| matches!(s.state, State::Ready | State::Running);
        let these = these.iter().map(|id| &self.sessions[id]);
        let mut used = vec![false; self.pager.pages().index_bound()];
        for session in self.sessions.values().filter(runs).chain(these) {
            let pages = session.pages.pages().iter();
            pages.for_each(|page| used[page.index()] = true);
        }
        used
    }

    /// The pages of a session that waits, the last first, as far as they are on the device and
    /// nobody holds them who is about to run.
    fn unused_here(&self, id: SessionId) -> Vec<PageId> {
        let (used, pages) = (self.in_use(&[]), self.pager.pages());
        let is_here = |&page: &PageId| !used[page.index()] && pages.device_frame(page).is_some();
        let own = self.sessions[&id].pages.pages().iter().rev().copied();
        own.filter(is_here).collect()
    }

    /// Lets all pages of a session that waits go to the host, as far as there is room.
    pub(crate) fn send_away(&mut self, id: SessionId) {
        let own = self.unused_here(id);
        self.send_as_many(own);
    }

    /// Lets as many of these pages go as there is room for on the host.
    fn send_as_many(&mut self, mut pages: Vec<PageId>) {
        // Each takes a place there for good, also what the host has already; that goes first.
        pages.sort_by_key(|&page| self.pager.pages().is_only_on_device(page));
        pages.truncate(self.room_elsewhere());
        self.give_up(&pages);
    }

    /// Has the host keep the pages of a session that waits: they stay where they are while
    /// nobody needs that, and make way at once for who does. Where the host is short of room
    /// nothing should be in two places, and they go.
    pub(crate) fn copy_out(&mut self, id: SessionId) {
        let (own, pages) = (self.unused_here(id), self.pager.pages());
        let new = own
            .iter()
            .filter(|&&page| pages.is_only_on_device(page))
            .count();
        if new + self.host_margin() > pages.host().free() {
            return self.send_as_many(own);
        }
        let copied = self.pager.copy_out(&own);
        self.lose_unless(copied, &own);
    }

    /// Pages that could leave the device without being copied, of sessions that wait and are
    /// not among these: theirs first who are needed last.
    pub(crate) fn spare(&self, these: &[SessionId]) -> VecDeque<PageId> {
        let mut used = self.in_use(these);
        let mut spare = VecDeque::new();
        for &page in self.idle().into_iter().flat_map(|t| t.pages().iter().rev()) {
            let is_used = std::mem::replace(&mut used[page.index()], true);
            if !is_used && self.pager.pages().is_on_device_and_host(page) {
                spare.push_back(page);
            }
        }
        spare
    }

    /// Lets pages go that the host has too, or has room for.
    pub(crate) fn give_up(&mut self, pages: &[PageId]) {
        let sent = self.pager.evict(pages);
        self.lose_unless(sent, pages);
    }

    /// Where pages could not be moved, those that hold them are over, which the next pass
    /// tells.
    fn lose_unless(&mut self, moved: Result<(), KvError>, pages: &[PageId]) {
        if let Err(error) = moved {
            let lost = self.lose(pages, &error.into());
            self.untold.extend(lost);
        }
    }
}
