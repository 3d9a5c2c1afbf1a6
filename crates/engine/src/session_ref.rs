//! Handles of open sessions, through which their owners act on them.

use std::time::Instant;

use djinn_kv::PageTable;
use djinn_model::Model;
use djinn_types::SessionId;

use crate::{
    blueprint::Blueprint,
    durability::{Durability, saved_file::SavedFile, saved_session::SavedState},
    error::EngineError,
    probe::{breakpoint::RunUntil, captured::Captured, edit::EditSpec},
    sampling::sampler::Sampling,
    scheduler::{
        Scheduler,
        admission::committed,
        eviction::{copy_to_host, evict_session},
        spill_policy::SpillPolicy,
        waiting::PREFETCH_AHEAD,
    },
    session::{
        Session,
        checker::RequestChecker,
        lifecycle::{NextTurn, text_of},
        output::Transcript,
        quota::Holdings,
        residency::SessionMemory,
        state::{OwnerAction, SessionState, Transition},
        table::check_room,
        view::SessionView,
    },
};

/// Handle of an open session. [`Engine::session`](crate::Engine::session) checks the owner when
/// it creates the handle.
pub struct SessionRef<'e> {
    pub(crate) id: SessionId,
    pub(crate) model: &'e Model,
    pub(crate) blueprint: &'e Blueprint,
    pub(crate) checker: &'e RequestChecker,
    pub(crate) scheduler: &'e Scheduler,
    pub(crate) durability: &'e mut Durability,
    pub(crate) residency: SessionMemory<'e>,
}

