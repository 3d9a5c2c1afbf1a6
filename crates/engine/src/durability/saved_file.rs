//! A file that holds one saved session.

use std::path::Path;

use djinn_wal::{Archive, ArchiveWriter};
use serde::{Deserialize, Serialize};

use super::{identity::ModelIdentity, saved_session::SavedSession};
use crate::error::EngineError;

/// Contents of a file that holds one saved session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFile {
    /// Name of the model.
    pub model: String,
    /// Digest that tells the model from others of that name.
    pub identity: String,
    /// Digest as releases before 0.2 computed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub legacy_identity: Option<String>,
    /// The session.
    pub session: SavedSession,
}

impl SavedFile {
    pub(crate) fn new(model: ModelIdentity, session: SavedSession) -> Self {
        SavedFile {
            model: model.name,
            identity: model.identity,
            legacy_identity: model.legacy,
            session,
        }
    }

    /// Returns the identity of the model that the session belongs to.
    pub(crate) fn model_identity(&self) -> ModelIdentity {
        ModelIdentity {
            name: self.model.clone(),
            identity: self.identity.clone(),
            legacy: self.legacy_identity.clone(),
        }
    }

    /// Reads a saved session from a file.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let error = |e: std::io::Error| EngineError::File {
            path: path.to_owned(),
            reason: e.to_string(),
        };
        // A session that came over the network is the header alone.
        let bytes = std::fs::read(path).map_err(error)?;
        if bytes.first() == Some(&b'{') {
            return Self::from_bytes(&bytes);
        }
        let archive = Archive::open(path)?;
        serde_json::from_slice(archive.header()).map_err(|error| EngineError::File {
            path: path.to_owned(),
            reason: format!("the archive does not contain a session: {error}"),
        })
    }

    /// Decodes a saved session.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EngineError> {
        let read = serde_json::from_slice(bytes);
        read.map_err(|error| {
            EngineError::Unreadable(format!("the data is not a saved session: {error}; load a file that djinn sessions save wrote"))
        })
    }

    /// Encodes the saved session.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("saved sessions are plain data")
    }

    /// Writes the saved session to a file; `replace` allows overwriting one.
    pub fn write(&self, path: &Path, replace: bool) -> Result<(), EngineError> {
        Ok(ArchiveWriter::create(path, &self.to_bytes(), 0, replace)?.finish()?)
    }
}
