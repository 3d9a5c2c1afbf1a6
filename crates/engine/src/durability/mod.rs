//! Durability: sessions that outlive the process. The end of a turn is in a log before a client
//! learns of it, and a session continues from there with the same bits.
//!
//! The KV cache of a session is not written. Its tokens are, as they are generated, and the keys
//! and values follow from them, computed again in the same way: given tokens together, generated
//! tokens one by one. A token that was not on disk when the power failed is generated again.

pub(crate) mod identity;
mod journal;
mod legacy_identity;
mod prefix_header;
pub(crate) mod records;
pub(crate) mod recovery;
pub(crate) mod saved_file;
mod saved_id;
mod saved_kv_dtype;
pub(crate) mod saved_prefixes;
pub(crate) mod saved_session;
pub(crate) mod state_folder;
mod tensor_samples;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::OnceLock,
    time::{Instant, SystemTime},
};

use djinn_model::Model;
use djinn_types::{DType, SessionId};

use crate::{
    error::EngineError,
    probe::{Probe, saved_probe::SavedProbe},
    session::{Session, lifecycle::NextTurn, output::Output, table::SessionTable},
};
use identity::ModelIdentity;
use journal::Journal;
use prefix_header::PrefixOrigin;
use records::Record;
use saved_file::SavedFile;
use saved_prefixes::{EnginePages, PrefixFile, SavedPrefixes, program_digest};
use saved_session::{SavedSession, SavedState};
use state_folder::StateFolder;

/// Log of the sessions, if they are kept in a folder, and what their bits depend on: the model,
/// and the element type of keys and values.
pub(crate) struct Durability {
    journal: Option<Journal>,
    /// Cached pages in the folder.
    prefixes: Option<PrefixFile>,
    identity: OnceLock<ModelIdentity>,
    kv_dtype: DType,
}

impl Durability {
    /// Durability of an engine with keys and values of this type, without a folder.
    pub fn new(kv_dtype: DType) -> Self {
        Durability {
            journal: None,
            prefixes: None,
            identity: OnceLock::new(),
            kv_dtype,
        }
    }

    /// Returns the identity of the model, computed when first needed.
    pub fn identity(&self, model: &Model) -> Result<&ModelIdentity, EngineError> {
        if let Some(known) = self.identity.get() {
            return Ok(known);
        }
        let found = ModelIdentity::of(model)?;
        Ok(self.identity.get_or_init(|| found))
    }

    /// Writes sessions to a folder from now on. `parked` are the sessions of the folder that the
    /// engine does not open.
    pub fn attach(
        &mut self,
        model: &Model,
        folder: StateFolder,
        parked: BTreeMap<SessionId, SavedSession>,
    ) -> Result<(), EngineError> {
        let identity = self.identity(model)?.clone();
        self.journal = Some(Journal::new(folder, identity, self.kv_dtype, parked));
        Ok(())
    }

    /// Adds the cached pages of a folder to the prefix cache, and saves cached pages there from now on.
    /// `device` is the arithmetic of the device, and `all_owners` says that owners share pages.
    pub fn attach_prefixes(
        &mut self,
        model: &Model,
        folder: &Path,
        device: String,
        all_owners: bool,
        pages: &mut EnginePages<'_>,
    ) -> (SavedPrefixes, Result<(), EngineError>) {
        let origin = self.identity(model).and_then(|identity| {
            Ok(PrefixOrigin {
                model: identity.identity.clone(),
                kv_dtype: self.kv_dtype.to_string(),
                files: stamps_of(model),
                page_tokens: pages.page_tokens,
                device,
                program: program_digest()?,
                all_owners,
            })
        });
        match origin {
            Ok(origin) => {
                let file = self.prefixes.insert(PrefixFile::new(folder, origin));
                file.restore(pages)
            }
            Err(error) => (SavedPrefixes::default(), Err(error)),
        }
    }

    /// Saves cached pages in the folder, up to `limit` bytes and this time. Saves none without a folder.
    pub fn save_prefixes(
        &self,
        pages: &mut EnginePages<'_>,
        limit: u64,
        until: Instant,
    ) -> Result<SavedPrefixes, EngineError> {
        match &self.prefixes {
            Some(file) => file.save(pages, limit, until),
            None => Ok(SavedPrefixes::default()),
        }
    }

    /// Exports a session.
    pub fn export(&self, model: &Model, session: &Session) -> Result<SavedFile, EngineError> {
        let identity = self.identity(model)?.clone();
        let session = SavedSession::of(session, self.kv_dtype);
        Ok(SavedFile::new(identity, session))
    }

