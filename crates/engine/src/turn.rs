//! Before a pass: who runs in it, and whose pages make room for them.

use std::{cmp::Reverse, time::Instant};

use crate::{
    Engine, EngineError, Finish, Output, SessionId,
    life::AHEAD,
    pager::Pager,
    schedule::{Limits, Ready, admitted, decide},
    session::{Session, State},
    settle::over,
};

type Result<T> = std::result::Result<T, EngineError>;

/// Who runs next.
#[derive(Default)]
pub(crate) struct Turn {
    /// In order, each with how many of its tokens.
    pub run: Vec<(SessionId, usize)>,
    /// Whose pages could not be moved: they are over.
    pub lost: Vec<SessionId>,
}

impl Engine {
    /// Whether a session could run now: it may hold pages already, or might.
    pub(crate) fn can_run(&self) -> bool {
        let ready = |session: &Session| session.state == State::Ready && session.admitted;
        self.sessions.values().any(ready) || self.next_admitted() > 0
    }

    /// Sessions that wait to hold pages, in order of where they came in.
    fn queue(&self) -> Vec<&Session> {
        let waiting = |session: &&Session| session.state == State::Ready && !session.admitted;
        let mut queue: Vec<&Session> = self.sessions.values().filter(waiting).collect();
        queue.sort_by_key(|session| (session.account.place, session.id));
        queue
    }

    /// How many of those may hold pages now.
    fn next_admitted(&self) -> usize {
        let held = self.sessions.values().filter(|session| session.admitted);
        let pages = self.pager.pages();
        admitted(
            held.map(|session| session.pages_most),
            self.queue().iter().map(|session| session.pages_most),
            pages.device.total(),
            pages.host.total(),
        )
    }

    /// Lets sessions hold pages that wait for it, as long as all that hold some can come to
    /// their end.
    pub(crate) fn admit(&mut self) {
        let next = self.queue();
        let next = next.iter().take(self.next_admitted());
        let next: Vec<SessionId> = next.map(|session| session.id).collect();
        let clock = self.clock;
        for id in next {
            let session = self.session(id);
            session.admitted = true;
            session.account = session.account.back(clock);
        }
    }

    /// Decides who runs next and sees to it that their pages are there.
    pub(crate) fn make_ready(&mut self) -> Turn {
        let ready: Vec<&Session> = self
            .sessions
            .values()
            .filter(|session| session.state == State::Ready && session.admitted)
            .collect();
        let idle = self.idle();
        let settings = &self.blueprint.settings;
        let limits = Limits {
            sessions: settings.sessions,
            rows: settings.rows,
            page_tokens: settings.page_tokens,
        };
        let pages = self.pager.pages();
        // Copies make way for pages that are nowhere else.
        let copies: usize = self.sessions.values().map(|s| s.pages.copies()).sum();
        let decision = decide(
            &ready.iter().copied().map(as_ready).collect::<Vec<_>>(),
            &idle.iter().map(|(_, here)| *here).collect::<Vec<_>>(),
            pages.device.free(),
            pages.host.free() + copies,
            limits,
        );
        let of_ready = decision.ready_away.iter().map(|&(i, n)| (ready[i].id, n));
        let of_idle = decision.idle_away.iter().map(|&(i, n)| (idle[i].0, n));
        let away: Vec<(SessionId, usize)> = of_ready.chain(of_idle).collect();
        let run = decision.run.iter().map(|&(i, rows)| (ready[i].id, rows));
        let run: Vec<(SessionId, usize)> = run.collect();
        self.clock = self.clock.max(decision.clock);
        let mut turn = Turn::default();
        for (id, count) in away {
            let sent = self.send_away(id, count);
            turn.lost.extend(sent.is_err().then_some(id));
        }
        for (id, rows) in run {
            let there = self.with_pages(id, |pager, session| {
                let arriving = pager.bring_back(&mut session.pages)?;
                for event in session.arriving.take().iter().chain(&arriving) {
                    pager.compute_after(event)?;
                }
                let tokens = session.computed..session.computed + rows;
                pager.grow(&mut session.pages, tokens)
            });
            match there {
                Ok(()) => {
                    self.session(id).account.ran();
                    turn.run.push((id, rows));
                }
                Err(_) => turn.lost.push(id),
            }
        }
        turn
    }

    /// Brings pages of sessions back that are expected within a moment, soonest first, while
    /// there is room that nobody uses. Passes do it by themselves; this is for when none
    /// runs. Tells of those whose pages could not be moved: they are over.
    pub fn bring_ahead(&mut self, now: Instant) -> Vec<Output> {
        let by = now + AHEAD;
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
        let mut lost = Vec::new();
        for (_, id) in expected {
            if self.sessions[&id].pages.away() > self.pager.pages().device.free() {
                break;
            }
            let back = self.with_pages(id, |pager, session| {
                session.arriving = pager.bring_back(&mut session.pages)?;
                Ok(())
            });
            lost.extend(back.is_err().then(|| over(id, Finish::Failed)));
        }
        lost
    }

    /// Lets up to so many pages of a session go to the host, where copies that others can do
    /// without make room for them.
    pub(crate) fn send_away(&mut self, id: SessionId, count: usize) -> Result<()> {
        let pages = &self.sessions[&id].pages;
        let copied = pages.copies().min(count);
        let here = (pages.len() - pages.away()).min(count);
        let mut wanted = (here - copied).saturating_sub(self.pager.pages().host.free());
        for session in self.sessions.values_mut() {
            if wanted == 0 {
                break;
            }
            if session.id != id {
                wanted -= self.pager.drop_copies(&mut session.pages, wanted);
            }
        }
        self.with_pages(id, |pager, session| {
            pager.send_away(&mut session.pages, count)
        })
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
    /// over; others lose nothing.
    pub(crate) fn with_pages(
        &mut self,
        id: SessionId,
        work: impl FnOnce(&mut Pager, &mut Session) -> Result<()>,
    ) -> Result<()> {
        let session = self.sessions.get_mut(&id).expect("an open session");
        let done = work(&mut self.pager, session);
        if done.is_err() {
            self.pager.settle();
            self.end_session(id, Finish::Failed);
        }
        done
    }

    /// A session is over and gives its pages back.
    pub(crate) fn end_session(&mut self, id: SessionId, finish: Finish) {
        let session = self.sessions.get_mut(&id).expect("an open session");
        session.state = State::Done(finish);
        (session.admitted, session.arriving) = (false, None);
        self.pager.release(&mut session.pages);
    }

    fn session(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("an open session")
    }
}

fn as_ready(session: &Session) -> Ready {
    let away = session.pages.away();
    Ready {
        account: session.account,
        here: session.pages.len() - away,
        away,
        computed: session.computed,
        pending: session.next_run(),
    }
}
