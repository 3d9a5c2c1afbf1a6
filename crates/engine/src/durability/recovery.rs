//! An engine that keeps its sessions in a folder.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    Engine, EngineError, Output, Probe, Request, SavedFile, SavedSession, SavedState, SessionId,
    StateFolder,
    durability::identity::identity,
    durability::{Journal, from_unix, load_logprobs, records::Record},
    session::Session,
    session::state::State,
};

/// What was found in a folder.
#[derive(Debug, Default)]
pub struct Restored {
    /// Sessions that go on.
    pub sessions: Vec<SessionId>,
    /// Those that this engine was not laid out for, each with the reason. They stay in the
    /// folder.
    pub refused: Vec<(SessionId, EngineError)>,
    /// Bytes that the last crash left half written.
    pub torn: u64,
}

/// Which sessions of a folder go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreScope {
    /// All of them.
    All,
    /// One alone.
    One(SessionId),
    /// None: only new ones.
    None,
}

impl Engine {
    /// Keeps sessions in a folder from now on, and goes on with those of them that are
    /// wanted. Before the first is opened.
    pub fn keep_state(
        &mut self,
        mut state: StateFolder,
        wanted: RestoreScope,
    ) -> Result<Restored, EngineError> {
        assert!(self.sessions.is_empty(), "before the first session");
        state.belong(&self.model.name, &identity(&self.model)?)?;
        if let RestoreScope::One(id) = wanted {
            state.get(id)?;
        }
        let mut restored = Restored {
            torn: state.torn(),
            ..Restored::default()
        };
        let mut parked = BTreeMap::new();
        for (number, saved) in std::mem::take(&mut state.sessions) {
            let id = SessionId(number);
            if wanted != RestoreScope::All && wanted != RestoreScope::One(id) {
                parked.insert(number, saved);
                continue;
            }
            match self.take_back(&saved) {
                Ok(()) => restored.sessions.push(id),
                Err(error) => {
                    restored.refused.push((id, error));
                    parked.insert(number, saved);
                }
            }
        }
        self.next_id = state.next_id;
        self.journal = Some(Journal::new(state, parked));
        Ok(restored)
    }

    /// A session as a file that another engine of this model can take in.
    pub fn export(&self, id: SessionId) -> Result<SavedFile, EngineError> {
        let session = self.sessions.get(&id).ok_or(EngineError::NoSession(id))?;
        Ok(SavedFile {
            model: self.model.name.clone(),
            identity: self.identity()?.to_owned(),
            session: SavedSession::of(session),
        })
    }

    /// What tells this model from others of its name.
    fn identity(&self) -> Result<&str, EngineError> {
        if let Some(known) = self.identity.get() {
            return Ok(known);
        }
        let found = identity(&self.model)?;
        Ok(self.identity.get_or_init(|| found))
    }

    /// Takes such a session in, as this owner's and under a number of its own here. One that
    /// was running waits.
    pub fn import(&mut self, file: SavedFile, owner: &str) -> Result<SessionId, EngineError> {
        if file.identity != self.identity()? {
            return Err(EngineError::OtherModel {
                name: self.model.name.clone(),
                theirs: file.model,
            });
        }
        let id = SessionId(self.next_id);
        let mut saved = SavedSession {
            id: id.0,
            owner: owner.to_owned(),
            ..file.session
        };
        if saved.state == SavedState::Ready && saved.keep {
            saved.state = SavedState::Waiting;
        }
        self.check_open(owner, self.blueprint.settings.table_pages())?;
        self.take_back(&saved)?;
        let written = match self.journal {
            Some(_) => self.commit(&[Record::Session(Box::new(saved))]),
            None => Ok(()),
        };
        if let Err(error) = written {
            self.sessions.remove(&id);
            return Err(error);
        }
        self.next_id += 1;
        Ok(id)
    }

