//! The journal: the session log of a running engine.

use std::collections::BTreeMap;

use djinn_types::SessionId;
use djinn_wal::Log;

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

/// The session log of an engine, with the sessions that the engine does not run.
pub(super) struct Journal {
    log: Log,
    model: ModelIdentity,
    /// Sessions of the folder that are not open in the engine.
    parked: BTreeMap<u64, SavedSession>,
    /// Closed sessions whose end could not be written yet.
    closed: Vec<u64>,
    /// Size of the log after its last compaction; 0 before the first.
    compact: u64,
}

impl Journal {
    /// Continues the log of a folder.
    pub fn new(
        folder: StateFolder,
        model: ModelIdentity,
        parked: BTreeMap<u64, SavedSession>,
    ) -> Self {
        Journal {
            compact: 0,
            log: folder.log,
            model,
            parked,
            closed: Vec::new(),
        }
    }

    /// Writes records durably, in order.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), EngineError> {
        self.write_closed()?;
        for record in records {
            record.append_to(&mut self.log)?;
        }
        Ok(self.log.sync()?)
    }

    /// Writes the end of a session, now or with the next record that can be written.
    pub fn close(&mut self, id: SessionId) {
        self.closed.push(id.0);
        // The next commit writes what fails here.
        let _ = self.commit(&[]);
    }

    fn write_closed(&mut self) -> Result<(), EngineError> {
        while let Some(&id) = self.closed.first() {
            Record::Closed { id }.append_to(&mut self.log)?;
            self.closed.remove(0);
        }
        Ok(())
    }

    /// Rewrites the log with the current state if most of the log is outdated. If the rewrite
    /// fails, the old log continues.
    pub fn compact(&mut self, sessions: &mut SessionTable) {
        if self.log.bytes() < SMALL.max(4 * self.compact) {
            return;
        }
        let head = Record::Model {
            name: self.model.name.clone(),
            identity: self.model.identity.clone(),
            legacy_identity: self.model.legacy.clone(),
            next_id: sessions.next_id().0,
        };
        let open = sessions.iter().filter(|session| !session.transient);
        let open = open.map(SavedSession::of);
        let all = open.chain(self.parked.values().cloned());
        let all = all.map(|session| Record::Session(Box::new(session)));
        let records = std::iter::once(head).chain(all);
        let bytes = records.map(|record| record.to_bytes());
        if self.log.compact(bytes).is_ok() {
            self.compact = self.log.bytes();
            self.closed.clear();
            for session in sessions.iter_mut() {
                session.logged = session.tokens.len();
            }
        }
    }

    /// Writes the tokens that a session generated since its last record, and its state if the
    /// turn has ended.
    pub fn write_progress(
        &mut self,
        session: &mut Session,
        has_ended: bool,
    ) -> Result<(), EngineError> {
        let id = session.id.0;
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
        record.append_to(&mut self.log)?;
        session.logged = session.tokens.len();
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
            && let Err(error) = self.log.sync()
        {
            let reason = error.to_string();
            let why = |id| (id, EngineError::NotWritten(reason.clone()));
            failed.extend(ended.into_iter().map(why));
        }
        failed
    }
}
