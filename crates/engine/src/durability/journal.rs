//! What an engine writes down as it goes.

use std::collections::BTreeMap;

use djinn_wal::Log;

use super::{
    SavedSession, SavedState,
    records::Record,
    saved_session::save_logprobs,
    state_folder::{ModelIdentity, State, write},
};
use crate::{EngineError, Output, SessionId, session::Session};

/// A log smaller than this is not worth writing again.
const SMALL: u64 = 64 << 10;

/// The log of an engine's sessions, and of those that it does not run.
pub(crate) struct Journal {
    log: Log,
    whose: ModelIdentity,
    /// Sessions of the folder that are not open here.
    parked: BTreeMap<u64, SavedSession>,
    /// Sessions that are closed, which could not be written yet.
    closed: Vec<u64>,
    /// Bytes when it was last written as it stands; 0 where it was not yet.
    compact: u64,
}

impl Journal {
    /// Goes on where a folder's log ends.
    pub fn new(state: State, parked: BTreeMap<u64, SavedSession>) -> Self {
        Journal {
            compact: 0,
            log: state.log,
            whose: state.whose.expect("they belong to a model"),
            parked,
            closed: Vec::new(),
        }
    }

    /// Writes things down, in order, and sees to it that they stay.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), EngineError> {
        self.write_closed()?;
        for record in records {
            write(&mut self.log, record)?;
        }
        Ok(self.log.sync()?)
    }

    /// A session is closed, which stays so as soon as it can be written.
    pub fn close(&mut self, id: SessionId) {
        self.closed.push(id.0);
        // What fails here is tried again with whatever comes next.
        let _ = self.commit(&[]);
    }

    fn write_closed(&mut self) -> Result<(), EngineError> {
        while let Some(&id) = self.closed.first() {
            write(&mut self.log, &Record::Closed { id })?;
            self.closed.remove(0);
        }
        Ok(())
    }

    /// Writes the log again as it stands, where most of it is of the past. Where that fails
    /// the old one goes on. What is about to be written down comes after it.
    pub fn tidy(&mut self, sessions: &mut BTreeMap<SessionId, Session>, next_id: u64) {
        if self.log.bytes() < SMALL.max(4 * self.compact) {
            return;
        }
        let head = Record::Model {
            name: self.whose.name.clone(),
            identity: self.whose.identity.clone(),
            next_id,
        };
        let open = sessions.values().filter(|session| !session.transient);
        let open = open.map(SavedSession::of);
        let all = open.chain(self.parked.values().cloned());
        let all = all.map(|session| Record::Session(Box::new(session)));
        let records = std::iter::once(head).chain(all);
        let bytes = records.map(|record| serde_json::to_vec(&record).expect("plain data"));
        if self.log.compact(bytes).is_ok() {
            self.compact = self.log.bytes();
            self.closed.clear();
            for session in sessions.values_mut() {
                session.logged = session.tokens.len();
            }
        }
    }

    /// Writes down what a session generated since it last was, and where it stands if its
    /// turn is over.
    pub fn tell(&mut self, session: &mut Session, is_over: bool) -> Result<(), EngineError> {
        let id = session.id.0;
        let state = is_over.then(|| SavedState::of(session));
        let new = &session.tokens[session.logged..];
        let record = match (new, state) {
            ([], None) => return Ok(()),
            ([], Some(state)) => Record::State { id, state },
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
        write(&mut self.log, &record)?;
        session.logged = session.tokens.len();
        Ok(())
    }

    /// Writes down what sessions are about to be told. The end of a turn is on disk before it
    /// is told; tokens on the way there need not be, since they would come again as they
    /// are. Says whose end could not be written, and why.
    pub fn outputs(
        &mut self,
        outputs: &[Output],
        sessions: &mut BTreeMap<SessionId, Session>,
    ) -> Vec<(SessionId, EngineError)> {
        let mut failed = Vec::new();
        let mut ended = Vec::new();
        for output in outputs {
            let session = sessions.get_mut(&output.session);
            let Some(session) = session.filter(|session| !session.transient) else {
                continue;
            };
            let is_over = output.finish.is_some() || output.paused.is_some();
            match self.tell(session, is_over) {
                Ok(()) if is_over => ended.push(output.session),
                Err(error) if is_over => failed.push((output.session, error)),
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