impl SessionRef<'_> {
    pub(crate) fn get(&self) -> &Session {
        self.residency.sessions.known(self.id)
    }

    pub(crate) fn get_mut(&mut self) -> &mut Session {
        self.residency.sessions.known_mut(self.id)
    }

    /// Returns a read-only view of the session.
    pub fn view(&self) -> SessionView<'_> {
        SessionView::new(self.get(), self.model, self.residency.pager)
    }

    /// Renews the lease.
    pub fn renew(&mut self) {
        self.get_mut().lifetime.touch();
    }

    /// Takes the activations captured since the last call.
    pub fn take_captured(&mut self) -> Captured {
        std::mem::take(&mut self.get_mut().captured)
    }

    /// Exports the session for another engine of the same model.
    pub fn export(&self) -> Result<SavedFile, EngineError> {
        self.durability.export(self.model, self.get())
    }

    /// Closes the session in any state and returns its transcript.
    pub fn close(mut self) -> Transcript {
        let transcript = self.view().transcript();
        self.remove();
        transcript
    }

    fn remove(&mut self) {
        let removed = self.residency.sessions.remove(self.id);
        let mut session = removed.expect("the handle is of an open session");
        self.durability.commit_closed(&session);
        self.residency.pager.release(&mut session.pages);
    }

    /// Lets the session wait for its owner, who may know when to resume it. With an expected
    /// time the pages stay on the device until other sessions need their frames, and the host
    /// gets a copy unless the time is near. Without an expected time the pages are evicted at
    /// once, as far as there is room.
    pub fn wait(&mut self, expected: Option<Instant>) -> Result<(), EngineError> {
        let spill = &self.scheduler.spill;
        wait(
            &mut self.residency,
            spill,
            self.durability,
            self.id,
            expected,
        )
    }

    /// Resumes a session that waits or is paused. A session whose turn is over is expected to
    /// get more input at once: its pages are paged in.
    pub fn resume(&mut self) -> Result<(), EngineError> {
        let session = self.get();
        session.check(OwnerAction::Resume)?;
        if session.state.is_turn_over() {
            return self.wait(Some(Instant::now()));
        }
        if session.state.is_paused() {
            return self.resume_with(&[], RunUntil::Breakpoint);
        }
        let session = self.residency.sessions.known_mut(self.id);
        self.durability.commit_state(session, SavedState::Ready)?;
        self.make_ready()
    }

    /// Moves the session to the ready or queued state.
    pub(crate) fn make_ready(&mut self) -> Result<(), EngineError> {
        let virtual_time = self.scheduler.virtual_time(&self.get().owner);
        let session = self.get_mut();
        session.apply(Transition::Resume)?;
        session.lifetime.touch();
        session.fair_share = session.fair_share.rejoin(virtual_time);
        Ok(())
    }

    /// Appends tokens to a waiting session and lets it generate up to `max_tokens` more, with
    /// edits that apply to this turn only. Only the new tokens are computed.
    pub fn append(
        &mut self,
        tokens: &[u32],
        max_tokens: usize,
        edits: &[EditSpec],
    ) -> Result<(), EngineError> {
        let turn = NextTurn::new(self.checker, self.get(), tokens, max_tokens, edits)?;
        let sessions = &*self.residency.sessions;
        sessions.check_reserve(self.id, turn.reserve.total())?;
        let session = self.residency.sessions.known_mut(self.id);
        self.durability.commit_turn(session, &turn)?;
        self.make_ready()?;
        turn.apply(self.model, self.get_mut());
        Ok(())
    }

    /// Forks the session: another session continues from the same tokens in the same state, with
    /// other sampling if given. Both share pages until one of them writes. Without room for the
    /// fork's pages, the fork is queued and recomputes tokens that are not in the prefix cache.
    pub fn fork(&mut self, sampling: Option<Sampling>) -> Result<SessionId, EngineError> {
        let session = self.get();
        session.check(OwnerAction::Fork)?;
        if let Some(sampling) = &sampling {
            sampling.check(self.model.program.dims.vocab)?;
        }
        let sessions = &*self.residency.sessions;
        let new = Holdings {
            sessions: 1,
            pages: session.pages_most,
            probe_bytes: session.reserve.total(),
        };
        check_room(sessions, self.blueprint.settings(), &session.owner, new)?;
        let fits = self.fork_fits();
        let can_wait = session.probe.is_empty() && session.paused().is_none();
        if !fits && !can_wait {
            return Err(EngineError::NoRoomToFork(self.id));
        }
        let shares_pages = fits && session.state.is_admitted();
        let text = text_of(self.model, session);
        let id = self.residency.sessions.new_id();
        let session = self.residency.sessions.known(self.id);
        let pages = match shares_pages {
            true => self.residency.pager.share(&session.pages),
            false => PageTable::new(session.pages.page_tokens()),
        };
        let mut fork = session.duplicate(id, pages, text);
        if let Some(sampling) = sampling {
            fork.sampling = sampling;
        }
        if !shares_pages {
            fork.computed = 0;
            fork.state = not_admitted(fork.state);
        }
        fork.lifetime.touch();
        fork.fair_share = fork
            .fair_share
            .rejoin(self.scheduler.virtual_time(&fork.owner));
        if let Err(error) = self.durability.commit_opened(&mut fork) {
            self.residency.pager.release(&mut fork.pages);
            return Err(error);
        }
        self.residency.sessions.insert(fork);
        Ok(id)
    }

    /// Whether KV memory has room for a fork of the session.
    fn fork_fits(&self) -> bool {
        let (session, pages) = (self.get(), self.residency.pager.pages());
        let (more, copied) = (session.pages_left(), session.pages_ahead());
        // The session itself may have to copy its pages once they are shared.
        let not_yet = copied.saturating_sub(session.copied_pages(pages));
        let (sessions, pager) = (&*self.residency.sessions, &*self.residency.pager);
        let committed = committed(sessions, pager, &self.scheduler.spill);
        let committed = committed.and_fork(session.pages_most, more + not_yet, copied);
        committed.fits()
    }

    /// Closes sessions that were just opened from this one.
    pub(crate) fn discard(&mut self, forks: Vec<SessionId>) {
        let own = self.id;
        for fork in forks {
            self.id = fork;
            self.remove();
        }
        self.id = own;
    }
}

/// Returns the state of a session after it lost its admission to KV memory.
fn not_admitted(state: SessionState) -> SessionState {
    match state {
        SessionState::Ready { route, .. } => SessionState::Queued { route },
        SessionState::Waiting {
            route,
            turn_over,
            expected,
            ..
        } => SessionState::Waiting {
            route,
            admitted: false,
            turn_over,
            expected,
        },
        SessionState::Paused {
            place, expected, ..
        } => SessionState::Paused {
            place,
            admitted: false,
            expected,
        },
        state => state,
    }
}

/// Lets a session wait for its owner; see [`SessionRef::wait`].
pub(crate) fn wait(
    residency: &mut SessionMemory<'_>,
    policy: &SpillPolicy,
    durability: &mut Durability,
    id: SessionId,
    expected: Option<Instant>,
) -> Result<(), EngineError> {
    let session = residency.sessions.get_mut(id)?;
    session.check(OwnerAction::Wait)?;
    if !session.state.is_paused() && !session.state.is_turn_over() {
        durability.commit_state(session, SavedState::Waiting)?;
    }
    let since = Instant::now();
    session.apply(Transition::Wait(expected))?;
    session.lifetime.touch();
    match expected {
        None => evict_session(residency, policy, id),
        Some(at) if at > since + PREFETCH_AHEAD => copy_to_host(residency, policy, id),
        Some(_) => {}
    }
    Ok(())
}
