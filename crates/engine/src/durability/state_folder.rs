//! A folder of sessions, with or without an engine to run them.

use std::{collections::BTreeMap, path::Path};

use djinn_wal::{Archive, ArchiveWriter, Log};
use serde::{Deserialize, Serialize};

use super::{SavedSession, SavedState, records::Record};
use crate::{EngineError, SessionId};

/// What a file that holds one session begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFile {
    /// The model's name.
    pub model: String,
    /// What tells it from others of that name.
    pub identity: String,
    /// The session.
    pub session: SavedSession,
}

impl SavedFile {
    /// Reads one.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let error = |e: std::io::Error| EngineError::File {
            path: path.to_owned(),
            reason: e.to_string(),
        };
        // As it travels it is the header alone.
        let bytes = std::fs::read(path).map_err(error)?;
        if bytes.first() == Some(&b'{') {
            return Self::from_bytes(&bytes);
        }
        let archive = Archive::open(path)?;
        serde_json::from_slice(archive.header()).map_err(|error| EngineError::File {
            path: path.to_owned(),
            reason: format!("is an archive, and not of a session: {error}"),
        })
    }

    /// The same from bytes that came from somewhere.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EngineError> {
        let read = serde_json::from_slice(bytes);
        read.map_err(|error| EngineError::NotRead(format!("this is no session: {error}")))
    }

    /// As bytes that can be sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }

    /// Writes one where there is none yet, or in place of another.
    pub fn write(&self, path: &Path, replace: bool) -> Result<(), EngineError> {
        Ok(ArchiveWriter::create(path, &self.to_bytes(), 0, replace)?.finish()?)
    }
}

/// Which model's sessions a folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelIdentity {
    pub name: String,
    pub identity: String,
}

/// A folder of sessions. One process has it at a time.
pub struct State {
    pub(crate) log: Log,
    pub(crate) whose: Option<ModelIdentity>,
    pub(crate) sessions: BTreeMap<u64, SavedSession>,
    /// One more than the highest number a session has had.
    pub(crate) next_id: u64,
}

impl State {
    /// Opens a folder, and makes it where there is none.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let (log, records) = Log::open(folder)?;
        let mut state = State {
            log,
            whose: None,
            sessions: BTreeMap::new(),
            next_id: 0,
        };
        for (number, record) in records.iter().enumerate() {
            let applied = serde_json::from_slice(record)
                .map_err(|error| error.to_string())
                .and_then(|record| state.apply(record));
            applied.map_err(|reason| EngineError::File {
                path: folder.to_owned(),
                reason: format!("record {number} of its log cannot be used: {reason}"),
            })?;
        }
        Ok(state)
    }

    /// Whether sessions are kept in a folder.
    pub fn is_in(folder: &Path) -> bool {
        Log::is_in(folder)
    }

    /// Takes in a record.
    fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Model {
                name,
                identity,
                next_id,
            } => {
                self.whose = Some(ModelIdentity { name, identity });
                self.next_id = self.next_id.max(next_id);
            }
            Record::Session(session) => {
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
                    return Err(format!("session {id} has {found} tokens, not {after}"));
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
        session.ok_or_else(|| format!("there is no session {id}"))
    }

    /// The sessions, by number.
    pub fn sessions(&self) -> impl Iterator<Item = &SavedSession> {
        self.sessions.values()
    }

    /// One of them.
    pub fn get(&self, id: SessionId) -> Result<&SavedSession, EngineError> {
        self.sessions.get(&id.0).ok_or(EngineError::NoSession(id))
    }

    /// The name of the model whose they are, once there was one.
    pub fn model(&self) -> Option<&str> {
        self.whose.as_ref().map(|whose| whose.name.as_str())
    }

    /// Bytes that the last crash left half written, and that were dropped.
    pub fn torn(&self) -> u64 {
        self.log.torn()
    }

    /// Writes down what happens, before it is told to anybody.
    pub(crate) fn commit(&mut self, record: Record) -> Result<(), EngineError> {
        write(&mut self.log, &record)?;
        self.log.sync()?;
        self.apply(record).expect("it was made from what is here");
        Ok(())
    }

    /// Ends a session for good.
    pub fn delete(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.get(id)?;
        self.commit(Record::Closed { id: id.0 })
    }

    /// One session as a file that another folder can take in.
    pub fn export(&self, id: SessionId) -> Result<SavedFile, EngineError> {
        let session = self.get(id)?.clone();
        let whose = self.whose.as_ref().expect("a session has a model");
        Ok(SavedFile {
            model: whose.name.clone(),
            identity: whose.identity.clone(),
            session,
        })
    }

    /// Takes a session in, under a number of its own here. One that was running waits.
    pub fn import(&mut self, file: SavedFile) -> Result<SessionId, EngineError> {
        file.session.check()?;
        self.belong(&file.model, &file.identity)?;
        let id = self.next_id;
        let mut session = SavedSession { id, ..file.session };
        if session.state == SavedState::Ready && session.keep {
            session.state = SavedState::Waiting;
        }
        self.commit(Record::Session(Box::new(session)))?;
        Ok(SessionId(id))
    }

    /// From now on these are sessions of this model: an error if they are another's.
    pub(crate) fn belong(&mut self, name: &str, identity: &str) -> Result<(), EngineError> {
        match &self.whose {
            Some(whose) if whose.identity != identity => Err(EngineError::OtherModel {
                name: name.to_owned(),
                theirs: whose.name.clone(),
            }),
            Some(_) => Ok(()),
            None => self.commit(Record::Model {
                name: name.to_owned(),
                identity: identity.to_owned(),
                next_id: 0,
            }),
        }
    }
}

/// Puts a record in a log.
pub(crate) fn write(log: &mut Log, record: &Record) -> Result<(), EngineError> {
    let bytes = serde_json::to_vec(record).expect("plain data");
    Ok(log.append(&bytes)?)
}
