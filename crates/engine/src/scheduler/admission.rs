//! Before a pass: who runs in it, and whose pages make room for them.

use std::time::Instant;

use djinn_kv::{Granularity, KvError, PageId, Pager};

use crate::{
    Engine, EngineError, Output, SessionId,
    scheduler::{Limits, PageCommitment, Ready, admitted, decide},
    session::Session,
    session::state::State,
};

/// What a session is told whose pages are lost.
pub(crate) type Lost = Box<Output>;

/// How much longer than it would otherwise a pass may take for the sake of pages that it
/// waits for.
const PATIENCE: f64 = 1.2;

/// The part of the link that pages have beside weights: one in so many bytes.
const SHARE: u64 = 4;

/// Who runs next.
#[derive(Default)]
pub(crate) struct Turn {
    /// In order, each with how many of its tokens.
    pub run: Vec<(SessionId, usize)>,
    /// Of those whose pages could not be moved: they are over.
    pub lost: Vec<Output>,
}

impl Engine {
    /// Whether a session could run now: it may hold pages already, or might.
    pub(crate) fn can_run(&self) -> bool {
        self.sessions.values().any(Session::is_ready) || self.next_admitted() > 0
    }

    /// Sessions that wait to hold pages, in order of where they came in.
    fn queue(&self) -> Vec<&Session> {
        let waiting = |session: &&Session| session.state == State::Ready && !session.admitted;
        let mut queue: Vec<&Session> = self.sessions.values().filter(waiting).collect();
        queue.sort_by_key(|session| (session.account.place, session.id));
        queue
    }

    /// What those that hold pages may come to.
    pub(crate) fn promised(&self) -> PageCommitment {
        let pages = self.pager.pages();
        let held = PageCommitment {
            pages: pages.held(),
            largest: 0,
        };
        let admitted = self.sessions.values().filter(|session| session.admitted);
        admitted.fold(held, |all, session| {
            let copied = session.copied_pages(pages);
            all.and(session.pages_most + copied, session.more_pages(pages))
        })
    }

    /// How many of those that wait to hold pages may now.
    fn next_admitted(&self) -> usize {
        let queue = self.queue();
        if queue.is_empty() {
            return 0;
        }
        let most = queue.iter().map(|session| session.pages_most);
        let device = self.pager.pages().device().total();
        admitted(self.promised(), most, device, self.elsewhere())
    }