    /// Writes what earlier failures left unwritten, and compacts the log if most of it is
    /// outdated. `commits` says that the caller is about to write a record. All sessions must be
    /// in the table, so this must not be called during a pass.
    pub fn settle(&mut self, sessions: &mut SessionTable, commits: bool) {
        if let Some(journal) = &mut self.journal {
            journal.settle(sessions, commits);
        }
    }

    /// Returns the journal if this session is written to one.
    fn journal_of(&mut self, session: &Session) -> Option<&mut Journal> {
        self.journal.as_mut().filter(|_| !session.transient)
    }

    /// Writes a session that was just opened.
    pub fn commit_opened(&mut self, session: &mut Session) -> Result<(), EngineError> {
        let kv_dtype = self.kv_dtype;
        let Some(journal) = self.journal_of(session) else {
            return Ok(());
        };
        let saved = SavedSession::of(session, kv_dtype);
        journal.commit(&Record::Session(Box::new(saved)))?;
        session.note_logged();
        Ok(())
    }

    /// Writes a session that was just imported.
    pub fn commit_imported(&mut self, saved: SavedSession) -> Result<(), EngineError> {
        match &mut self.journal {
            Some(journal) => journal.commit(&Record::Session(Box::new(saved))),
            None => Ok(()),
        }
    }

    /// Writes a new probe of a session and sets it. With `resumes`, the session is written as
    /// resumed from its pause.
    pub fn commit_probe(
        &mut self,
        session: &mut Session,
        probe: Probe,
        resumes: bool,
    ) -> Result<(), EngineError> {
        let kv_dtype = self.kv_dtype;
        if let Some(journal) = self.journal_of(session) {
            let mut saved = SavedSession::of(session, kv_dtype);
            saved.probe = SavedProbe::of(&probe);
            if resumes && let SavedState::Paused(at) = saved.state {
                (saved.state, saved.past) = (SavedState::Ready, Some(at));
            }
            journal.commit(&Record::Session(Box::new(saved)))?;
            session.note_logged();
        }
        session.probe = probe;
        Ok(())
    }

    /// Writes the state that a session is about to have.
    pub fn commit_state(
        &mut self,
        session: &mut Session,
        state: SavedState,
    ) -> Result<(), EngineError> {
        let id = session.id;
        let Some(journal) = self.journal_of(session) else {
            return Ok(());
        };
        journal.write_progress(session, false)?;
        let after = Some(session.logged);
        journal.commit(&Record::State { id, after, state })?;
        session.owes_state = false;
        Ok(())
    }

    /// Writes a turn that is about to be appended to a session.
    pub fn commit_turn(
        &mut self,
        session: &mut Session,
        turn: &NextTurn,
    ) -> Result<(), EngineError> {
        let Some(journal) = self.journal_of(session) else {
            return Ok(());
        };
        journal.write_progress(session, false)?;
        let probe = match SavedProbe::of(&turn.probe) {
            saved if saved == SavedProbe::of(&session.probe) => None,
            saved => Some(Box::new(saved.unwrap_or_default())),
        };
        journal.commit(&Record::Said {
            id: session.id,
            after: Some(session.logged),
            tokens: turn.tokens.clone(),
            max_tokens: turn.max_tokens,
            probe,
        })?;
        session.owes_state = false;
        Ok(())
    }

    /// Writes the end of a session. An end that cannot be written now is written with the next
    /// record; until then a restart would restore the session.
    pub fn commit_closed(&mut self, session: &Session) {
        let id = session.id;
        if let Some(journal) = self.journal_of(session) {
            journal.close(id);
        }
    }

    /// Writes outputs before they are returned. Returns the sessions whose end could not be
    /// written, each with the error; the log keeps what it has of them.
    pub fn write_outputs(
        &mut self,
        outputs: &[Output],
        sessions: &mut SessionTable,
    ) -> Vec<(SessionId, EngineError)> {
        match &mut self.journal {
            Some(journal) => journal.write_outputs(outputs, sessions),
            None => Vec::new(),
        }
    }
}

/// Times of the last changes of a model's files, as texts. The digest of a model covers only some bytes of
/// each tensor.
fn stamps_of(model: &Model) -> Vec<String> {
    let text = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_nanos().to_string()
    };
    model.weights.stamps().into_iter().map(text).collect()
}
