//! Sessions together with their KV pages: ending sessions, and faults that take their pages.

use djinn_kv::{PageId, Pager};
use djinn_types::SessionId;

use super::{
    Session,
    failure::SessionFailure,
    output::{Finish, Output},
    state::Transition,
    table::SessionTable,
};
use crate::error::EngineError;

/// Borrowed view of the sessions and their KV pages.
pub(crate) struct SessionMemory<'e> {
    pub sessions: &'e mut SessionTable,
    pub pager: &'e mut Pager,
    /// Members of the current pass, which are not in the table while it runs.
    pub running: &'e [Session],
    /// Outputs that the next step returns.
    pub deferred: &'e mut Vec<Output>,
}

impl SessionMemory<'_> {
    /// Ends a session and releases its pages, which the prefix cache may keep. A session that has
    /// ended keeps its first reason.
    pub fn end(
        &mut self,
        id: SessionId,
        finish: Finish,
        failure: Option<SessionFailure>,
    ) -> Output {
        let session = self.sessions.known_mut(id);
        let _ = session.apply(Transition::End(finish, failure.clone()));
        self.pager.release(&mut session.pages);
        Output::finished(id, finish, failure)
    }

    /// Takes the pages of a session because of an error. A kept session waits, and computes its
    /// tokens again when it continues; another session ends. Returns the output that reports
    /// the failure: none for a kept session that waits or is paused, because no turn failed.
    pub fn fail(&mut self, id: SessionId, error: &EngineError) -> Option<Output> {
        let session = self.sessions.known_mut(id);
        let is_active = session.is_active();
        if !session.keep || session.interrupt().is_err() {
            self.pager.discard(&mut session.pages);
            return Some(self.end(id, Finish::Failed, Some(error.into())));
        }
        self.pager.discard(&mut session.pages);
        let failure = Some(error.into());
        is_active.then(|| Output::finished(id, Finish::Failed, failure))
    }

    /// Fails all sessions that hold one of these pages, whose contents are lost. The prefix cache
    /// forgets the pages.
    pub fn fail_holders(&mut self, pages: &[PageId], error: &EngineError) -> Vec<Output> {
        self.pager.drain();
        self.pager.forget(pages);
        let holds = |session: &Session| session.pages.pages().iter().any(|p| pages.contains(p));
        let lost = self.sessions.ids(holds).into_iter();
        lost.filter_map(|id| self.fail(id, error)).collect()
    }

    /// Takes in that a page could not be read. A session that has run nothing since it took the page
    /// from the prefix cache computes it; other sessions that hold the page fail.
    pub fn lose_page(&mut self, page: PageId, error: &EngineError) -> Vec<Output> {
        self.pager.forget(&[page]);
        for session in self.sessions.iter_mut() {
            if let Some(before) = session.pages_before_lost(page) {
                self.pager.truncate(&mut session.pages, before);
                session.return_to(before);
            }
        }
        self.fail_holders(&[page], error)
    }

    /// Fails the holders of pages that could not be moved; the next step reports their
    /// failures.
    pub fn defer_failure(&mut self, moved: Result<(), EngineError>, pages: &[PageId]) {
        if let Err(error) = moved {
            let lost = self.fail_holders(pages, &error);
            self.deferred.extend(lost);
        }
    }

    /// Moves pages of a session. If that fails, its keys and values are lost: the session fails,
    /// as do all sessions that share its pages. Returns the output of the session, if there is
    /// one; the next step reports the failures of the other sessions.
    pub fn move_pages<T>(
        &mut self,
        id: SessionId,
        work: impl FnOnce(&mut Pager, &mut Session) -> Result<T, EngineError>,
    ) -> Result<T, Option<Box<Output>>> {
        let session = self.sessions.known_mut(id);
        work(self.pager, session).map_err(|error| {
            let pages = self.sessions.known(id).pages.pages().to_vec();
            let mut failed = self.fail_holders(&pages, &error);
            let own = failed.iter().position(|output| output.session == id);
            let own = own.map(|at| Box::new(failed.swap_remove(at)));
            self.deferred.extend(failed);
            own
        })
    }
}