    /// Pages that can be somewhere else than on the device.
    pub(crate) fn elsewhere(&self) -> usize {
        let pages = self.pager.pages();
        pages.host().total() - self.reserve() + self.disk_pages()
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
    pub(crate) fn make_ready(&mut self, now: Instant) -> Turn {
        let ready: Vec<&Session> = self.sessions.values().filter(|s| s.is_ready()).collect();
        let settings = &self.blueprint.settings;
        let limits = Limits {
            sessions: settings.sessions,
            rows: settings.rows,
            lens: settings.probe_limits.lens_rows,
        };
        let as_ready = |session| as_ready(session, limits.lens);
        let decision = decide(
            &ready.iter().copied().map(as_ready).collect::<Vec<_>>(),
            &self.idle(),
            self.pager.pages(),
            self.room_elsewhere(),
            limits,
        );
        let run = decision.run.iter().map(|&(i, rows)| (ready[i].id, rows));
        let run: Vec<(SessionId, usize)> = run.collect();
        self.clock = self.clock.max(decision.clock);
        let mut turn = Turn::default();
        if let Err(error) = self.pager.evict(&decision.away) {
            turn.lost = self.lose(&decision.away, &error.into());
        }
        self.bring(run, now, &mut turn);
        turn
    }

    /// Brings the pages of those who run next. Whose are there by the time the pass comes to
    /// them runs in it, block after block as they arrive; who would hold up the others joins
    /// a later pass. Where all have to wait, the first runs.
    fn bring(&mut self, run: Vec<(SessionId, usize)>, now: Instant, turn: &mut Turn) {
        let mut later = Vec::new();
        for (id, rows) in run {
            let session = self.session(id);
            if !session.is_ready() {
                continue;
            }
            session.turn.get_or_insert(now);
            match self.with_pages(id, |pager, session| pager.is_resident(&session.pages)) {
                Ok(true) => self.take_in(id, rows, turn),
                Ok(false) => later.push((id, rows)),
                Err(lost) => turn.lost.push(*lost),
            }
        }
        let rows: usize = turn.run.iter().map(|(_, rows)| rows).sum();
        let (pass_s, mut coming_s) = (self.row_s * rows as f64, 0.0);
        let mut most = self.pages_of_a_pass();
        for (id, rows) in later {
            let awaited = self.pager.awaited(&self.sessions[&id].pages);
            coming_s += self.pager.copy_in_seconds(awaited);
            let joins = turn.run.is_empty() || coming_s <= PATIENCE * pass_s;
            let coming = match joins {
                true => self.with_pages(id, |pager, session| {
                    let first = session.first_block();
                    pager.copy_in(session.pages.pages(), Granularity::FromBlock(first))
                }),
                false => self.bring_some(id, &mut most),
            };
            match coming {
                Ok(()) if joins => self.take_in(id, rows, turn),
                Ok(()) => {}
                Err(lost) => turn.lost.push(*lost),
            }
        }
    }

    /// Pages that may come while a pass runs: where weights stream they share the link, and
    /// leave three quarters of it to those.
    fn pages_of_a_pass(&self) -> usize {
        let streamed = self.blueprint.plan().ring.streamed_bytes();
        let pages = streamed / SHARE / self.blueprint.page_bytes().max(1);
        match streamed {
            0 => usize::MAX,
            _ => usize::try_from(pages).unwrap_or(usize::MAX).max(1),
        }
    }

    /// Brings up to so many pages of a session back, behind the weights that are on their
    /// way.
    fn bring_some(&mut self, id: SessionId, most: &mut usize) -> Result<(), Lost> {
        let pages = self.pager.pages();
        let is_away = |page: &&PageId| pages.device_frame(**page).is_none();
        let away = self.sessions[&id].pages.pages().iter().filter(is_away);
        let away: Vec<PageId> = away.copied().take(*most).collect();
        *most -= away.len();
        let streams = !self.blueprint.plan().ring.slots.is_empty();
        self.with_pages(id, |pager, _| {
            if streams && !away.is_empty() {
                pager.order_after_weights()?;
            }
            pager.copy_in(&away, Granularity::WholePage)
        })
    }

    /// So many tokens of a session run in the next pass.
    fn take_in(&mut self, id: SessionId, rows: usize, turn: &mut Turn) {
        let there = self.with_pages(id, |pager, session| {
            let tokens = session.computed..session.computed + rows;
            pager.prepare_write(&mut session.pages, tokens)
        });
        match there {
            Ok(()) => {
                self.session(id).account.ran();
                turn.run.push((id, rows));
            }
            Err(lost) => turn.lost.push(*lost),
        }
    }

    /// Moves a session's pages. Where that fails its keys and values are lost, and it is
    /// over, as are those that hold some of them too; others lose nothing.
    pub(crate) fn with_pages<T>(
        &mut self,
        id: SessionId,
        work: impl FnOnce(&mut Pager, &mut Session) -> Result<T, KvError>,
    ) -> Result<T, Lost> {
        let session = self.sessions.get_mut(&id).expect("an open session");
        work(&mut self.pager, session).map_err(|error| {
            let error = EngineError::from(error);
            let pages = self.sessions[&id].pages.pages().to_vec();
            let others = self.lose(&pages, &error).into_iter();
            self.untold
                .extend(others.filter(|output| output.session != id));
            Box::new(self.fail(id, &error))
        })
    }

    /// Pages are lost, and so are all sessions that hold one of them.
    pub(crate) fn lose(&mut self, pages: &[PageId], error: &EngineError) -> Vec<Output> {
        self.pager.drain();
        let holds = |session: &&Session| session.pages.pages().iter().any(|p| pages.contains(p));
        let lost = self
            .sessions
            .values()
            .filter(holds)
            .map(|session| session.id);
        let lost: Vec<SessionId> = lost.collect();
        lost.into_iter().map(|id| self.fail(id, error)).collect()
    }

    pub(crate) fn session(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("an open session")
    }
}

/// A session as the scheduler sees it, with no more tokens than a lens of so many rows takes.
fn as_ready(session: &Session, lens: usize) -> Ready<'_> {
    let (pending, under) = session.run_under(lens);
    Ready {
        account: session.account,
        table: &session.pages,
        computed: session.computed,
        pending,
        whole: session.runs_whole(),
        lens: under,
    }
}
