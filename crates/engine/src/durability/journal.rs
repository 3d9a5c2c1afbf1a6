//! The journal: the session log of a running engine.

use std::collections::BTreeMap;

use djinn_types::{DType, SessionId};
use djinn_wal::{Log, WalError};

use super::{
    identity::ModelIdentity,
    records::Record,
    saved_session::{SavedSession, SavedState, save_logprobs},
    state_folder::StateFolder,
};
use crate::{
    error::EngineError,
    session::{Session, output::Output, table::SessionTable},
};

/// Log size below which compaction does not pay.
const SMALL: u64 = 64 << 10;

/// Logarithm of the largest number of calls between two attempts to repair a log.
const SKIPS_LOG_MAX: u32 = 8;

/// The session log of an engine, with the sessions that the engine does not run.
pub(super) struct Journal {
    log: Log,
    model: ModelIdentity,
    /// Element type of the keys and values of open sessions.
    kv_dtype: DType,
    /// Sessions of the folder that are not open in the engine.
    parked: BTreeMap<SessionId, SavedSession>,
    /// Closed sessions whose end could not be written yet.
    closed: Vec<SessionId>,
    /// Size of the log after its last compaction; 0 before the first.
    compact: u64,
    /// Whether the log accepts no more records until it is rewritten.
    is_broken: bool,
    /// Whether a session has reached a state that the log lacks.
    owes: bool,
    /// Calls of [`settle`](Self::settle) until the next attempt to repair the log.
    skips: u32,
    /// Failed attempts in a row to repair the log.
    failures: u32,
}

impl Journal {
    /// Continues the log of a folder.
    pub fn new(
        folder: StateFolder,
        model: ModelIdentity,
        kv_dtype: DType,
        parked: BTreeMap<SessionId, SavedSession>,
    ) -> Self {
        Journal {
            compact: 0,
            log: folder.log,
            model,
            kv_dtype,
            parked,
            closed: Vec::new(),
            is_broken: false,
            owes: false,
            skips: 0,
            failures: 0,
        }
    }

    /// Writes a record durably.
    pub fn commit(&mut self, record: &Record) -> Result<(), EngineError> {
        self.write_closed()?;
        self.append(record)?;
        self.sync()
    }

    /// Appends a record. The record is on disk after the next sync.
    fn append(&mut self, record: &Record) -> Result<(), EngineError> {
        let appended = self.log.append(&record.to_bytes());
        self.is_broken |= matches!(appended, Err(WalError::Poisoned { .. }));
        Ok(appended?)
    }

    fn sync(&mut self) -> Result<(), EngineError> {
        let synced = self.log.sync();
        self.is_broken |= synced.is_err();
        Ok(synced?)
    }

    /// Writes the end of a session, now or with the next record that can be written.
    pub fn close(&mut self, id: SessionId) {
        self.closed.push(id);
        // The next commit writes what fails here.
        let _ = self.write_closed().and_then(|()| self.sync());
    }

    fn write_closed(&mut self) -> Result<(), EngineError> {
        while let Some(&id) = self.closed.first() {
            self.append(&Record::Closed { id })?;
            self.closed.remove(0);
        }
        Ok(())
    }

    /// Repairs a broken log, writes what earlier failures left unwritten, and compacts the log if
    /// most of it is outdated. Unless the caller `commits` a record next, a repair that keeps
    /// failing is tried less and less often.
    pub fn settle(&mut self, sessions: &mut SessionTable, commits: bool) {
        if self.is_broken {
            if self.skips > 0 && !commits {
                self.skips -= 1;
                return;
            }
            self.failures = match self.rewrite(sessions) {
                Ok(()) => 0,
                Err(_) => (self.failures + 1).min(SKIPS_LOG_MAX),
            };
            self.skips = (1 << self.failures) - 1;
        } else if self.owes {
            // The next call tries again.
            let _ = self.write_owed(sessions);
        } else if self.log.bytes() >= SMALL.max(4 * self.compact) {
            // If the rewrite fails, the old log continues.
            let _ = self.rewrite(sessions);
        }
    }

