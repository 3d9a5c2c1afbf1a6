//! Records of the session log.

use djinn_types::SessionId;
use djinn_wal::Log;
use serde::{Deserialize, Serialize};

use super::{
    saved_id,
    saved_session::{SavedLogprobs, SavedSession, SavedState},
};
use crate::{error::EngineError, probe::saved_probe::SavedProbe};

/// Record of the session log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// First record: the model that the sessions belong to.
    Model {
        name: String,
        identity: String,
        /// Digest as releases before 0.2 computed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        legacy_identity: Option<String>,
    },
    /// Complete session.
    Session(Box<SavedSession>),
    /// Tokens that the owner appended to a session, which then runs.
    Said {
        #[serde(with = "saved_id")]
        id: SessionId,
        /// Number of tokens before these. Releases before 0.2 did not write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<usize>,
        tokens: Vec<u32>,
        max_tokens: usize,
        /// Probe from now on, where it changed.
        #[serde(default)]
        probe: Option<Box<SavedProbe>>,
    },
    /// Tokens that a session generated after its first `after` tokens, and its state if the turn
    /// ended. One record holds both, so that a crash cannot separate them.
    Tokens {
        #[serde(with = "saved_id")]
        id: SessionId,
        after: usize,
        tokens: Vec<u32>,
        logprobs: Vec<SavedLogprobs>,
        state: Option<SavedState>,
    },
    /// State of a session.
    State {
        #[serde(with = "saved_id")]
        id: SessionId,
        /// Number of tokens that the session has. Releases before 0.2 did not write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<usize>,
        state: SavedState,
    },
    /// End of a session.
    Closed {
        #[serde(with = "saved_id")]
        id: SessionId,
    },
}

impl Record {
    /// Appends the record to a log.
    pub fn append_to(&self, log: &mut Log) -> Result<(), EngineError> {
        Ok(log.append(&self.to_bytes())?)
    }

    /// Encodes the record as JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("records are plain data")
    }
}
