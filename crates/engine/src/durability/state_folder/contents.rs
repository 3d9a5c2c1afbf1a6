//! Sessions of a state folder, as the records of its log describe them.

use std::collections::{BTreeMap, BTreeSet};

use djinn_types::SessionId;
use djinn_wal::{DamagedRange, LogContents};
use serde_json::Value;

use super::super::{
    identity::ModelIdentity,
    records::Record,
    saved_file::SavedFile,
    saved_session::{SavedSession, SavedState},
};
use crate::error::EngineError;

/// Loss that damage of a state folder caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDamage {
    /// Session that lost something; `None` if the lost records do not tell.
    pub session: Option<SessionId>,
    /// Description of the loss, in words.
    pub lost: String,
}

/// Sessions of a state folder, read without changing the folder.
///
/// A session whose records are incomplete is kept at its last consistent point, or left out if its
/// first record is lost. [`damaged`](FolderContents::damaged) lists such sessions.
#[derive(Debug, Default)]
pub struct FolderContents {
    pub(super) model: Option<ModelIdentity>,
    pub(super) sessions: BTreeMap<SessionId, SavedSession>,
    /// Highest id that a session has had.
    pub(super) last_id: SessionId,
    /// Whether a record of the log could not be applied.
    pub(super) has_unapplied: bool,
    torn: u64,
    /// Damage that no session can be named for.
    general: Vec<StateDamage>,
    /// Sessions that lost records, each with the reason. Their later records are ignored.
    broken: BTreeMap<SessionId, String>,
    /// Sessions that existed when a record was lost, and of which no later record has confirmed
    /// the number of tokens.
    unconfirmed: BTreeSet<SessionId>,
}

