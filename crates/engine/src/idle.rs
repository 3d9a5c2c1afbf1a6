//! Pages of sessions that wait: what the host has of them too, and whose place others take.

use std::cmp::Reverse;

use djinn_memory::{PageId, PageTable};

use crate::{Engine, EngineError, SessionId, state::State};

impl Engine {
    /// The pages of sessions that do not run now, those needed last first.
    pub(crate) fn idle(&self) -> Vec<&PageTable> {
        let mut idle: Vec<_> = self
            .sessions
            .values()
            .filter_map(|session| Some((session.state.awaits()?, session)))
            .collect();
        // Who does not say when it comes back is taken to come back last.
        idle.sort_by_key(|(expected, _)| (expected.is_some(), Reverse(*expected)));
        idle.into_iter()
            .map(|(_, session)| &session.pages)
            .collect()
    }

    /// By page: whether somebody holds it who is about to run, or one of these.
    fn in_use(&self, these: &[SessionId]) -> Vec<bool> {
        let mut used = vec![false; self.pager.pages().numbers()];
        for session in self.sessions.values() {
            let runs = matches!(session.state, State::Ready | State::Running);
            if runs || these.contains(&session.id) {
                let pages = session.pages.pages().iter();
                pages.for_each(|page| used[page.number()] = true);
            }
        }
        used
    }

    /// The pages of a session that waits, the last first, but for those that somebody holds
    /// who is about to run.
    fn unused_pages(&self, id: SessionId) -> Vec<PageId> {
        let used = self.in_use(&[]);
        let own = self.sessions[&id].pages.pages().iter().rev();
        own.copied().filter(|page| !used[page.number()]).collect()
    }

    /// Lets all pages of a session that waits go to the host, as far as there is room.
    pub(crate) fn send_away(&mut self, id: SessionId) {
        let pages = self.pager.pages();
        let mut room = self.room_elsewhere();
        let mut away = self.unused_pages(id);
        away.retain(|&page| {
            let is_new = pages.is_here_alone(page);
            let goes = !is_new || room > 0;
            room -= usize::from(is_new && goes);
            goes
        });
        let sent = self.pager.send_away(&away);
        self.lose_unless(sent, &away);
    }

    /// Has the host keep the pages of a session that waits, as far as there is room: they stay
    /// where they are while nobody needs that, and make way at once for who does.
    pub(crate) fn copy_out(&mut self, id: SessionId) {
        let mut pages = self.unused_pages(id);
        let all = self.pager.pages();
        pages.retain(|&page| all.is_here_alone(page));
        pages.truncate(all.host().free().saturating_sub(self.reserve()));
        let copied = self.pager.copy_out(&pages);
        self.lose_unless(copied, &pages);
    }

    /// Makes room for so many pages on the device, of sessions that wait and are not among
    /// these: what the host has of them too, theirs first who are needed last.
    pub(crate) fn make_way(&mut self, wanted: usize, these: &[SessionId]) {
        let pages = self.pager.pages();
        let mut short = wanted.saturating_sub(pages.device().free());
        let mut used = self.in_use(these);
        let mut away = Vec::new();
        for &page in self.idle().into_iter().flat_map(|t| t.pages().iter().rev()) {
            if short > 0 && pages.is_here_and_there(page) && !used[page.number()] {
                used[page.number()] = true;
                short -= 1;
                away.push(page);
            }
        }
        if short == 0 {
            let sent = self.pager.send_away(&away);
            self.lose_unless(sent, &away);
        }
    }

    /// Where pages could not be moved, those that hold them are over, which the next pass
    /// tells.
    fn lose_unless(&mut self, moved: Result<(), EngineError>, pages: &[PageId]) {
        if let Err(error) = moved {
            let lost = self.lose(pages, &error);
            self.untold.extend(lost);
        }
    }
}
