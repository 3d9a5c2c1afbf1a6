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
use crate::{error::EngineError, session::ids::SessionIds};

/// A folder of sessions. One process at a time can open the folder.
pub struct StateFolder {
    pub(super) log: Log,
    pub(super) model: Option<ModelIdentity>,
    pub(super) sessions: BTreeMap<SessionId, SavedSession>,
    /// Source of ids for imported sessions; has noted all ids of the log.
    ids: SessionIds,
    /// Highest id that a session of the log has had.
    last_id: SessionId,
}

impl StateFolder {
    /// Opens a folder, and creates it if there is none.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let (log, records) = Log::open(folder)?;
        let mut state = StateFolder {
            log,
            model: None,
            sessions: BTreeMap::new(),
            ids: SessionIds::default(),
            last_id: SessionId::from_bits(0),
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
            } => {
                self.model = Some(ModelIdentity {
                    name,
                    identity,
                    legacy: legacy_identity,
                });
            }
            Record::Session(session) => {
                self.ids.note(session.id);
                self.last_id = self.last_id.max(session.id);
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

    fn session(&mut self, id: SessionId) -> Result<&mut SavedSession, String> {
        let session = self.sessions.get_mut(&id);
        session.ok_or_else(|| format!("session {id} does not exist"))
    }

    /// Iterates over the sessions in order of their ids.
    pub fn sessions(&self) -> impl Iterator<Item = &SavedSession> {
        self.sessions.values()
    }

    /// Returns one session.
    pub fn get(&self, id: SessionId) -> Result<&SavedSession, EngineError> {
        self.sessions.get(&id).ok_or(EngineError::NoSession(id))
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
        self.commit(Record::Closed { id })
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
        let id = self.ids.next();
        let owner = file.session.owner.clone();
        let session = file.session.imported(id, owner);
        self.commit(Record::Session(Box::new(session)))?;
        Ok(id)
    }

    /// Takes the sessions out of the folder, with the highest id that one of them has had.
    pub(crate) fn take_sessions(&mut self) -> (BTreeMap<SessionId, SavedSession>, SessionId) {
        (std::mem::take(&mut self.sessions), self.last_id)
    }

    /// Makes an empty folder one of this model; refuses a folder of another model.
    pub(crate) fn claim(&mut self, model: &ModelIdentity) -> Result<(), EngineError> {
        match &self.model {
            Some(theirs) => model.check(theirs),
            None => self.commit(Record::Model {
                name: model.name.clone(),
                identity: model.identity.clone(),
                legacy_identity: model.legacy.clone(),
            }),
        }
    }
}
