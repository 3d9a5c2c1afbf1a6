//! What time brings: deadlines, leases that run out, sessions that are expected back.

use std::time::{Duration, Instant};

use djinn_kv::{Granularity, PageId};

use crate::{
    Engine, EngineError, Finish, Output, SessionId,
    session::Session,
    session::output::over,
    session::state::{State, Step},
};

/// How long past its time a session is still expected.
const IDLE: Duration = Duration::from_secs(1);

impl Engine {
    /// Does what is due: ends sessions whose deadline has come or whose lease has run out,
    /// takes in pages from disk, brings pages of sessions back that are expected within a
    /// moment while there is room that nobody needs sooner, and no longer expects those that
    /// did not come.
    /// Passes do it by themselves; this is for when none runs. Tells of sessions that are
    /// over.
    pub fn tend(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = self.look_after(now);
        outputs.extend(self.work_on_disk(now));
        self.write_down(&mut outputs);
        outputs
    }

    /// The same, before it is written down.
    pub(crate) fn look_after(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = std::mem::take(&mut self.untold);
        // Who was closed meanwhile need not be told.
        outputs.retain(|output| self.sessions.contains_key(&output.session));
        outputs.extend(self.take_from_disk(false));
        outputs.extend(self.expire(now));
        outputs.extend(self.bring_ahead(now));
        self.give_late_ones_up(now);
        outputs
    }

    /// Ends sessions whose time is up.
    fn expire(&mut self, now: Instant) -> Vec<Output> {
        let ended = |session: &Session| match (session.state, session.deadline, session.lease) {
            (State::Done(_), ..) => None,
            (_, Some(deadline), _) if deadline <= now => Some((session.id, Finish::Deadline)),
            (state, _, Some(lease))
                if state.awaits().is_some()
                    && now.saturating_duration_since(session.used) >= lease =>
            {
                Some((session.id, Finish::Lease))
            }
            _ => None,
        };
        let ended: Vec<_> = self.sessions.values().filter_map(ended).collect();
        let end = |(id, finish): (SessionId, Finish)| {
            self.end_session(id, finish);
            over(id, finish)
        };
        ended.into_iter().map(end).collect()
    }

    /// The owner of a session still wants it.
    pub fn renew(&mut self, id: SessionId) -> Result<(), EngineError> {
        let session = self.sessions.get_mut(&id);
        session.ok_or(EngineError::NoSession(id))?.used = Instant::now();
        Ok(())
    }

    /// Brings pages of sessions back that are expected, soonest first, into room that is free
    /// or that only those hold who are needed later. Whoever is ready and lacks room comes first.
    fn bring_ahead(&mut self, now: Instant) -> Vec<Output> {
        let mut lost = Vec::new();
        let expected = self.expected(now);
        let mut spare = None;
        for &id in &expected {
            let (table, pages) = (&self.sessions[&id].pages, self.pager.pages());
            if table
                .pages()
                .iter()
                .any(|&page| pages.is_only_on_disk(page))
            {
                continue;
            }
            let short = pages
                .nonresident(table)
                .saturating_sub(pages.device().free());
            if short > 0 {
                if pages.host_copies() < short || self.is_short() {
                    break;
                }
                let spare = spare.get_or_insert_with(|| self.spare(&expected));
                if spare.len() < short {
                    break;
                }
                let gone: Vec<PageId> = spare.drain(..short).collect();
                self.give_up(&gone);
            }
            let back = self.with_pages(id, |pager, session| {
                pager.copy_in(session.pages.pages(), Granularity::WholePage)
            });
            lost.extend(back.err().map(|lost| *lost));
        }
        lost
    }

    /// Whether somebody is ready whose pages are not here.
    fn is_short(&self) -> bool {
        let pages = self.pager.pages();
        let lacks = |session: &Session| session.is_ready() && pages.nonresident(&session.pages) > 0;
        self.sessions.values().any(lacks)
    }

    /// Who was expected and has not come is needed last from now on.
    fn give_late_ones_up(&mut self, now: Instant) {
        let is_late = |session: &&Session| match session.state.awaits() {
            Some(Some(expected)) => now.saturating_duration_since(expected) >= IDLE,
            _ => false,
        };
        let late: Vec<SessionId> = self
            .sessions
            .values()
            .filter(is_late)
            .map(|s| s.id)
            .collect();
        for id in late {
            // One before it may have been lost, and this with it.
            if self.session(id).take(Step::Wait(None)).is_ok() {
                self.copy_out(id);
            }
        }
    }
}