impl FolderContents {
    /// Reads the records of a log.
    pub(super) fn read(log: &LogContents) -> Self {
        let mut contents = FolderContents {
            torn: log.torn,
            ..FolderContents::default()
        };
        let mut damage = log.damage.iter().peekable();
        for (number, record) in log.records.iter().enumerate() {
            while let Some(range) = damage.next_if(|range| range.before <= number) {
                contents.skip_range(range);
            }
            match serde_json::from_slice(record) {
                Ok(record) => contents.apply(record),
                Err(error) => contents.skip_record(record, &error.to_string()),
            }
        }
        damage.for_each(|range| contents.skip_range(range));
        if contents.model.is_none() && !contents.sessions.is_empty() {
            contents.note(
                "the record of the model is lost: the sessions are taken for sessions of the \
                 model that opens the folder"
                    .to_owned(),
            );
        }
        contents
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

    /// Number of bytes that the last crash left half written.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// Lists the losses: first the sessions that lost something, then losses of unknown sessions.
    pub fn damaged(&self) -> Vec<StateDamage> {
        let named = self.broken.iter().map(|(&id, lost)| StateDamage {
            session: Some(id),
            lost: lost.clone(),
        });
        named.chain(self.general.iter().cloned()).collect()
    }

    /// Exports one session to a file that another folder can import.
    pub fn export(&self, id: SessionId) -> Result<SavedFile, EngineError> {
        let session = self.get(id)?.clone();
        let model = self.model.clone().ok_or_else(|| {
            EngineError::Unreadable(
                "the folder has lost the record of its model: open the folder with the model \
                 first, for example with djinn run --state"
                    .to_owned(),
            )
        })?;
        Ok(SavedFile::new(model, session))
    }

    /// Notes a loss of unknown sessions.
    fn note(&mut self, lost: String) {
        let session = None;
        self.general.push(StateDamage { session, lost });
    }

    /// Notes that records are missing at this point of the log.
    fn skip_range(&mut self, range: &DamagedRange) {
        let (path, offset, bytes) = (range.path.display(), range.offset, range.bytes);
        let lost = match range.lost {
            Some(0) => {
                return self.note(format!(
                    "{bytes} bytes of the header of {path} are damaged; no record is lost"
                ));
            }
            Some(1) => "one record is lost".to_owned(),
            Some(lost) => format!("up to {lost} records are lost"),
            None => "an unknown number of records is lost".to_owned(),
        };
        self.note(format!(
            "{lost}: {bytes} bytes of {path} are damaged, from byte {offset} on; a session that \
             changed there may miss input, tokens, an edit or its end"
        ));
        self.unconfirmed.extend(self.sessions.keys());
    }

    /// Notes a record that is not a record of this version.
    fn skip_record(&mut self, record: &[u8], error: &str) {
        self.has_unapplied = true;
        let lost = format!("a record of the session log cannot be read: {error}");
        match session_of(record) {
            Some(id) => self.mark_broken(id, lost),
            None => {
                self.note(lost);
                self.unconfirmed.extend(self.sessions.keys());
            }
        }
    }

    /// Keeps a session as it is now, and ignores its later records.
    fn mark_broken(&mut self, id: SessionId, lost: String) {
        self.has_unapplied = true;
        self.last_id = self.last_id.max(id);
        self.broken.entry(id).or_insert(lost);
    }

    /// Applies a record of the log.
    pub(super) fn apply(&mut self, record: Record) {
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
                let id = session.id;
                self.last_id = self.last_id.max(id);
                // A complete session does not depend on lost records.
                self.broken.remove(&id);
                self.unconfirmed.remove(&id);
                self.sessions.insert(id, *session);
            }
            Record::Closed { id } => {
                self.last_id = self.last_id.max(id);
                self.broken.remove(&id);
                self.unconfirmed.remove(&id);
                self.sessions.remove(&id);
            }
            change => self.change(change),
        }
    }

    /// Applies a change of one session. A change that does not fit the session shows that a record
    /// before it is lost.
    fn change(&mut self, record: Record) {
        let (id, after) = match &record {
            Record::Said { id, after, .. } | Record::State { id, after, .. } => (*id, *after),
            Record::Tokens { id, after, .. } => (*id, Some(*after)),
            _ => return,
        };
        if self.broken.contains_key(&id) {
            self.has_unapplied = true;
            return;
        }
        let Some(session) = self.sessions.get(&id) else {
            return self.mark_broken(
                id,
                "its first record is lost, and the session with it".into(),
            );
        };
        let found = session.tokens.len();
        let fits = match after {
            Some(after) => after == found && can_grow(session, &record),
            // Records of release 0.1 do not tell.
            None => !self.unconfirmed.contains(&id),
        };
        if !fits {
            return self.mark_broken(
                id,
                format!("everything after its first {found} tokens is lost"),
            );
        }
        if after.is_some() {
            self.unconfirmed.remove(&id);
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            change_session(session, record);
        }
    }
}

/// Whether a session may generate the tokens of a record. If the input that asked for them is
/// lost, they exceed the limit of the turn before.
fn can_grow(session: &SavedSession, record: &Record) -> bool {
    match record {
        Record::Tokens { tokens, .. } => {
            session.generated().saturating_add(tokens.len()) <= session.max_tokens
        }
        _ => true,
    }
}

fn change_session(session: &mut SavedSession, record: Record) {
    match record {
        Record::Said {
            tokens,
            max_tokens,
            probe,
            ..
        } => {
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
            tokens,
            logprobs,
            state,
            ..
        } => {
            session.tokens.extend(tokens);
            session.logprobs.extend(logprobs);
            if let Some(state) = state {
                session.state = state;
            }
        }
        Record::State { state, .. } => session.state = state,
        Record::Model { .. } | Record::Session(_) | Record::Closed { .. } => {}
    }
}

/// Finds the id in a record of unknown kind, or with unknown fields.
fn session_of(record: &[u8]) -> Option<SessionId> {
    let record: Value = serde_json::from_slice(record).ok()?;
    let kinds = record.as_object()?;
    let id = kinds.values().find_map(|fields| fields.get("id"))?;
    match id {
        Value::String(text) => text.parse().ok(),
        number => number
            .as_u64()
            .map(|number| SessionId::from_bits(number.into())),
    }
}
