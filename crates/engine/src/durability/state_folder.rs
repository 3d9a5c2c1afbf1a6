//! A folder of sessions, with or without an engine to run them.

mod contents;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use djinn_types::SessionId;
use djinn_wal::Log;

pub use self::contents::{FolderContents, StateDamage};
use super::{
    identity::ModelIdentity, records::Record, saved_file::SavedFile, saved_session::SavedSession,
};
use crate::{error::EngineError, session::ids::SessionIds};

/// A folder of sessions. One process at a time can open the folder.
pub struct StateFolder {
    pub(super) log: Log,
    contents: FolderContents,
    /// Files with the damaged log, as it was before it was opened.
    set_aside: Vec<PathBuf>,
}

/// Result of repairing a state folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Losses; empty if the folder was not damaged.
    pub damaged: Vec<StateDamage>,
    /// Files with the damaged log, as it was before the repair. They are never deleted by djinn.
    pub set_aside: Vec<PathBuf>,
    /// Number of bytes that the last crash left half written, and that were dropped.
    pub torn: u64,
    /// Number of sessions that the folder has after the repair.
    pub sessions: usize,
}

impl StateFolder {
    /// Opens a folder, and creates it if there is none.
    ///
    /// Damage does not stop the folder: a damaged log is set aside as `log-….damaged-N`, and all
    /// sessions that can be read are written to a new log. A session that lost records is kept at
    /// its last consistent point. [`damaged`](StateFolder::damaged) lists the losses; the next
    /// open no longer reports them.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let (log, records) = Log::open(folder)?;
        let mut state = StateFolder {
            log,
            contents: FolderContents::read(&records),
            set_aside: records.set_aside,
        };
        if state.contents.has_unapplied {
            state.rewrite()?;
        }
        Ok(state)
    }

    /// Reads a folder without changing anything on disk, also while another process uses the
    /// folder. Reports the damage that [`open`](StateFolder::open) would repair.
    pub fn inspect(folder: &Path) -> Result<FolderContents, EngineError> {
        Ok(FolderContents::read(&Log::inspect(folder)?))
    }

    /// Repairs a folder as [`open`](StateFolder::open) does, and closes it again. A folder without
    /// damage stays as it is.
    pub fn repair(folder: &Path) -> Result<RepairReport, EngineError> {
        let state = Self::open(folder)?;
        Ok(RepairReport {
            damaged: state.damaged(),
            torn: state.torn(),
            sessions: state.contents.sessions.len(),
            set_aside: state.set_aside,
        })
    }

    /// Whether a folder contains sessions.
    pub fn is_in(folder: &Path) -> bool {
        Log::is_in(folder)
    }

    /// Replaces the log by the sessions as they are, without the records that do not apply. Sets
    /// the log aside first.
    fn rewrite(&mut self) -> Result<(), EngineError> {
        if self.set_aside.is_empty() {
            self.set_aside.push(self.log.set_aside()?);
        }
        let model = self.contents.model.as_ref();
        let model = model.map(model_record);
        let sessions = self.contents.sessions();
        let sessions = sessions.map(|session| Record::Session(Box::new(session.clone())));
        let records = model.into_iter().chain(sessions);
        Ok(self.log.compact(records.map(|record| record.to_bytes()))?)
    }

    /// Lists what damage has cost.
    pub fn damaged(&self) -> Vec<StateDamage> {
        self.contents.damaged()
    }

    /// Lists the files in which opening kept the damaged log.
    pub fn set_aside(&self) -> &[PathBuf] {
        &self.set_aside
    }

    /// Iterates over the sessions in order of their ids.
    pub fn sessions(&self) -> impl Iterator<Item = &SavedSession> {
        self.contents.sessions()
    }

    /// Returns one session.
    pub fn get(&self, id: SessionId) -> Result<&SavedSession, EngineError> {
        self.contents.get(id)
    }

    /// Returns the name of the model that the sessions belong to, once there was a session.
    pub fn model(&self) -> Option<&str> {
        self.contents.model()
    }

    /// Number of bytes that the last crash left half written, and that were dropped.
    pub fn torn(&self) -> u64 {
        self.log.torn()
    }

    /// Writes a record durably, then applies it.
    fn commit(&mut self, record: Record) -> Result<(), EngineError> {
        record.append_to(&mut self.log)?;
        self.log.sync()?;
        self.contents.apply(record);
        Ok(())
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        self.log.folder()
    }

    /// Deletes a session.
    pub fn delete(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.get(id)?;
        self.commit(Record::Closed { id })
    }

    /// Exports one session to a file that another folder can import.
    pub fn export(&self, id: SessionId) -> Result<SavedFile, EngineError> {
        self.contents.export(id)
    }

    /// Imports a session under a new id. A kept session that was running waits.
    pub fn import(&mut self, file: SavedFile) -> Result<SessionId, EngineError> {
        file.session.check()?;
        self.claim(&file.model_identity())?;
        let mut ids = SessionIds::default();
        ids.note(self.contents.last_id);
        let id = ids.next();
        let owner = file.session.owner.clone();
        let session = file.session.imported(id, owner);
        self.commit(Record::Session(Box::new(session)))?;
        Ok(id)
    }

    /// Takes the sessions out of the folder, with the highest id that one of them has had.
    pub(crate) fn take_sessions(&mut self) -> (BTreeMap<SessionId, SavedSession>, SessionId) {
        let sessions = std::mem::take(&mut self.contents.sessions);
        (sessions, self.contents.last_id)
    }

    /// Makes an empty folder one of this model; refuses a folder of another model. A folder that
    /// lost the record of its model becomes one of this model.
    pub(crate) fn claim(&mut self, model: &ModelIdentity) -> Result<(), EngineError> {
        match &self.contents.model {
            Some(theirs) => model.check(theirs),
            None => self.commit(model_record(model)),
        }
    }
}

fn model_record(model: &ModelIdentity) -> Record {
    Record::Model {
        name: model.name.clone(),
        identity: model.identity.clone(),
        legacy_identity: model.legacy.clone(),
    }
}