    /// Writes the tokens and states of all sessions that the log lacks.
    fn write_owed(&mut self, sessions: &mut SessionTable) -> Result<(), EngineError> {
        self.write_closed()?;
        for session in sessions.iter_mut().filter(|session| session.owes_state) {
            self.write_progress(session, true)?;
        }
        self.sync()?;
        self.owes = false;
        Ok(())
    }

    /// Rewrites the log with the current state of all sessions. Repairs a broken log.
    fn rewrite(&mut self, sessions: &mut SessionTable) -> Result<(), EngineError> {
        let head = Record::Model {
            name: self.model.name.clone(),
            identity: self.model.identity.clone(),
            legacy_identity: self.model.legacy.clone(),
        };
        let open = sessions.iter().filter(|session| !session.transient);
        let open = open.map(|session| SavedSession::of(session, self.kv_dtype));
        let all = open.chain(self.parked.values().cloned());
        let all = all.map(|session| Record::Session(Box::new(session)));
        let records = std::iter::once(head).chain(all);
        self.log.compact(records.map(|record| record.to_bytes()))?;
        self.compact = self.log.bytes();
        self.closed.clear();
        (self.is_broken, self.owes) = (false, false);
        sessions.iter_mut().for_each(Session::note_logged);
        Ok(())
    }

    /// Writes the tokens that a session generated since its last record, and its state if the
    /// turn has ended.
    pub fn write_progress(
        &mut self,
        session: &mut Session,
        has_ended: bool,
    ) -> Result<(), EngineError> {
        let id = session.id;
        let state = has_ended.then(|| SavedState::of(session));
        let new = &session.tokens[session.logged..];
        let record = match (new, state) {
            ([], None) => return Ok(()),
            ([], Some(state)) => {
                let after = Some(session.logged);
                Record::State { id, after, state }
            }
            (new, state) => {
                let before = session.logprobs.len().saturating_sub(new.len());
                let logprobs = &session.logprobs[before..];
                Record::Tokens {
                    id,
                    after: session.logged,
                    tokens: new.to_vec(),
                    logprobs: logprobs.iter().map(|all| save_logprobs(all)).collect(),
                    state,
                }
            }
        };
        if let Err(error) = self.append(&record) {
            session.owes_state |= has_ended;
            self.owes |= has_ended;
            return Err(error);
        }
        session.logged = session.tokens.len();
        session.owes_state &= !has_ended;
        Ok(())
    }

    /// Writes outputs before they are returned. The end of a turn is on disk before it is
    /// reported; tokens before the end need not be, because they would be generated again.
    /// Returns the sessions whose end could not be written, each with the error.
    pub fn write_outputs(
        &mut self,
        outputs: &[Output],
        sessions: &mut SessionTable,
    ) -> Vec<(SessionId, EngineError)> {
        let mut failed = Vec::new();
        let mut ended = Vec::new();
        for output in outputs {
            let session = sessions.get_mut(output.session).ok();
            let Some(session) = session.filter(|session| !session.transient) else {
                continue;
            };
            let has_ended = output.finish.is_some() || output.paused.is_some();
            match self.write_progress(session, has_ended) {
                Ok(()) if has_ended => ended.push(output.session),
                Err(error) if has_ended => failed.push((output.session, error)),
                _ => {}
            }
        }
        if !ended.is_empty()
            && let Err(error) = self.sync()
        {
            let reason = error.to_string();
            let why = |id| (id, EngineError::NotWritten(reason.clone()));
            failed.extend(ended.into_iter().map(why));
        }
        // A new log has the ends too.
        if self.is_broken && !failed.is_empty() && self.rewrite(sessions).is_ok() {
            failed.clear();
        }
        failed
    }
}
