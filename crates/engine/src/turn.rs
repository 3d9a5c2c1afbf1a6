//! Before a pass: who runs in it, and whose pages make room for them.

use std::{cmp::Reverse, collections::BTreeSet, time::Instant};

use crate::{
    Engine, EngineError, Finish, SessionId,
    schedule::{Account, Ready, admits, decide},
    session::{Session, State},
};

type Result<T> = std::result::Result<T, EngineError>;

impl Engine {
    /// Lets sessions hold pages that wait for it, in order of their class and arrival, as
    /// long as all that hold some can come to their end.
    pub(crate) fn admit(&mut self) {
        let held = |sessions: &[&Session]| {
            let most = || sessions.iter().map(|session| session.pages_most);
            (most().sum(), most().max().unwrap_or(0))
        };
        let waiting = |session: &&Session| session.state == State::Ready && !session.admitted;
        let mut queue: Vec<_> = self.sessions.values().filter(waiting).collect();
        queue.sort_by_key(|session| (session.account.class, session.id));
        let queue: Vec<SessionId> = queue.into_iter().map(|session| session.id).collect();
        let (device, host) = {
            let pages = self.pager.pages();
            (pages.device.total(), pages.host.total())
        };
        for id in queue {
            let admitted: Vec<&Session> = self.sessions.values().filter(|s| s.admitted).collect();
            let (sum, largest) = held(&admitted);
            if !admits(sum, largest, self.sessions[&id].pages_most, device, host) {
                // Nobody overtakes: a large one would never get in.
                return;
            }
            self.session(id).admitted = true;
        }
    }

    /// Decides who runs next and sees to it that their pages are there. Says who.
    pub(crate) fn make_ready(&mut self) -> Result<BTreeSet<SessionId>> {
        let rows = self.blueprint.settings.rows;
        let ready: Vec<(SessionId, Ready)> = self
            .sessions
            .values()
            .filter(|session| session.state == State::Ready && session.admitted)
            .map(|session| (session.id, as_ready(session, rows)))
            .collect();
        let idle = self.idle();
        let decision = {
            let pages = self.pager.pages();
            let ready: Vec<Ready> = ready.iter().map(|(_, ready)| *ready).collect();
            let here: Vec<usize> = idle.iter().map(|(_, here)| *here).collect();
            let (free, elsewhere) = (pages.device.free(), pages.host.free());
            decide(
                &ready,
                &here,
                free,
                elsewhere,
                self.blueprint.settings.sessions,
            )
        };
        let of_ready = decision.ready_away.iter().map(|&(i, n)| (ready[i].0, n));
        let of_idle = decision.idle_away.iter().map(|&(i, n)| (idle[i].0, n));
        let away: Vec<(SessionId, usize)> = of_ready.chain(of_idle).collect();
        for (id, count) in away {
            self.with_pages(id, |pager, session| {
                pager.send_away(&mut session.pages, count)
            })?;
        }
        let run: BTreeSet<SessionId> = decision.run.iter().map(|&i| ready[i].0).collect();
        for &id in &run {
            self.with_pages(id, |pager, session| {
                let tokens = session.after_next(rows);
                let arriving = pager.bring_back(&mut session.pages)?;
                for event in session.arriving.take().iter().chain(&arriving) {
                    pager.compute_after(event)?;
                }
                pager.grow(&mut session.pages, tokens)
            })?;
            self.session(id).account.ran();
        }
        Ok(run)
    }

    /// Brings back whoever is expected by then, soonest first, while there is free room.
    pub(crate) fn bring_expected(&mut self, by: Instant) -> Result<()> {
        let mut expected: Vec<(Instant, SessionId)> = Vec::new();
        for session in self.sessions.values() {
            if let State::Waiting { expected: Some(at) } = session.state
                && at <= by
                && session.pages.away() > 0
            {
                expected.push((at, session.id));
            }
        }
        expected.sort_unstable();
        for (_, id) in expected {
            if self.sessions[&id].pages.away() > self.pager.pages().device.free() {
                return Ok(());
            }
            self.with_pages(id, |pager, session| {
                session.arriving = pager.bring_back(&mut session.pages)?;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Sessions that wait and their pages here, those needed last first.
    fn idle(&self) -> Vec<(SessionId, usize)> {
        let mut idle: Vec<_> = self
            .sessions
            .values()
            .filter_map(|session| match session.state {
                State::Waiting { expected } => Some((expected, session)),
                _ => None,
            })
            .collect();
        // Who does not say when it comes back is taken to come back last.
        idle.sort_by_key(|(expected, _)| (expected.is_some(), Reverse(*expected)));
        let here = |session: &Session| session.pages.len() - session.pages.away();
        idle.into_iter()
            .map(|(_, session)| (session.id, here(session)))
            .collect()
    }

    /// Moves a session's pages. Where that fails its keys and values are lost, and it is
    /// over.
    pub(crate) fn with_pages(
        &mut self,
        id: SessionId,
        work: impl FnOnce(&mut crate::pager::Pager, &mut Session) -> Result<()>,
    ) -> Result<()> {
        let session = self.sessions.get_mut(&id).expect("an open session");
        let done = work(&mut self.pager, session);
        if done.is_err() {
            session.state = State::Done(Finish::Failed);
            session.admitted = false;
            self.pager.release(&mut session.pages);
        }
        done
    }

    /// What sessions that could run have paid.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = Account> {
        let ready = |session: &&Session| session.state == State::Ready;
        self.sessions.values().filter(ready).map(|s| s.account)
    }

    fn session(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("an open session")
    }
}

fn as_ready(session: &Session, rows: usize) -> Ready {
    let (all, away) = (session.pages.len(), session.pages.away());
    Ready {
        account: session.account,
        here: all - away,
        away,
        missing: session.pages.missing(session.after_next(rows)),
    }
}