    /// A session that was written down is open again, with nothing computed yet.
    fn take_back(&mut self, saved: &SavedSession) -> Result<(), EngineError> {
        let program = &self.model.program;
        saved.check()?;
        let prompt = saved.tokens[..saved.given[0].1].to_vec();
        let lease = |seconds| std::time::Duration::try_from_secs_f64(seconds).ok();
        let probe = match &saved.probe {
            Some(probe) => Probe::load(program, probe)?,
            None => Probe::default(),
        };
        probe.check_rows(prompt.len(), program.dims.context)?;
        let request = Request {
            tokens: prompt,
            // Who is kept has turns behind it that are no part of this one.
            max_tokens: match saved.keep {
                true => 0,
                false => saved.max_tokens,
            },
            sampling: saved.sampling.clone(),
            eos: saved.eos.clone(),
            stop: saved.stop.clone(),
            probe: probe.clone(),
            class: saved.class,
            keep: saved.keep,
            transient: false,
            owner: saved.owner.clone(),
            deadline: saved.deadline.map(from_unix),
            lease: saved.lease.and_then(lease),
        };
        let mut session = self.new_session(request, SessionId(saved.id))?;
        crate::settings::check_tokens(&self.model.program, &saved.tokens)?;
        // Bound when it was first checked, over the positions it had then.
        session.probe = probe;
        let range = |&(start, end): &(usize, usize)| -> Range<usize> { start..end };
        session.given = saved.given.iter().map(range).collect();
        session.tokens.clone_from(&saved.tokens);
        session.logged = saved.tokens.len();
        session.max_tokens = saved.max_tokens;
        // The last one that was generated need not be run.
        let last = session.tokens.len() - 1;
        let runs = last + usize::from(session.is_given(last));
        let context = session.context.min(self.blueprint.settings.context);
        if runs > context {
            let prompt = session.tokens.len();
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        session.logprobs = saved.logprobs.iter().map(load_logprobs).collect();
        session.text = self.text_of(&session);
        if let Some(past) = &saved.past {
            let rewind = self.rewind_to(past)?;
            session.past = Some(rewind.to.clone());
            session.rewind = Some(rewind);
        }
        match &saved.state {
            SavedState::Ready => {}
            SavedState::Waiting | SavedState::TurnOver => {
                session.state = State::Waiting { expected: None };
                session.turn_over = saved.state == SavedState::TurnOver;
            }
            SavedState::Paused(at) => {
                session.rewind = Some(self.rewind_to(at)?);
                session.state = State::Paused { expected: None };
            }
            SavedState::Done { finish, failure } => {
                session.state = State::Done(*finish);
                session.failure.clone_from(failure);
            }
        }
        self.sessions.insert(session.id, session);
        Ok(())
    }

    /// Writes things down before they are acknowledged, where sessions are kept.
    pub(crate) fn commit(&mut self, records: &[Record]) -> Result<(), EngineError> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        journal.tidy(&mut self.sessions, self.next_id);
        journal.commit(records)
    }

    /// The same of a session as it is.
    pub(crate) fn commit_session(&mut self, session: &mut Session) -> Result<(), EngineError> {
        if self.journal.is_none() || session.transient {
            return Ok(());
        }
        session.logged = session.tokens.len();
        let saved = SavedSession::of(session);
        self.commit(&[Record::Session(Box::new(saved))])
    }

    /// The same of what a session reads, changes and stops at from now on; ready, if it goes
    /// on too.
    pub(crate) fn commit_changed(
        &mut self,
        id: SessionId,
        probe: Probe,
        goes: bool,
    ) -> Result<(), EngineError> {
        if self.is_written(id) {
            let mut saved = SavedSession::of(&self.sessions[&id]);
            saved.probe = probe.saved();
            if goes && let SavedState::Paused(at) = saved.state {
                (saved.state, saved.past) = (SavedState::Ready, Some(at));
            }
            self.commit(&[Record::Session(Box::new(saved))])?;
            let session = self.session(id);
            session.logged = session.tokens.len();
        }
        self.session(id).probe = probe;
        Ok(())
    }

    /// The same of where a session stands.
    pub(crate) fn commit_state(
        &mut self,
        id: SessionId,
        state: SavedState,
    ) -> Result<(), EngineError> {
        match self.is_written(id) {
            true => self.commit(&[Record::State { id: id.0, state }]),
            false => Ok(()),
        }
    }

    /// Whether a session is written down.
    fn is_written(&self, id: SessionId) -> bool {
        self.journal.is_some() && !self.sessions[&id].transient
    }

    /// The same of what a session is told.
    pub(crate) fn commit_said(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
        probe: &Probe,
    ) -> Result<(), EngineError> {
        let session = self.sessions.get_mut(&id).expect("an open session");
        let Some(journal) = self.journal.as_mut().filter(|_| !session.transient) else {
            return Ok(());
        };
        journal.tell(session, false)?;
        let new_probe = match probe.saved() {
            saved if saved == session.probe.saved() => None,
            saved => Some(Box::new(saved.unwrap_or_default())),
        };
        let said = Record::Said {
            id: id.0,
            tokens: tokens.to_vec(),
            max_tokens,
            probe: new_probe,
        };
        self.commit(&[said])
    }

    /// Writes down that a session is closed. What cannot be written now is as soon as
    /// something can: until then a restart would find it again.
    pub(crate) fn commit_closed(&mut self, id: SessionId) {
        if !self.is_written(id) {
            return;
        }
        if let Some(journal) = &mut self.journal {
            journal.tidy(&mut self.sessions, self.next_id);
            journal.close(id);
        }
    }

    /// Writes down what sessions are about to be told. Whose end cannot be is over, and told
    /// why; what the log has of it stays there.
    pub(crate) fn write_down(&mut self, outputs: &mut [Output]) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        for (id, error) in journal.outputs(outputs, &mut self.sessions) {
            let told = outputs.iter_mut().find(|output| output.session == id);
            let told = told.expect("one of these");
            if told.failure.is_none() {
                let failed = self.fail(id, &error);
                (told.finish, told.failure) = (failed.finish, failed.failure);
                told.paused = None;
            }
        }
    }
}
