//! A folder of sessions, with or without an engine to run them.

use std::{collections::BTreeMap, path::Path};

use djinn_types::SessionId;
use djinn_wal::Log;

use super::{
    identity::ModelIdentity,
    records::Record,
    saved_file::SavedFile,
    saved_session::{SavedSession, SavedState},
};
use crate::error::EngineError;

/// Limit of session ids. No folder reaches this number, and ids above it could not be counted on.
const ID_LIMIT: u64 = 1 << 62;

/// Refuses the id of a damaged record.
fn check_id(id: u64) -> Result<(), String> {
    match id < ID_LIMIT {
        true => Ok(()),
        false => Err(format!("session id {id} exceeds the limit {ID_LIMIT}")),
    }
}

/// A folder of sessions. One process at a time can open the folder.
pub struct StateFolder {
    pub(super) log: Log,
    pub(super) model: Option<ModelIdentity>,
    pub(super) sessions: BTreeMap<u64, SavedSession>,
    /// One more than the highest id a session has had.
    pub(super) next_id: u64,
}

impl StateFolder {
    /// Opens a folder, and creates it if there is none.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let (log, records) = Log::open(folder)?;
        let mut state = StateFolder {
            log,
            model: None,
            sessions: BTreeMap::new(),
            next_id: 0,
        };
        for (number, record) in records.iter().enumerate() {
            let applied = serde_json::from_slice(record)
                .map_err(|error| error.to_string())
                .and_then(|record| state.apply(record));
            applied.map_err(|reason| EngineError::File {
                path: folder.to_owned(),
                reason: format!("record {number} of the session log is invalid: {reason}"),
            })?;
        }
        Ok(state)
    }

    /// Whether a folder contains sessions.
    pub fn is_in(folder: &Path) -> bool {
        Log::is_in(folder)
    }

    /// Applies a record of the log.
    fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Model {
                name,
                identity,
                legacy_identity,
                next_id,
            } => {
                self.model = Some(ModelIdentity {
                    name,
                    identity,
                    legacy: legacy_identity,
                });
                check_id(next_id)?;
                self.next_id = self.next_id.max(next_id);
            }
            Record::Session(session) => {
                if self.model.is_none() {
                    return Err(format!(
                        "session {} comes before the model's record",
                        session.id
                    ));
                }
                check_id(session.id)?;
                self.next_id = self.next_id.max(session.id + 1);
                self.sessions.insert(session.id, *session);
            }
            Record::Said {
                id,
                tokens,
                max_tokens,
                probe,
            } => {
                let session = self.session(id)?;
                if let Some(probe) = probe {
                    session.probe = Some(*probe);
                }
                let start = session.tokens.len();
                session.tokens.extend(tokens);
                if session.tokens.len() > start {
                    session.given.push((start, session.tokens.len()));
                }
                session.max_tokens = max_tokens;
                session.state = SavedState::Ready;
            }
            Record::Tokens {
                id,
                after,
                tokens,
                logprobs,
                state,
            } => {
                let session = self.session(id)?;
                let found = session.tokens.len();
                if found != after {
                    return Err(format!(
                        "session {id} has {found} tokens, but the record continues after token {after}"
                    ));
                }
                session.tokens.extend(tokens);
                session.logprobs.extend(logprobs);
                if let Some(state) = state {
                    session.state = state;
                }
            }
            Record::State { id, state } => self.session(id)?.state = state,
            Record::Closed { id } => {
                self.session(id)?;
                self.sessions.remove(&id);
            }
        }
        Ok(())
    }

    fn session(&mut self, id: u64) -> Result<&mut SavedSession, String> {
        let session = self.sessions.get_mut(&id);
        session.ok_or_else(|| format!("session {id} does not exist"))
    }

    /// Iterates over the sessions in order of their ids.
    pub fn sessions(&self) -> impl Iterator<Item = &SavedSession> {
        self.sessions.values()
    }

    /// Returns one session.
    pub fn get(&self, id: SessionId) -> Result<&SavedSession, EngineError> {
        self.sessions.get(&id.0).ok_or(EngineError::NoSession(id))
    }

    /// Returns the name of the model that the sessions belong to, once there was a session.
    pub fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.name.as_str())
    }

    /// Number of bytes that the last crash left half written, and that were dropped.
    pub fn torn(&self) -> u64 {
        self.log.torn()
    }

    /// Writes a record durably, then applies it.
    fn commit(&mut self, record: Record) -> Result<(), EngineError> {
        record.append_to(&mut self.log)?;
        self.log.sync()?;
        self.apply(record)
            .expect("the record was made from this state");
        Ok(())
    }

    /// Deletes a session.
    pub fn delete(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.get(id)?;
        self.commit(Record::Closed { id: id.0 })
    }

    /// Exports one session to a file that another folder can import.
    pub fn export(&self, id: SessionId) -> Result<SavedFile, EngineError> {
        let session = self.get(id)?.clone();
        let model = self.model.clone();
        let model = model.expect("the first session comes after the model's record");
        Ok(SavedFile::new(model, session))
    }

    /// Imports a session under a new id. A kept session that was running waits.
    pub fn import(&mut self, file: SavedFile) -> Result<SessionId, EngineError> {
        file.session.check()?;
        self.claim(&file.model_identity())?;
        let id = self.next_id;
        let owner = file.session.owner.clone();
        let session = file.session.imported(id, owner);
        self.commit(Record::Session(Box::new(session)))?;
        Ok(SessionId(id))
    }

    /// Takes the sessions out of the folder, with the lowest id of the next session.
    pub(crate) fn take_sessions(&mut self) -> (BTreeMap<u64, SavedSession>, u64) {
        (std::mem::take(&mut self.sessions), self.next_id)
    }

    /// Makes an empty folder one of this model; refuses a folder of another model.
    pub(crate) fn claim(&mut self, model: &ModelIdentity) -> Result<(), EngineError> {
        match &self.model {
            Some(theirs) => model.check(theirs),
            None => self.commit(Record::Model {
                name: model.name.clone(),
                identity: model.identity.clone(),
                legacy_identity: model.legacy.clone(),
                next_id: 0,
            }),
        }
    }
}
